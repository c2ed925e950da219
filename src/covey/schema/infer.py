"""Inference of a schema from examples, from columns, or from records of another program.

A record has less information than an example: the values are int64, float32 or bytes, and their
number is known. A native survey collects it; the surveys of several shards are combined here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from covey import _core
from covey.errors import ExampleError, FeatureError
from covey.schema.codec import count_rows, flat_items, nest
from covey.schema.columns import Shape
from covey.schema.diagnostics import add_feature, example_reason
from covey.schema.images import recorded_image
from covey.schema.lattice import DECIMAL, Seen, look_at, look_at_column, widen
from covey.schema.tensor import Steps, Tensor
from covey.schema.types import Feature
from covey.tfrecord import Block

_DTYPES = {1: "bytes", 2: "float32", 3: "int64"}

Path = tuple[str, ...]


class Inference:
    """Inference of the features that fit all examples, which may be given in parts.

    Args:
        defaults: Values of features that examples may lack, by name.
        types: Declared dtypes of features, by name.
    """

    def __init__(
        self, defaults: Mapping[str, Any] | None = None, types: Mapping[str, str] | None = None
    ) -> None:
        self.defaults = defaults or {}
        self.types = types or {}
        self.count = 0
        """Number of examples."""
        self.found: dict[Path, Seen] = {}
        """What was found of each feature, by its path."""

    @property
    def is_exact(self) -> bool:
        """Whether encoding an example shows if the features would be inferred from it.

        Lists of any length whose dtype is unknown, because all are empty, are encoded as float32:
        a list of integers could be encoded, but is inferred as int64.
        """
        return all(
            not seen.is_empty
            or (isinstance(seen.feature, Tensor) and None not in seen.feature.shape)
            for seen in self.found.values()
        )

    def add(self, example: Mapping[str, Any], position: int | None = None) -> None:
        """Add an example; its position (by default the number of examples) is for messages."""
        position = self.count if position is None else position
        if not isinstance(example, Mapping):
            raise FeatureError(
                f"example {position} is of type {type(example).__name__}; must be a dict of values"
            )
        for path, value in flat_items(example):
            self._add_value(path, value, position)
        self.count += 1

    def add_column(self, path: Path, column: Any) -> None:
        """Add the values of one feature in all examples."""
        self.count = max(self.count, len(column))
        try:
            seen = look_at_column(column)
        except FeatureError as error:
            raise add_feature(error, "/".join(path)) from None
        if seen is not None:
            self.found[path] = self._widened(path, seen)
            return
        for position, value in enumerate(column):
            self._add_value(path, value, position)

    def _add_value(self, path: Path, value: Any, position: int) -> None:
        name = "/".join(path)
        if value is None and name in self.defaults:
            return
        try:
            seen = look_at(value, position)
        except FeatureError as error:
            error.example, error.feature = position, name
            raise
        self.found[path] = self._widened(path, seen)

    def check_names(self, example: Mapping[str, Any]) -> None:
        """Check that an example has the features of those before it, except for defaults."""
        if not self.found:
            return
        names = {path for path, _ in flat_items(example)}
        for path in (*self.found, *names):
            name = "/".join(path)
            if name in self.defaults or (path in names) == (path in self.found):
                continue
            if path in names:
                raise FeatureError(
                    "the previous examples do not have it",
                    feature=name,
                    remedy="pass defaults=, or pass features=",
                )
            raise FeatureError(
                f"it is missing, but example {self.found[path].example} has it",
                feature=name,
                remedy="pass defaults=",
            )

    def add_integers(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Add integers of examples that were not added, because they have the inferred types.

        Args:
            ranges: The minimum and the maximum of 0 and the integers of each feature.
        """
        for path, seen in self.found.items():
            low, high = ranges.get("/".join(path), (0, 0))
            if low < seen.low or high > seen.high:
                low, high = min(low, seen.low), max(high, seen.high)
                self.found[path] = dataclasses.replace(seen, low=low, high=high)

    def merge(self, other: Inference) -> bool:
        """Add the result of another inference over the examples that follow.

        Returns:
            Whether the features have changed.
        """
        # All or nothing: the caller may catch the error and continue without the other.
        found = {path: self._widened(path, seen) for path, seen in other.found.items()}
        changed = any(
            path not in self.found or not self.found[path].has_type_of(seen)
            for path, seen in found.items()
        )
        self.found |= found
        self.count += other.count
        return changed

    def _widened(self, path: Path, seen: Seen) -> Seen:
        """Return the feature that fits the values so far and others."""
        before, name = self.found.get(path), "/".join(path)
        try:
            seen = self._declared(seen, name)
            return seen if before is None else widen(before, seen)
        except FeatureError as error:
            raise add_feature(error, name) from None

    def _declared(self, seen: Seen, name: str) -> Seen:
        return seen.with_dtype(self.types[name]) if name in self.types else seen

    def kinds(self, *, is_final: bool = False) -> dict[str, Any]:
        """Return the features that fit all examples so far, nested like the examples.

        Args:
            is_final: Whether all values are known. Otherwise, Python floats that are the same in
                float32 are float64, stored as float32; see :func:`restore_decimals`.
        """
        if not self.count:
            raise FeatureError(
                "there are no examples to infer features from", remedy="declare them"
            )
        for path, seen in self.found.items():
            for outer in (path[:i] for i in range(1, len(path))):
                if outer in self.found:
                    raise FeatureError(
                        f"example {self.found[outer].example} has a value, example "
                        f"{seen.example} has a dict",
                        feature="/".join(outer),
                    )
        kinds: dict[Path, Any] = {}
        for path, seen in self.found.items():
            name = "/".join(path)
            if seen.count < self.count and name not in self.defaults:
                raise FeatureError(
                    f"example {seen.example} has it, but only {seen.count} of {self.count} "
                    "examples do",
                    feature=name,
                    remedy="pass defaults=",
                )
            if name in self.defaults:
                seen = self._with_default(seen, name)
            is_decimal = seen.is_decimal and not is_final and name not in self.types
            feature: Any = DECIMAL if is_decimal else seen.feature
            if name in self.defaults:
                try:
                    feature = dataclasses.replace(feature, default=self.defaults[name])
                except FeatureError as error:
                    raise add_feature(error, name) from None
            kinds[path] = feature
        return nest(kinds)

    def _with_default(self, seen: Seen, name: str) -> Seen:
        """Return the feature that fits the values and the default."""
        default = self.defaults[name]
        try:
            own = look_at(default, seen.example)
            if own.is_decimal and seen.is_array and seen.feature == own.feature:
                # A float of Python has the dtype of numpy floats that hold it.
                own = dataclasses.replace(own, is_array=True)
            return widen(seen, self._declared(own, name))
        except FeatureError:
            raise FeatureError(
                f"the default is {default!r}, but example {seen.example} has {seen.feature}; "
                "no feature fits both",
                feature=name,
            ) from None

    def finish(self) -> dict[str, Any]:
        """Return the features that fit all examples, after the last one.

        Raises:
            FeatureError: If a feature that has a default occurs in no example.
        """
        kinds = self.kinds(is_final=True)
        names = {"/".join(path) for path in self.found}
        for name in (*self.types, *self.defaults):
            if name not in names and name in self.types:
                raise FeatureError(
                    "its type is declared, but no example has it", feature=name, choices=names
                )
            if name not in names:
                raise FeatureError(
                    "no example has it, so its type is unknown",
                    feature=name,
                    remedy="pass features= to declare it, or remove its default",
                )
        return kinds


def infer_column_kinds(
    columns: Mapping[str, Any], defaults: Mapping[str, Any], types: Mapping[str, str] | None = None
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
    found: Mapping[tuple[bool, str], _core.SeenTuple] = dataclasses.field(default_factory=dict)
    """Statistics of each key: of a feature list of SequenceExamples (True), or another."""
    error: str = ""
    """Reason why no feature fits them; empty if there is none."""

    @classmethod
    def of(cls, survey: _core.Survey) -> RecordCounts:
        """Return the statistics of a survey."""
        try:
            kinds = ((False, survey.context()), (True, survey.lists()))
        except UnicodeDecodeError as error:
            return cls(survey.records, error=f"the name of a feature is not valid UTF-8: {error}")
        found = {(is_list, key): seen for is_list, each in kinds for key, seen in each.items()}
        return cls(survey.records, found)

    @classmethod
    def join(cls, parts: Iterable[RecordCounts]) -> RecordCounts:
        """Return the statistics of all records of consecutive parts."""
        found: dict[tuple[bool, str], _core.SeenTuple] = {}
        records, reason = 0, ""
        for part in parts:
            reason = reason or part.error
            for key, (present, by_kind, first, low, high) in part.found.items():
                seen = present, by_kind, tuple(index + records for index in first), low, high
                found[key] = _join(found[key], seen) if key in found else seen
            records += part.records
        return cls(records, found, reason)


def survey_kinds(surveys: Sequence[_core.Survey]) -> dict[str, Feature]:
    """Return the features that fit all records of consecutive surveys, by key."""
    return record_kinds(RecordCounts.join(map(RecordCounts.of, surveys)))


def record_kinds(counts: RecordCounts) -> dict[str, Feature]:
    """Return the features that fit all records, by key."""
    if counts.records == 0:
        raise FeatureError("there are no records to infer features from", remedy="declare them")
    if counts.error:
        raise FeatureError(counts.error)
    features: dict[str, Feature] = {}
    for (is_list, key), (present, by_kind, first, low, high) in sorted(
        counts.found.items(), key=lambda item: item[0][0]
    ):
        kinds = [kind for kind in _DTYPES if by_kind[kind]]
        if len(kinds) > 1:
            a, b = kinds[:2]
            raise FeatureError(
                f"record {first[a]} has {_DTYPES[a]}, record {first[b]} has {_DTYPES[b]}; no "
                "feature fits both",
                feature=key,
            )
        shape: Shape = (None,) if low != high else () if high == 1 else (high,)
        is_everywhere = present == counts.records
        if kinds and is_list:
            steps = Steps(_DTYPES[kinds[0]], shape)
            features[key] = steps if is_everywhere else dataclasses.replace(steps, default=[])
        elif kinds and is_everywhere and not by_kind[0] and low == high:
            image = None if shape else recorded_image(by_kind)
            features[key] = image or Tensor(_DTYPES[kinds[0]], shape)
        elif kinds:
            features[key] = Tensor(_DTYPES[kinds[0]], (None,), default=[])
    return features


def _join(a: _core.SeenTuple, b: _core.SeenTuple) -> _core.SeenTuple:
    """Combine the statistics of consecutive records."""
    by_kind = tuple(x + y for x, y in zip(a[1], b[1], strict=True))
    first = tuple(x if n else y for x, y, n in zip(a[2], b[2], a[1], strict=True))
    return a[0] + b[0], by_kind, first, min(a[3], b[3]), max(a[4], b[4])
