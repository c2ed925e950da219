"""Inference of a schema from records that another program wrote, and the range of their integers.

A record has less information than an example: the values are int64, float32 or bytes, and their
number is known. A native survey collects it; the surveys of several shards are combined here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.schema.codec import leaf
from covey.schema.columns import Shape
from covey.schema.diagnostics import example_reason
from covey.schema.structures import Steps
from covey.schema.types import Feature, Tensor
from covey.tfrecord import Block
from covey.tfrecord.block import reading

if TYPE_CHECKING:
    from covey.schema.features import Features

_DTYPES = {1: "bytes", 2: "float32", 3: "int64"}


def infer_record_kinds(records: Iterable[bytes]) -> dict[str, Feature]:
    """Return the features that fit all records, by key."""
    survey = _core.Survey()
    for index, record in enumerate(records):
        try:
            survey.add(record)
        except _core.Fault as fault:
            raise ExampleError(example_reason(fault), record=index) from None
    return survey_kinds([survey])


def survey_block(survey: _core.Survey, block: Block) -> None:
    """Add the records of a block to a survey."""
    try:
        with reading([block]):
            survey.add_records(block.data, block.offsets, block.lengths)
    except _core.Fault as fault:
        record = block.first + fault.row
        raise ExampleError(example_reason(fault), path=block.name, record=record) from None


def survey_kinds(surveys: Sequence[_core.Survey]) -> dict[str, Feature]:
    """Return the features that fit all records of consecutive surveys, by key."""
    records = sum(survey.records for survey in surveys)
    if records == 0:
        raise FeatureError("there are no records to infer features from", remedy="declare them")
    context: dict[str, _core.SeenTuple] = {}
    lists: dict[str, _core.SeenTuple] = {}
    before = 0
    for survey in surveys:
        try:
            found = survey.context(), survey.lists()
        except UnicodeDecodeError as error:
            raise FeatureError(f"the name of a feature is not valid UTF-8: {error}") from None
        # A step without a list has no values. A key without a list does not count: its number of
        # values is unknown.
        for known, seen, first_kind in zip((context, lists), found, (1, 0), strict=True):
            for key, each in seen.items():
                shifted = _shift(each, before)
                known[key] = _join(known[key], shifted, first_kind) if key in known else shifted
        before += survey.records
    kinds: dict[str, Feature] = {}
    for key, each in context.items():
        dtype, (low, high), is_everywhere = _record_kind(key, each, records)
        if dtype is None:
            continue
        if is_everywhere and low == high:
            kinds[key] = Tensor(dtype, () if high == 1 else (high,))
        else:
            kinds[key] = Tensor(dtype, (None,), default=[])
    for key, each in lists.items():
        dtype, (low, high), _ = _record_kind(key, each, records)
        if dtype is not None:
            shape: Shape = (None,) if low != high else () if high == 1 else (high,)
            kind = Steps(dtype, shape)
            kinds[key] = kind if each[0] == records else dataclasses.replace(kind, default=[])
    return kinds


def _shift(seen: _core.SeenTuple, before: int) -> _core.SeenTuple:
    """Return the statistics with record indexes that count `before` earlier records."""
    present, by_kind, first, low, high = seen
    return present, by_kind, tuple(index + before for index in first), low, high


def _join(a: _core.SeenTuple, b: _core.SeenTuple, first_kind: int) -> _core.SeenTuple:
    """Combine the statistics of consecutive records; kinds below `first_kind` have no values."""
    by_kind = tuple(x + y for x, y in zip(a[1], b[1], strict=True))
    first = tuple(x if n else y for x, y, n in zip(a[2], b[2], a[1], strict=True))
    counted = [each for each in (a, b) if any(each[1][first_kind:])]
    low = min((each[3] for each in counted), default=0)
    high = max((each[4] for each in counted), default=0)
    return a[0] + b[0], by_kind, first, low, high


def _record_kind(
    key: str, seen: _core.SeenTuple, records: int
) -> tuple[str | None, tuple[int, int], bool]:
    """Return the dtype, the range of the number of values, and whether every record has the key."""
    present, by_kind, first, low, high = seen
    kinds = [kind for kind in _DTYPES if by_kind[kind]]
    if len(kinds) > 1:
        a, b = kinds[:2]
        raise FeatureError(
            f"record {first[a]} has {_DTYPES[a]}, record {first[b]} has {_DTYPES[b]}; no feature "
            "fits both",
            feature=key,
        )
    is_everywhere = present == records and by_kind[0] == 0
    return (_DTYPES[kinds[0]] if kinds else None), (low, high), is_everywhere


def integer_range(features: Features, block: Block, name: str) -> tuple[int, int]:
    """Return the minimum and maximum of 0 and the integers of a feature.

    They determine whether a float dtype can hold the integers exactly.
    """
    if name not in features or not len(block):
        return 0, 0
    column: Any = leaf(features.decode_batch(block, [name]))
    while hasattr(column, "values"):  # ragged or sparse
        column = column.values
    values = np.asarray(column)
    if not values.size or values.dtype.kind not in "iu":
        return 0, 0
    return min(0, int(values.min())), max(0, int(values.max()))


def join_ranges(*ranges: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest range that contains all ranges."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)
