"""Finding the features that fit all examples, or all records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.features.arrays import SparseArray
from covey.features.columns import NUMBERS, Shape
from covey.features.kinds import Feature, Tensor
from covey.features.structures import Ragged, Sparse, Steps

# Arrays of these are stored as their memory: a list would take two to ten times the space.
_RAW_IN_ARRAYS = ("int8", "uint8", "int16", "uint16", "float16", "float64")


@dataclass(slots=True)
class _Guess:
    """What one name has been so far, and the first example that made it so."""

    dtype: str | None  # None as long as only empty lists were seen
    shape: Shape
    depth: int  # levels of lists of different lengths, 0 for a tensor
    sparse: bool
    array: bool  # whether any value was an array rather than Python numbers
    example: int

    def feature(self) -> Feature:
        dtype = self.dtype or "float32"
        if self.sparse:
            return Sparse(dtype, self.shape)
        if self.depth:
            return Ragged("float32" if dtype == "float64" else dtype, self.depth)
        raw = self.array and self.shape and dtype in _RAW_IN_ARRAYS
        if self.shape.count(None) > 1:
            raw = True
        return Tensor(dtype, self.shape, encoding="bytes" if raw else None)


def infer_kinds(examples: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The kinds that fit all examples, nested as they are."""
    guesses: dict[tuple[str, ...], _Guess] = {}
    seen: dict[tuple[str, ...], int] = {}
    number = -1
    for number, example in enumerate(examples):
        if not isinstance(example, Mapping):
            raise FeatureError(
                f"example {number} is of type {type(example).__name__}, must be a dict of values"
            )
        for path, value in _leaves(example, ()):
            try:
                guess = _guess(value, number)
            except FeatureError as error:
                raise FeatureError(
                    f"example {number}: feature {'/'.join(path)!r}: {error}"
                ) from None
            before = guesses.get(path)
            guesses[path] = guess if before is None else _widen(before, guess, "/".join(path))
            seen[path] = seen.get(path, 0) + 1
    if number < 0:
        raise FeatureError("there are no examples to infer features from; declare them")
    _check_nesting(guesses)
    for path, count in seen.items():
        if count <= number:
            raise FeatureError(
                f"feature {'/'.join(path)!r}: example {guesses[path].example} has it, but only "
                f"{count} of {number + 1} examples do; declare it with a default"
            )
    nested: dict[str, Any] = {}
    for path, guess in guesses.items():
        place = nested
        for parent in path[:-1]:
            place = place.setdefault(parent, {})
        place[path[-1]] = guess.feature()
    return nested


def _leaves(
    example: Mapping[str, Any], path: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], Any]]:
    if len(path) > 32:
        raise FeatureError("examples are nested over 32 levels deep")
    for key, value in example.items():
        here = (*path, str(key))
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _check_nesting(guesses: Mapping[tuple[str, ...], _Guess]) -> None:
    for path, guess in guesses.items():
        for i in range(1, len(path)):
            other = guesses.get(path[:i])
            if other is not None:
                raise FeatureError(
                    f"feature {'/'.join(path[:i])!r}: example {other.example} has a value, "
                    f"example {guess.example} a dict"
                )


def _guess(value: Any, number: int) -> _Guess:
    if isinstance(value, SparseArray):
        return _Guess(_dtype(value.values), value.shape, 0, True, True, number)
    if isinstance(value, str):
        return _Guess("str", (), 0, False, False, number)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _Guess("bytes", (), 0, False, False, number)
    if value is None:
        raise FeatureError("the value is None; leave the name out, and declare a default")
    if isinstance(value, (list, tuple)):
        lists = _list_levels(value)
        if lists is not None:
            return _Guess(lists[1], (), lists[0], False, False, number)
    array = np.asarray(value)
    shape: Shape = array.shape
    dtype = None if array.size == 0 and not hasattr(value, "dtype") else _dtype(array)
    if isinstance(value, (bool, int, float, list, tuple)):
        # Python's own numbers: what TensorFlow makes of them.
        dtype = {"float64": "float32"}.get(dtype or "", dtype)
        return _Guess(dtype, shape, 0, False, False, number)
    return _Guess(dtype, shape, 0, False, True, number)


def _list_levels(value: list[Any] | tuple[Any, ...]) -> tuple[int, str | None] | None:
    """(depth, dtype) of nested lists that are ragged; None if they make an array."""
    depth = 0
    level: list[Any] = [value]
    regular = True
    while level and all(isinstance(each, (list, tuple)) for each in level):
        depth += 1
        regular = regular and len({len(each) for each in level}) <= 1
        level = [item for each in level for item in each]
        if depth > 16:
            raise FeatureError("lists are nested over 16 levels deep")
    if any(isinstance(each, (list, tuple)) for each in level):
        raise FeatureError("lists and single values are mixed at one level")
    if regular:
        return None
    try:
        return depth, (_python_dtype(_dtype(np.asarray(level))) if level else None)
    except ValueError as error:
        raise FeatureError(f"the values are no array: {error}") from None


def _python_dtype(dtype: str) -> str:
    return "float32" if dtype == "float64" else dtype


def _dtype(array: Any) -> str:
    array = np.asarray(array)
    if array.dtype.kind in "UT":
        return "str"
    if array.dtype.kind == "S":
        return "bytes"
    if array.dtype.kind == "O" and array.size:
        kinds = {type(each) for each in array.ravel().tolist()}
        if kinds <= {str}:
            return "str"
        if kinds <= {str, bytes}:
            return "bytes"
    if array.dtype.name not in NUMBERS:
        raise FeatureError(f"the value has dtype {array.dtype}, which a feature cannot have")
    return str(array.dtype.name)


def _widen(before: _Guess, now: _Guess, name: str) -> _Guess:
    def conflict(what: str, a: object, b: object) -> FeatureError:
        return FeatureError(
            f"feature {name!r}: example {before.example} has {what} {a}, example {now.example} has "
            f"{b}; no feature fits both"
        )

    dtype = _widen_dtype(before.dtype, now.dtype)
    if dtype is None and before.dtype is not None and now.dtype is not None:
        raise conflict("dtype", before.dtype, now.dtype)
    if before.sparse != now.sparse or (before.sparse and before.shape != now.shape):
        raise conflict("shape", before.shape, now.shape)
    array = before.array or now.array
    example = before.example
    depth = max(before.depth, now.depth)
    shape: Shape = ()
    if depth:
        # Lists that happen to be regular, or empty, fit a ragged feature of the same depth.
        for guess in (before, now):
            levels = guess.depth or len(guess.shape)
            if levels != depth and not (levels < depth and guess.dtype is None):
                raise conflict(
                    "depth", before.depth or len(before.shape), now.depth or len(now.shape)
                )
    elif len(before.shape) != len(now.shape):
        # An empty list fits wherever there is a list, however deep that goes.
        short, deep = sorted((before, now), key=lambda guess: len(guess.shape))
        if short.dtype is not None or not short.shape:
            raise conflict("shape", before.shape, now.shape)
        shape = (None, *deep.shape[1:])
    else:
        shape = tuple(a if a == b else None for a, b in zip(before.shape, now.shape, strict=True))
    if None in shape:
        shape = tuple(size or None for size in shape)  # no 0 beside an unknown: it is unknown too
        if shape.count(None) > 1 and not array:
            depth, shape = len(shape), ()  # Python lists: ragged
    changed = (dtype, shape, depth) != (before.dtype, before.shape, before.depth)
    return _Guess(dtype, shape, depth, before.sparse, array, now.example if changed else example)


def _widen_dtype(a: str | None, b: str | None) -> str | None:
    """The dtype that holds both; None if there is none."""
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == {"str", "bytes"}:
        return "bytes"
    if "str" in (a, b) or "bytes" in (a, b):
        return None
    # numpy widens int64 with float32 to float64; beside Python's own numbers that is not meant.
    kinds = {np.dtype(a).kind, np.dtype(b).kind}
    if kinds & {"f"} and kinds & {"i", "u", "b"}:
        return "float64" if "float64" in (a, b) else "float32"
    widened = np.promote_types(a, b).name
    return "int64" if widened == "float64" and "uint64" in (a, b) else widened


def infer_record_kinds(records: Iterable[bytes]) -> dict[str, Feature]:
    """The kinds that fit all records, by their keys."""
    survey = _core.Survey()
    for number, record in enumerate(records):
        try:
            survey.add(record)
        except _core.Fault as fault:
            code, _, offset, *_ = fault.args
            raise ExampleError(
                f"record {number}: byte {offset} ({code}): it is no tf.train.Example",
                name="<memory>",
                record=number,
                feature=None,
            ) from None
    if survey.records == 0:
        raise FeatureError("there are no records to infer features from; declare them")
    kinds: dict[str, Feature] = {}
    try:
        context, lists = survey.context(), survey.lists()
    except UnicodeDecodeError as error:
        raise FeatureError(f"a feature's name is no valid UTF-8: {error}") from None
    for key, seen in context.items():
        dtype, (least, most), everywhere = _record_kind(key, seen, survey.records)
        if dtype is None:
            continue
        if everywhere and least == most:
            kinds[key] = Tensor(dtype, () if most == 1 else (most,))
        else:
            kinds[key] = Tensor(dtype, (None,), default=[])
    for key, seen in lists.items():
        dtype, (least, most), _ = _record_kind(key, seen, survey.records)
        if dtype is not None:
            shape: Shape = (None,) if least != most else () if most == 1 else (most,)
            kinds[key] = Steps(dtype, shape)
    return kinds


def _record_kind(
    key: str, seen: _core.SeenTuple, records: int
) -> tuple[str | None, tuple[int, int], bool]:
    """(dtype, (fewest, most values), whether every record has it)."""
    present, by_kind, first, least, most = seen
    dtypes = {1: "bytes", 2: "float32", 3: "int64"}
    kinds = [kind for kind in dtypes if by_kind[kind]]
    if len(kinds) > 1:
        a, b = kinds[:2]
        raise FeatureError(
            f"feature {key!r}: record {first[a]} holds {dtypes[a]}, record {first[b]} holds "
            f"{dtypes[b]}; no feature fits both"
        )
    everywhere = present == records and by_kind[0] == 0
    return (dtypes[kinds[0]] if kinds else None), (least, most), everywhere
