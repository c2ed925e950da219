"""Examples and columns to records: what the native encoder is given, and what it finds wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from covey import _core
from covey.errors import FeatureError
from covey.features.batches import count_rows
from covey.features.columns import Column
from covey.features.explain import explain_value
from covey.features.kinds import Feature

T = TypeVar("T")


class Encoding:
    """Encodes examples.

    Args:
        kinds: The features.
        columns: Those that each is stored in.
        flatten: Brings an example or columns into flat form, and checks their names.
        is_plain: Whether values are stored as they are, under names that are not nested.
    """

    def __init__(
        self,
        kinds: Mapping[str, Feature],
        columns: Mapping[str, tuple[Column, ...]],
        flatten: Callable[[Mapping[str, Any]], dict[str, Any]],
        is_plain: bool,
    ) -> None:
        for name, (column, *_) in columns.items():
            if column.layout == "steps":
                kinds[name].split(None, ())  # says that they cannot be written
        self.is_plain = is_plain
        self._kinds = kinds
        self._columns = columns
        self._flatten = flatten
        self._physical = [column for parts in columns.values() for column in parts]
        self._owners = [name for name, parts in columns.items() for _ in parts]
        self.encoder = _core.Encoder([column.spec() for column in self._physical])

    def encode(self, example: Mapping[str, Any]) -> bytes:
        """The record of one example."""
        return self.run(self.encoder.encode_example, example, self.coerce)

    def run(self, encode: Callable[..., T], example: Mapping[str, Any], coerce: Any) -> T:
        """Let an example be encoded, in the form that the native encoder takes."""
        plain = self.is_plain and type(example) is dict
        try:
            return encode(example if plain else self._split(example), coerce)
        except _core.Fault as fault:
            reason = fault
        try:
            if reason.args[0] == "extra":
                # Says which name is too much, unless there is nothing behind it.
                return encode(self._split(example), coerce)
        except _core.Fault as fault:
            reason = fault
        raise explain_value(reason, self._physical, self._owners)

    def coerce(self, index: int, value: Any) -> Any:
        """A value as the column at an index takes it."""
        try:
            return self._physical[index].coerce(value)
        except FeatureError as error:
            raise _about(self._owners[index], error) from None

    def _split(self, example: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in self._flatten(example).items():
            columns = self._columns[name]
            if value is None and not columns[0].required:
                continue
            try:
                parts = self._kinds[name].split(value, columns)
            except FeatureError as error:
                raise _about(name, error) from None
            values.update(zip((column.key for column in columns), parts, strict=True))
        return values

    def check_columns(self, columns: Mapping[str, Any]) -> tuple[_core.ColumnSet, int]:
        """Check columns once: (what the native encoder takes, rows)."""
        flat = self._flatten(columns)
        rows = count_rows(flat)
        given: list[Any] = []
        for name, physical in self._columns.items():
            if name not in flat:
                given.extend(None for _ in physical)
                continue
            try:
                given.extend(self._kinds[name].split_batch(flat[name], rows, physical))
            except FeatureError as error:
                raise _about(name, error) from None
        try:
            return self.encoder.columns(given, rows), rows
        except _core.Fault as fault:
            raise explain_value(fault, self._physical, self._owners) from None


def _about(name: str, error: FeatureError) -> FeatureError:
    return FeatureError(f"feature {name!r}: {error}")
