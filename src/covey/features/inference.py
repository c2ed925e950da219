"""Finding the features that fit all examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from covey.errors import FeatureError
from covey.features.batches import count_rows
from covey.features.columns import NUMBERS
from covey.features.guesses import Guess, dtype_of, guess_value, integer_limits, widen


class Inference:
    """Finds the features that fit all examples, which may come in parts.

    Args:
        defaults: What examples get that lack a feature, by its name; others must not lack it.
        first: The number of the first example, for messages.
    """

    def __init__(self, defaults: Mapping[str, Any] | None = None, first: int = 0) -> None:
        self.defaults = defaults or {}
        self._next = first
        self._count = 0
        self._guesses: dict[tuple[str, ...], Guess] = {}
        self._seen: dict[tuple[str, ...], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no feature was found yet."""
        return not self._guesses

    def add(self, example: Mapping[str, Any], number: int | None = None) -> None:
        """Look at one more example; its number is only for messages."""
        number = self._next if number is None else number
        if not isinstance(example, Mapping):
            raise FeatureError(
                f"example {number} is of type {type(example).__name__}, must be a dict of values"
            )
        for path, value in leaves(example):
            self._look_at(path, value, number)
        self._next += 1
        self._count += 1

    def has_names_of(self, other: Inference) -> bool:
        """Whether another has found the same features, but for those with defaults."""
        return all(
            "/".join(path) in self.defaults for path in self._guesses.keys() ^ other._guesses.keys()
        )

    def check_names(self, example: Mapping[str, Any]) -> None:
        """Make sure that an example has the same features as those before it, but for defaults.

        Raises:
            FeatureError: Saying which is missing, or too much; it does not name the example.
        """
        if not self._guesses:
            return
        names = {path for path, _ in leaves(example)}
        for path in (*self._guesses, *names):
            name = "/".join(path)
            if name in self.defaults or (path in names) == (path in self._guesses):
                continue
            if path in names:
                raise FeatureError(
                    f"feature {name!r}: it has one, which the examples before it have not; give it "
                    "a default, or declare the features"
                )
            first = self._guesses[path].example
            raise FeatureError(
                f"feature {name!r}: it is missing, but example {first} has it; give it a default"
            )

    def add_column(self, path: tuple[str, ...], column: Any) -> None:
        """Look at all values of one feature at once."""
        self._count = max(self._count, len(column))
        if isinstance(column, np.ndarray) and column.dtype != object:
            low, high = integer_limits(column)
            try:
                dtype = dtype_of(column)
            except FeatureError as error:
                raise FeatureError(f"feature {'/'.join(path)!r}: {error}") from None
            guess = Guess(0, dtype, column.shape[1:], array=True, low=low, high=high)
            self._set(path, self._wider(path, guess), len(column))
            return
        for number, value in enumerate(column):
            self._look_at(path, value, number)

    def _look_at(self, path: tuple[str, ...], value: Any, number: int) -> None:
        name = "/".join(path)
        if value is None and name in self.defaults:
            return
        try:
            guess = guess_value(value, number)
        except FeatureError as error:
            raise FeatureError(f"example {number}: feature {name!r}: {error}") from None
        self._set(path, self._wider(path, guess), 1)

    def pass_over(self, count: int) -> None:
        """So many examples more have all features, and fit them exactly."""
        for path in self._seen:
            self._seen[path] += count
        self._next += count
        self._count += count

    def merge(
        self, other: Inference, integers: Callable[[str], tuple[int, int]] | None = None
    ) -> bool:
        """Add what another found in the examples that follow.

        Args:
            other: The other.
            integers: Tells the smallest and the largest integer of a feature in the examples that
                were passed over. Asked only where the type depends on it.

        Returns:
            Whether the features are others now.
        """
        # All or nothing: who merges may catch the error, and go on without the other.
        found = {path: self._wider(path, guess, integers) for path, guess in other._guesses.items()}
        changed = False
        for path, guess in found.items():
            before = self._guesses.get(path)
            changed |= before is None or before.form != guess.form
            self._set(path, guess, other._seen[path])
        self._next += other._count
        self._count += other._count
        return changed

    def _wider(
        self,
        path: tuple[str, ...],
        guess: Guess,
        integers: Callable[[str], tuple[int, int]] | None = None,
    ) -> Guess:
        """What fits the values so far, and another one."""
        before = self._guesses.get(path)
        if before is None:
            return guess
        name = "/".join(path)
        if integers is not None and before.dtype != guess.dtype and before.dtype in NUMBERS:
            low, high = integers(name)
            low, high = min(low, before.low), max(high, before.high)
            before = dataclasses.replace(before, low=low, high=high)
        return widen(before, guess, name)

    def _set(self, path: tuple[str, ...], guess: Guess, seen: int) -> None:
        self._guesses[path] = guess
        self._seen[path] = self._seen.get(path, 0) + seen

    def kinds(self) -> dict[str, Any]:
        """The kinds that fit all examples so far, nested as they are."""
        if not self._count:
            raise FeatureError("there are no examples to infer features from; declare them")
        _check_nesting(self._guesses)
        nested: dict[str, Any] = {}
        for path, guess in self._guesses.items():
            name = "/".join(path)
            if self._seen[path] < self._count and name not in self.defaults:
                raise FeatureError(
                    f"feature {name!r}: example {guess.example} has it, but only "
                    f"{self._seen[path]} of {self._count} examples do; give it a default"
                )
            place = nested
            for parent in path[:-1]:
                place = place.setdefault(parent, {})
            try:
                place[path[-1]] = self._feature(guess, name)
            except FeatureError as error:
                raise FeatureError(f"feature {name!r}: {error}") from None
        return nested

    def _feature(self, guess: Guess, name: str) -> Any:
        """The feature that fits the values, and the default if there is one."""
        if name not in self.defaults:
            return guess.feature()
        default = self.defaults[name]
        try:
            both = widen(guess, guess_value(default, guess.example), name)
        except FeatureError:
            raise FeatureError(
                f"the default is {default!r}, but example {guess.example} has {guess.feature()}; "
                "no feature fits both"
            ) from None
        feature: Any = both.feature()
        return dataclasses.replace(feature, default=default)

    def finish(self) -> dict[str, Any]:
        """The kinds that fit all examples, of which there are no more.

        Raises:
            FeatureError: If nothing tells the type of a feature that has a default.
        """
        unseen = [name for name in self.defaults if tuple(name.split("/")) not in self._guesses]
        kinds = self.kinds()
        if unseen:
            raise FeatureError(
                f"no example has {unseen[0]!r}, for which there is a default; declare it"
            )
        return kinds


def infer_kinds(
    examples: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The kinds that fit all examples, nested as they are."""
    inference = Inference(defaults)
    for example in examples:
        inference.add(example)
    return inference.finish()


def infer_column_kinds(columns: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The kinds that fit all rows of columns, nested as they are."""
    inference = Inference(defaults)
    for path, column in leaves(columns):
        count_rows({"/".join(path): column})
        inference.add_column(path, column)
    return inference.finish()


def leaves(
    example: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterable[tuple[tuple[str, ...], Any]]:
    """The values of nested dicts, each with its path."""
    if len(path) > 32:
        raise FeatureError("examples are nested over 32 levels deep")
    for key, value in example.items():
        if not isinstance(key, str):
            raise FeatureError(f"the name of a feature is {key!r}, must be a text")
        here = (*path, key)
        if isinstance(value, Mapping):
            yield from leaves(value, here)
        else:
            yield here, value


def _check_nesting(guesses: Mapping[tuple[str, ...], Guess]) -> None:
    for path, guess in guesses.items():
        for i in range(1, len(path)):
            other = guesses.get(path[:i])
            if other is not None:
                raise FeatureError(
                    f"feature {'/'.join(path[:i])!r}: example {other.example} has a value, "
                    f"example {guess.example} a dict"
                )
