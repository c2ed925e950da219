"""What single values look like, and what fits several of them.

Finding the features that fit all examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.schema.arrays import SparseArray
from covey.schema.codec import count_rows
from covey.schema.columns import NUMBERS, Shape, as_array
from covey.schema.structures import Ragged, Sparse
from covey.schema.types import Feature, Tensor

# Arrays of these are stored as their memory: a list would take two to ten times the space.
_RAW_IN_ARRAYS = ("int8", "uint8", "int16", "uint16", "float16", "float64")


# Integers up to here are exact in float32.
_EXACT = 1 << 24


@dataclass(slots=True)
class Guess:
    """What one name has been so far, and the first example that made it so."""

    example: int
    dtype: str | None  # None as long as only empty lists were seen
    shape: Shape = ()
    depth: int = 0  # levels of lists of different lengths, 0 for a tensor
    sparse: bool = False
    array: bool = False  # whether any value was an array rather than Python's numbers
    low: int = 0  # the smallest and
    high: int = 0  # the largest integer, if there was any beyond 0

    @property
    def form(self) -> tuple[Any, ...]:
        """All that the feature depends on."""
        return self.dtype, self.shape, self.depth, self.sparse, self.array

    def feature(self) -> Feature:
        dtype = self.dtype or "float32"
        if self.sparse:
            return Sparse(dtype, self.shape)
        if self.depth:
            return Ragged(dtype, self.depth)
        raw = self.array and self.shape and dtype in _RAW_IN_ARRAYS
        if self.shape.count(None) > 1:
            raw = True
        return Tensor(dtype, self.shape, encoding="bytes" if raw else None)


def guess_value(value: Any, number: int) -> Guess:
    """What one value looks like, of the example with this number."""
    if isinstance(value, SparseArray):
        return Guess(number, dtype_of(value.values), value.shape, sparse=True, array=True)
    if isinstance(value, str):
        return Guess(number, "str")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Guess(number, "bytes")
    if value is None:
        raise FeatureError("the value is None; leave the name out, and give a default")
    if isinstance(value, (list, tuple)):
        return _guess_list(value, number)
    array = as_array(value)
    if isinstance(value, (bool, int, float)):
        low, high = integer_limits(array)
        return Guess(number, _python_dtype([value], array), low=low, high=high)
    low, high = integer_limits(array)
    return Guess(number, dtype_of(array), array.shape, array=True, low=low, high=high)


def _guess_list(value: list[Any] | tuple[Any, ...], number: int) -> Guess:
    """Python's lists: of numbers or strings, nested or not, or of arrays."""
    if value and all(isinstance(each, np.ndarray) and each.ndim for each in value):
        if len({each.shape for each in value}) == 1:
            return guess_value(np.stack(value), number)
        if any(each.ndim != 1 for each in value):
            raise FeatureError("a list has arrays of different shapes")
        flat = np.concatenate(value)
        if flat.dtype == np.float64:
            raise FeatureError("a ragged list of float64 cannot be stored; make them float32")
        return Guess(number, dtype_of(flat), depth=2)
    depth = 0
    lengths: list[int | None] = []
    level: list[Any] = [value]
    while level and all(isinstance(each, (list, tuple)) for each in level):
        depth += 1
        if depth > 16:
            raise FeatureError("lists are nested over 16 levels deep")
        sizes = {len(each) for each in level}
        lengths.append(sizes.pop() if len(sizes) == 1 else None)
        level = [item for each in level for item in each]
    if any(isinstance(each, (list, tuple, np.ndarray)) for each in level):
        raise FeatureError("lists and single values are mixed at one level")
    array = np.zeros(0) if not level else _leaf_array(level)
    dtype = _python_dtype(level, array) if level else None
    low, high = integer_limits(array)
    if None in lengths:
        return Guess(number, dtype, depth=depth, low=low, high=high)
    return Guess(number, dtype, tuple(lengths), low=low, high=high)


def _leaf_array(values: list[Any]) -> NDArray[Any]:
    """Python's values in an array that loses nothing of them."""
    if any(isinstance(value, (str, bytes)) for value in values):
        if not all(isinstance(value, (str, bytes)) for value in values):
            raise FeatureError("strings and numbers are mixed in a list")
        return np.array([None] * len(values))  # only their types matter
    array = as_array(values)
    if array.dtype.kind in "fO" and all(isinstance(value, int) for value in values):
        array = np.array(values, object)  # beyond int64: numpy would make them floats
    return array


def _python_dtype(values: list[Any], array: NDArray[Any]) -> str:
    """The dtype of Python's own values: what TensorFlow makes of them, if that holds them."""
    if isinstance(values[0], (str, bytes)):
        return "str" if all(isinstance(value, str) for value in values) else "bytes"
    if array.dtype.kind == "O" and all(isinstance(value, int) for value in values):
        if min(values) < 0 or max(values) >= 2**64:
            raise FeatureError(f"no dtype holds integers from {min(values)} to {max(values)}")
        return "uint64"
    dtype = dtype_of(array)
    if dtype != "float64":
        return dtype
    complete = [value for value in values if isinstance(value, int)]
    return "float64" if any(abs(value) > _EXACT for value in complete) else "float32"


def integer_limits(array: NDArray[Any]) -> tuple[int, int]:
    """The smallest and largest of integers, and 0."""
    if array.size == 0 or array.dtype.kind not in "iuO" or array.flat[0] is None:
        return 0, 0
    if not isinstance(array.flat[0], (int, np.integer)):
        return 0, 0
    return min(0, int(array.min())), max(0, int(array.max()))


def dtype_of(array: NDArray[Any]) -> str:
    """The dtype of a feature that holds an array."""
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


def widen(before: Guess, now: Guess, name: str) -> Guess:
    """What fits both, of a feature with this name."""

    def conflict(what: str, a: object, b: object) -> FeatureError:
        return FeatureError(
            f"example {before.example} has {what} {a}, example {now.example} has {b}; no "
            "feature fits both",
            feature=name,
        )

    low, high = min(before.low, now.low), max(before.high, now.high)
    dtype = _widen_dtype(before.dtype, now.dtype, low, high)
    if dtype is None and before.dtype is not None and now.dtype is not None:
        raise conflict("dtype", before.dtype, now.dtype)
    if before.sparse != now.sparse or (before.sparse and before.shape != now.shape):
        raise conflict("shape", before.shape, now.shape)
    array = before.array or now.array
    levels = [guess.depth or len(guess.shape) for guess in (before, now)]
    depth = max(levels) if before.depth or now.depth else 0
    shape: Shape = ()
    if depth:
        # Lists that happen to be regular, or empty, fit a ragged feature of the same depth.
        for guess, own in zip((before, now), levels, strict=True):
            if own != depth and guess.dtype is not None:
                raise conflict("depth", *levels)
    elif len(before.shape) != len(now.shape):
        # An empty list fits wherever there is a list, however deep that goes.
        short, deep = sorted((before, now), key=lambda guess: len(guess.shape))
        if short.dtype is not None or not short.shape:
            raise conflict("shape", before.shape, now.shape)
        common = zip(short.shape, deep.shape, strict=False)
        shape = (*(a if a == b else None for a, b in common), *deep.shape[len(short.shape) :])
    else:
        shape = tuple(a if a == b else None for a, b in zip(before.shape, now.shape, strict=True))
    if None in shape:
        shape = tuple(size or None for size in shape)  # no 0 beside an unknown: it is unknown too
        if shape.count(None) > 1 and not array:
            depth, shape = len(shape), ()  # Python lists: ragged
    changed = (dtype, shape, depth) != (before.dtype, before.shape, before.depth)
    example = now.example if changed else before.example
    return Guess(example, dtype, shape, depth, before.sparse, array, low, high)


def _widen_dtype(a: str | None, b: str | None, low: int, high: int) -> str | None:
    """The dtype that holds both, whose integers lie from low to high; None if there is none."""
    if low < 0 and high >= 2**63:
        return None  # no dtype has both, whatever else there is
    if a is None or b is None or a == b:
        return a or b
    if {a, b} == {"str", "bytes"}:
        return "bytes"
    if "str" in (a, b) or "bytes" in (a, b):
        return None
    kinds = {np.dtype(a).kind, np.dtype(b).kind}
    if "f" in kinds and len(kinds) > 1:
        # Integers beside Python's floats, which are float32 as long as that holds them.
        exact = low >= -_EXACT and high <= _EXACT
        return "float32" if exact and "float64" not in (a, b) else "float64"
    if "uint64" in (a, b) and kinds == {"i", "u"}:
        return "uint64" if low >= 0 else None
    return str(np.promote_types(a, b).name)


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
                f"example {number} is of type {type(example).__name__}; must be a dict of values"
            )
        for path, value in leaves(example):
            self._look_at(path, value, number)
        self._next += 1
        self._count += 1

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
                    "the previous examples do not have it; give it a default, or declare the "
                    "features",
                    feature=name,
                )
            first = self._guesses[path].example
            raise FeatureError(
                f"it is missing, but example {first} has it; give it a default", feature=name
            )

    def add_column(self, path: tuple[str, ...], column: Any) -> None:
        """Look at all values of one feature at once."""
        self._count = max(self._count, len(column))
        if isinstance(column, np.ndarray) and column.dtype != object:
            low, high = integer_limits(column)
            try:
                dtype = dtype_of(column)
            except FeatureError as error:
                raise FeatureError(f"{error}", feature="/".join(path)) from None
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
            error.example, error.feature = number, name
            raise
        self._set(path, self._wider(path, guess), 1)

    def pass_over(self, count: int) -> None:
        """Count examples that have all features with exactly the inferred types."""
        for path in self._seen:
            self._seen[path] += count
        self._next += count
        self._count += count

    def merge(
        self, other: Inference, integers: Callable[[str], tuple[int, int]] | None = None
    ) -> bool:
        """Add the result of another inference over the examples that follow.

        Args:
            other: The other inference.
            integers: Function that returns the smallest and the largest integer of a feature in
                the examples counted by :meth:`pass_over`. Called only if the type depends on it.

        Returns:
            Whether the features have changed.
        """
        # All or nothing: the caller may catch the error and continue without the other.
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
        """Return the type that fits the values so far and another one."""
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
                    f"example {guess.example} has it, but only {self._seen[path]} of "
                    f"{self._count} examples do; give it a default",
                    feature=name,
                )
            place = nested
            for parent in path[:-1]:
                place = place.setdefault(parent, {})
            try:
                place[path[-1]] = self._feature(guess, name)
            except FeatureError as error:
                raise FeatureError(f"{error}", feature=name) from None
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
                "no example has it, so its type is unknown; declare it, or remove its default",
                feature=unseen[0],
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
            raise FeatureError(f"the name of a feature is {key!r}; must be a string")
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
                    f"example {other.example} has a value, example {guess.example} has a dict",
                    feature="/".join(path[:i]),
                )
