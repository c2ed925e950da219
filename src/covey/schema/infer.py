"""Inference of a schema from examples, from columns, or from records of another program.

A record has less information than an example: the values are int64, float32 or bytes, and their
number is known. A native survey collects it; the surveys of several shards are combined here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.schema.codec import count_rows, flat_items, leaf, nest
from covey.schema.columns import NUMBERS, Shape
from covey.schema.diagnostics import add_feature, example_reason
from covey.schema.guess import (
    Guess,
    dtype_of,
    guess_bytes,
    guess_default,
    guess_lists,
    guess_value,
    integer_limits,
    widen,
)
from covey.schema.tensor import Steps, Tensor
from covey.schema.types import Feature
from covey.tfrecord import Block

if TYPE_CHECKING:
    from covey.schema.features import Features

_DTYPES = {1: "bytes", 2: "float32", 3: "int64"}


@dataclasses.dataclass(frozen=True)
class InferenceState:
    """What an :class:`Inference` has found."""

    count: int
    """Number of examples."""
    features: tuple[tuple[tuple[str, ...], Guess, int], ...]
    """Path and type of each feature, and the number of examples that have it."""


class Inference:
    """Inference of the features that fit all examples, which may be given in parts.

    Args:
        defaults: Values of features that examples may lack, by name.
        types: Declared dtypes of features, by name.
    """

    def __init__(
        self,
        defaults: Mapping[str, Any] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.defaults = defaults or {}
        self.types = types or {}
        self._count = 0
        self._guesses: dict[tuple[str, ...], Guess] = {}
        self._seen: dict[tuple[str, ...], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no feature was found yet."""
        return not self._guesses

    def add(self, example: Mapping[str, Any], position: int | None = None) -> None:
        """Add an example; its position (by default the number of examples) is for messages."""
        position = self._count if position is None else position
        if not isinstance(example, Mapping):
            raise FeatureError(
                f"example {position} is of type {type(example).__name__}; must be a dict of values"
            )
        for path, value in flat_items(example):
            self._add_value(path, value, position)
        self._count += 1

    @property
    def is_exact(self) -> bool:
        """Whether encoding an example shows if the features would be inferred from it.

        Lists of any length whose dtype is unknown, because all are empty, are encoded as float32:
        a list of integers could be encoded, but is inferred as int64.
        """
        return all(
            guess.dtype is not None or not (guess.depth or None in guess.shape)
            for guess in self._guesses.values()
        )

    def add_column(self, path: tuple[str, ...], column: Any) -> None:
        """Add the values of one feature in all examples."""
        self._count = max(self._count, len(column))
        if isinstance(column, np.ndarray) and column.dtype != object:
            low, high = integer_limits(column)
            try:
                dtype = dtype_of(column)
            except FeatureError as error:
                raise add_feature(error, "/".join(path)) from None
            guess = Guess(0, dtype, column.shape[1:], array=True, low=low, high=high)
            self._set(path, self._widened(path, guess), len(column))
            return
        if isinstance(column, list) and set(map(type, column)) == {bytes}:
            self._set(path, self._widened(path, guess_bytes(column)), len(column))
            return
        lists = guess_lists(column)
        if lists is not None:
            self._set(path, self._widened(path, lists), len(column))
            return
        for position, value in enumerate(column):
            self._add_value(path, value, position)

    def _add_value(self, path: tuple[str, ...], value: Any, position: int) -> None:
        name = "/".join(path)
        if value is None and name in self.defaults:
            return
        try:
            guess = guess_value(value, position)
        except FeatureError as error:
            error.example, error.feature = position, name
            raise
        self._set(path, self._widened(path, guess), 1)

    @property
    def names(self) -> set[str]:
        """Names of the features that were found."""
        return {"/".join(path) for path in self._guesses}

    def dtypes(self) -> dict[str, str | None]:
        """Return the dtype of each feature; None if all its values are empty lists."""
        return {"/".join(path): guess.dtype for path, guess in self._guesses.items()}

    def set_integer_ranges(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Add the ranges of integers in examples that have exactly the inferred types."""
        for path, guess in self._guesses.items():
            if "/".join(path) in ranges:
                own = ranges["/".join(path)]
                low, high = join_ranges((guess.low, guess.high), own)
                self._guesses[path] = dataclasses.replace(guess, low=low, high=high)

    def check_names(self, example: Mapping[str, Any]) -> None:
        """Check that an example has the features of those before it, except for defaults."""
        if not self._guesses:
            return
        names = {path for path, _ in flat_items(example)}
        for path in (*self._guesses, *names):
            name = "/".join(path)
            if name in self.defaults or (path in names) == (path in self._guesses):
                continue
            if path in names:
                raise FeatureError(
                    "the previous examples do not have it",
                    feature=name,
                    remedy="pass defaults=, or pass features=",
                )
            raise FeatureError(
                f"it is missing, but example {self._guesses[path].example} has it",
                feature=name,
                remedy="pass defaults=",
            )

    def merge(
        self, other: Inference, integers: Callable[[str], tuple[int, int]] | None = None
    ) -> bool:
        """Add the result of another inference over the examples that follow.

        Args:
            other: The other inference.
            integers: Function that returns the minimum and the maximum of the integers of a feature
                in examples that were not added because they have exactly the inferred types.
                Called only if the type depends on it.

        Returns:
            Whether the features have changed.
        """
        # All or nothing: the caller may catch the error and continue without the other.
        found = {
            path: self._widened(path, guess, integers) for path, guess in other._guesses.items()
        }
        changed = False
        for path, guess in found.items():
            before = self._guesses.get(path)
            changed |= before is None or before.form != guess.form
            self._set(path, guess, other._seen[path])
        self._count += other._count
        return changed

    def _widened(
        self,
        path: tuple[str, ...],
        guess: Guess,
        integers: Callable[[str], tuple[int, int]] | None = None,
    ) -> Guess:
        """Return the type that fits the values so far and another one."""
        before = self._guesses.get(path)
        name = "/".join(path)
        guess = self._declared(guess, name)
        if before is None:
            return guess
        if integers is not None and before.dtype != guess.dtype and before.dtype in NUMBERS:
            low, high = join_ranges((before.low, before.high), integers(name))
            before = dataclasses.replace(before, low=low, high=high)
        return widen(before, guess, name)

    def _declared(self, guess: Guess, name: str) -> Guess:
        """Return a type with the declared dtype, if there is one."""
        dtype = self.types.get(name)
        if dtype is None or guess.dtype is None:
            return guess
        return dataclasses.replace(guess, dtype=dtype, low=0, high=0, image="")

    def _set(self, path: tuple[str, ...], guess: Guess, seen: int) -> None:
        self._guesses[path] = guess
        self._seen[path] = self._seen.get(path, 0) + seen

    def kinds(self, *, is_final: bool = False) -> dict[str, Any]:
        """Return the features that fit all examples so far, nested like the examples.

        Args:
            is_final: Whether no examples follow; see :meth:`Guess.feature`.
        """
        if not self._count:
            raise FeatureError(
                "there are no examples to infer features from", remedy="declare them"
            )
        self._check_nesting()
        kinds: dict[tuple[str, ...], Any] = {}
        for path, guess in self._guesses.items():
            name = "/".join(path)
            if self._seen[path] < self._count and name not in self.defaults:
                raise FeatureError(
                    f"example {guess.example} has it, but only {self._seen[path]} of "
                    f"{self._count} examples do",
                    feature=name,
                    remedy="pass defaults=",
                )
            try:
                kinds[path] = self._feature(guess, name, is_final)
            except FeatureError as error:
                raise add_feature(error, name) from None
        return nest(kinds)

    def _check_nesting(self) -> None:
        for path, guess in self._guesses.items():
            for i in range(1, len(path)):
                other = self._guesses.get(path[:i])
                if other is not None:
                    raise FeatureError(
                        f"example {other.example} has a value, example {guess.example} has a dict",
                        feature="/".join(path[:i]),
                    )

    def _feature(self, guess: Guess, name: str, is_final: bool) -> Any:
        """Return the feature that fits the values, and the default if there is one."""
        is_final = is_final or name in self.types
        if name not in self.defaults:
            return guess.feature(is_final=is_final)
        default = self.defaults[name]
        try:
            both = widen(guess, self._declared(guess_default(default, guess), name), name)
        except FeatureError:
            raise FeatureError(
                f"the default is {default!r}, but example {guess.example} has {guess.feature()}; "
                "no feature fits both"
            ) from None
        feature: Any = both.feature(is_final=is_final)
        return dataclasses.replace(feature, default=default)

    def state(self) -> InferenceState:
        """Return what was found, without the defaults."""
        found = ((path, guess, self._seen[path]) for path, guess in self._guesses.items())
        return InferenceState(self._count, tuple(found))

    @classmethod
    def from_state(cls, state: InferenceState) -> Inference:
        """Return the inference of a state, without defaults."""
        found = cls()
        found._count = state.count
        for path, guess, seen in state.features:
            found._guesses[path], found._seen[path] = guess, seen
        return found

    def finish(self) -> dict[str, Any]:
        """Return the features that fit all examples, after the last one.

        Raises:
            FeatureError: If a feature that has a default occurs in no example.
        """
        kinds = self.kinds(is_final=True)
        unknown = [name for name in self.types if tuple(name.split("/")) not in self._guesses]
        if unknown:
            raise FeatureError(
                "its type is declared, but no example has it",
                feature=unknown[0],
                choices=self.names,
            )
        for name in self.defaults:
            if tuple(name.split("/")) not in self._guesses:
                raise FeatureError(
                    "no example has it, so its type is unknown",
                    feature=name,
                    remedy="pass features= to declare it, or remove its default",
                )
        return kinds


def infer_kinds(
    examples: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the features that fit all examples, nested like the examples."""
    inference = Inference(defaults)
    for example in examples:
        inference.add(example)
    return inference.finish()


def infer_column_kinds(
    columns: Mapping[str, Any],
    defaults: Mapping[str, Any],
    types: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the features that fit all rows of columns, nested like the columns."""
    inference = Inference(defaults, types)
    found = dict(flat_items(columns))
    count_rows({"/".join(path): column for path, column in found.items()})
    for path, column in found.items():
        inference.add_column(path, column)
    return inference.finish()


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
        survey.add_records(block.data, block.offsets, block.lengths)
    except _core.Fault as fault:
        record = block.first + fault.row
        raise ExampleError(example_reason(fault), path=block.name, record=record) from None


@dataclasses.dataclass(frozen=True)
class RecordCounts:
    """Statistics of the records of consecutive surveys. Instances are picklable."""

    records: int = 0
    context: Mapping[str, _core.SeenTuple] = dataclasses.field(default_factory=dict)
    lists: Mapping[str, _core.SeenTuple] = dataclasses.field(default_factory=dict)
    """Statistics of the feature lists of SequenceExamples."""
    error: str = ""
    """Reason why no feature fits them; empty if there is none."""

    @classmethod
    def of(cls, survey: _core.Survey) -> RecordCounts:
        """Return the statistics of a survey."""
        try:
            return cls(survey.records, survey.context(), survey.lists())
        except UnicodeDecodeError as error:
            return cls(survey.records, error=f"the name of a feature is not valid UTF-8: {error}")

    @classmethod
    def join(cls, parts: Iterable[RecordCounts]) -> RecordCounts:
        """Return the statistics of all records of consecutive parts."""
        context: dict[str, _core.SeenTuple] = {}
        lists: dict[str, _core.SeenTuple] = {}
        records, reason = 0, ""
        for part in parts:
            reason = reason or part.error
            # A step without a list has no values. A key without a list does not count: its number
            # of values is unknown.
            for known, seen, first in ((context, part.context, 1), (lists, part.lists, 0)):
                for key, each in seen.items():
                    shifted = _shift(each, records)
                    known[key] = _join(known[key], shifted, first) if key in known else shifted
            records += part.records
        return cls(records, context, lists, reason)


def survey_kinds(surveys: Sequence[_core.Survey]) -> dict[str, Feature]:
    """Return the features that fit all records of consecutive surveys, by key."""
    return record_kinds(RecordCounts.join(map(RecordCounts.of, surveys)))


def record_kinds(counts: RecordCounts) -> dict[str, Feature]:
    """Return the features that fit all records, by key."""
    records, context, lists = counts.records, counts.context, counts.lists
    if records == 0:
        raise FeatureError("there are no records to infer features from", remedy="declare them")
    if counts.error:
        raise FeatureError(counts.error)
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
    return integer_limits(np.asarray(column))


def join_ranges(*ranges: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest range that contains all ranges."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)
