"""Finding the features that fit all records, which another program wrote.

A record says less than an example: int64, float32 or bytes, and how many. A survey looks through
records natively; several of them, of the shards of a dataset, are put together here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.schema.columns import Shape
from covey.schema.structures import Steps
from covey.schema.types import Feature, Tensor
from covey.tfrecord import Block
from covey.tfrecord.block import reading

_DTYPES = {1: "bytes", 2: "float32", 3: "int64"}


def infer_record_kinds(records: Iterable[bytes]) -> dict[str, Feature]:
    """The kinds that fit all records, by their keys."""
    survey = _core.Survey()
    for number, record in enumerate(records):
        try:
            survey.add(record)
        except _core.Fault as fault:
            raise _no_example(fault, None, number) from None
    return survey_kinds([survey])


def survey_block(survey: _core.Survey, block: Block) -> None:
    """Look through the records of a block."""
    try:
        with reading([block]):
            survey.add_records(block.data, block.offsets, block.lengths)
    except _core.Fault as fault:
        number = block.first + fault.row
        raise _no_example(fault, block.name, number) from None


def _no_example(fault: _core.Fault, name: str | None, record: int) -> ExampleError:
    return ExampleError(
        f"it is not a tf.train.Example (byte {fault.offset} of it: {fault.code})",
        path=name,
        record=record,
    )


def survey_kinds(surveys: Sequence[_core.Survey]) -> dict[str, Feature]:
    """The kinds that fit all records of some surveys, whose records follow each other."""
    records = sum(survey.records for survey in surveys)
    if records == 0:
        raise FeatureError("there are no records to infer features from; declare them")
    context: dict[str, _core.SeenTuple] = {}
    lists: dict[str, _core.SeenTuple] = {}
    before = 0
    for survey in surveys:
        try:
            found = survey.context(), survey.lists()
        except UnicodeDecodeError as error:
            raise FeatureError(f"a feature's name is not a valid UTF-8: {error}") from None
        # A step without a list has no values; a key without one says nothing about its values.
        for known, seen, counts in zip((context, lists), found, (1, 0), strict=True):
            for key, each in seen.items():
                later = _later(each, before)
                known[key] = _join(known[key], later, counts) if key in known else later
        before += survey.records
    kinds: dict[str, Feature] = {}
    for key, each in context.items():
        dtype, (least, most), everywhere = _record_kind(key, each, records)
        if dtype is None:
            continue
        if everywhere and least == most:
            kinds[key] = Tensor(dtype, () if most == 1 else (most,))
        else:
            kinds[key] = Tensor(dtype, (None,), default=[])
    for key, each in lists.items():
        dtype, (least, most), _ = _record_kind(key, each, records)
        if dtype is not None:
            shape: Shape = (None,) if least != most else () if most == 1 else (most,)
            kind = Steps(dtype, shape)
            kinds[key] = kind if each[0] == records else dataclasses.replace(kind, default=[])
    return kinds


def _later(seen: _core.SeenTuple, before: int) -> _core.SeenTuple:
    """What was seen, if so many records come before."""
    present, by_kind, first, least, most = seen
    return present, by_kind, tuple(number + before for number in first), least, most


def _join(a: _core.SeenTuple, b: _core.SeenTuple, counts: int) -> _core.SeenTuple:
    """What was seen in some records, and in those that follow; kinds count from a number on."""
    by_kind = tuple(x + y for x, y in zip(a[1], b[1], strict=True))
    first = tuple(x if n else y for x, y, n in zip(a[2], b[2], a[1], strict=True))
    counted = [each for each in (a, b) if any(each[1][counts:])]
    least = min((each[3] for each in counted), default=0)
    most = max((each[4] for each in counted), default=0)
    return a[0] + b[0], by_kind, first, least, most


def _record_kind(
    key: str, seen: _core.SeenTuple, records: int
) -> tuple[str | None, tuple[int, int], bool]:
    """(dtype, (fewest, most values), whether every record has it)."""
    present, by_kind, first, least, most = seen
    kinds = [kind for kind in _DTYPES if by_kind[kind]]
    if len(kinds) > 1:
        a, b = kinds[:2]
        raise FeatureError(
            f"record {first[a]} holds {_DTYPES[a]}, record {first[b]} holds {_DTYPES[b]}; "
            "no feature fits both",
            feature=key,
        )
    everywhere = present == records and by_kind[0] == 0
    return (_DTYPES[kinds[0]] if kinds else None), (least, most), everywhere
