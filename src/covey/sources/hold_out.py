"""Division of a source into two parts, by examples or by classes.

The side of an example is decided by the hash of its key or of its class name. It is the same in
every run and on every machine, and does not depend on the other examples of the source.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import CoveyError, DatasetError, FeatureError
from covey.labels import is_string
from covey.schema import ClassLabel, Features
from covey.schema.infer import Inference, integer_range, join_ranges
from covey.shuffle.keys import Key, hash_keys
from covey.sources.source import Item, LazyItems, Source, list_names, source_error
from covey.urls import shown

# Differs from any common seed, so that the sides are independent of the shuffled order.
_SALT = int.from_bytes(b"held out", "little")

_CHUNK = 4096

KeyAndClass = tuple[Key, Any] | None
"""Key and class of an example; None for an item that cannot be read."""


@dataclass(frozen=True, eq=False)
class HeldOutPart(Source):
    """One of the two parts of a source."""

    chosen: NDArray[np.bool_] = field(kw_only=True, repr=False)
    """Mask of the items of the source that are in this part."""

    def position(self, item: int) -> int:
        """Return the position in the source of an item of this part."""
        return int(np.flatnonzero(self.chosen)[item])


def hold_out(
    source: Source,
    *,
    fraction: float | None = None,
    classes: int | None = None,
    class_fraction: float | None = None,
    key: str | None = None,
    label: str | None = None,
    seed: int = 0,
    infer: bool = True,
    defaults: Mapping[str, Any] | None = None,
    on_error: str = "raise",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[HeldOutPart, HeldOutPart]:
    """Divide a source into the part that remains and the part that is held out.

    The keys and classes of all examples are read once. Unreadable items remain. Exactly one of
    `fraction`, `classes` and `class_fraction` must be given.

    Args:
        source: Source to divide.
        fraction: Approximate fraction of the examples to hold out: those whose key has a hash below
            it. The examples held out for 0.1 are also held out for 0.2.
        classes: Number of classes to hold out: those with the lowest hashes.
        class_fraction: Approximate fraction of the classes to hold out. Unlabelled examples
            (class -1) remain.
        key: Feature that is the key of an example (default: its key or position in the source).
        label: Label feature (default: that of the source).
        seed: Seed of the hash.
        infer: Whether to infer the features of a source without a schema, from all its examples, so
            that both parts have the same features.
        defaults: Values of features that inferred examples lack.
        on_error: ``"skip"`` keeps unreadable items for the writer to skip; ``"raise"`` raises.
        progress: Function that is called with the number of examples read, and 0 bytes.

    Returns:
        The part that remains and the part that is held out. Neither is empty.

    >>> glyphs = Source("list", "glyphs", [(n, {"label": "abc"[n % 3]}) for n in range(30)])
    >>> remaining, held_out = hold_out(glyphs, classes=1, label="label")
    >>> sorted({example["label"] for _, example in remaining.examples})
    ['a', 'c']
    >>> len(held_out.examples), held_out.features["label"].names
    (10, ('a', 'b', 'c'))
    """
    sizes = {"fraction": fraction, "classes": classes, "class_fraction": class_fraction}
    given = [name for name, value in sizes.items() if value is not None]
    if len(given) != 1:
        raise DatasetError(
            f"{' and '.join(given) or 'nothing'} given; must be one of {', '.join(sizes)}"
        )
    option = given[0]
    size: Any = sizes[option]
    if option != "classes" and not 0 < size < 1:
        raise DatasetError(option=option, found=size, allowed="between 0 and 1")
    label = source.label if label is None else label
    if fraction is None and label is None:
        raise DatasetError("no label feature is known", path=shown(source.path), option="label")
    infers = infer and source.features is None and source.columns is None
    schema = _Schema(label, defaults or {}, on_error) if infers else None
    found = _keys_and_classes(source, key, label, schema, on_error == "skip")
    chunks = _chunks(found, schema, progress)
    if fraction is not None:
        held_out = _by_key(chunks, fraction, seed)
    else:
        held_out = _by_class(chunks, option, size, seed, source.path)
    total, count = len(held_out), int(held_out.sum())
    if count in (0, total):
        raise DatasetError(
            f"{count:,} of {total:,} examples would be held out; both parts must have examples",
            path=shown(source.path),
            option=option,
            found=size,
        )
    features = source.features if schema is None else schema.features()
    return _part(source, ~held_out, features, label), _part(source, held_out, features, label)


# The side of every item.


def _hashes(keys: Sequence[Key], seed: int) -> NDArray[np.uint64]:
    return hash_keys(keys, _SALT + seed)[0]


def _threshold(fraction: float) -> np.uint64:
    return np.uint64(int(fraction * 2.0**64))


def _by_key(chunks: Iterable[list[KeyAndClass]], fraction: float, seed: int) -> NDArray[np.bool_]:
    masks = [np.zeros(0, bool)]
    for chunk in chunks:
        mask = np.array([each is not None for each in chunk])
        keys = [each[0] for each in chunk if each is not None]
        mask[mask] = _hashes(keys, seed) < _threshold(fraction)
        masks.append(mask)
    return np.concatenate(masks)


def _by_class(
    chunks: Iterable[list[KeyAndClass]], option: str, size: float, seed: int, path: str
) -> NDArray[np.bool_]:
    ids: dict[Any, int] = {}
    classes = array("q")
    for chunk in chunks:
        for each in chunk:
            known = each is not None and each[1] is not None
            classes.append(ids.setdefault(each[1], len(ids)) if known else -1)  # type: ignore[index]
    hashes = _hashes(list(ids), seed)
    # The last element, at index -1, is that of items without a class.
    low = np.zeros(len(ids) + 1, bool)
    if option == "classes":
        low[np.argsort(hashes, kind="stable")[: max(0, int(size))]] = True
    else:
        low[:-1] = hashes < _threshold(size)
    if not 0 < int(low.sum()) < len(ids):
        raise DatasetError(
            f"{int(low.sum()):,} of {len(ids):,} classes would be held out; both parts must have "
            "classes",
            path=shown(path),
            option=option,
            found=size,
        )
    return low[np.frombuffer(classes, np.int64)]


# The pass over keys and classes.


def _chunks(
    found: Iterator[KeyAndClass],
    schema: _Schema | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[list[KeyAndClass]]:
    while chunk := list(islice(found, _CHUNK)):
        if schema is not None:
            schema.flush()
        if progress is not None:
            progress(len(chunk), 0)
        yield chunk


def _keys_and_classes(
    source: Source, key: str | None, label: str | None, schema: _Schema | None, skips: bool
) -> Iterator[KeyAndClass]:
    kind = None if source.features is None or label is None else source.features.get(label)
    items: Any = source.examples
    if source.columns is not None:
        rows = source.length or 0
        keys = range(rows) if key is None else _find(source.columns, key)
        labels = [None] * rows if label is None else _find(source.columns, label)
        for each, value in zip(_as_list(keys), _as_list(labels), strict=True):
            yield each, _class_of(value, kind)
        return
    if hasattr(items, "peek") and key is None and schema is None:
        for peeked in map(items.peek, range(len(items))):
            yield None if peeked is None else (peeked[0], _class_of(peeked[1], kind))
        return
    for position, item in enumerate(items):
        try:
            if isinstance(item, CoveyError):
                raise item
            own_key, example = item if isinstance(item, tuple) else (position, item)
            try:
                found = own_key if key is None else _as_scalar(_find(example, key))
                value = None if label is None else _class_of(_find(example, label), kind)
            except FeatureError as error:
                error.example = position
                raise
            if schema is not None:
                schema.add(example, position, value)
            yield found, value
        except CoveyError:
            if not skips:
                raise
            yield None


def _find(values: Mapping[str, Any], name: str) -> Any:
    """Return the value or column of a feature, by its name or path ``a/b``."""
    found: Any = values
    for part in [name] if name in values else name.split("/"):
        if not isinstance(found, Mapping) or part not in found:
            raise FeatureError(f"is missing; there are {list_names(values)}", feature=name)
        found = found[part]
    return found


def _as_list(column: Any) -> Any:
    return column.tolist() if isinstance(column, np.ndarray) else column


def _as_scalar(value: Any) -> Any:
    is_scalar = isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0
    return value.item() if is_scalar else value


def _class_of(label: Any, kind: Any) -> Any:
    """Return the name of a class, or its id if it has no name; None if unlabelled."""
    label = _as_scalar(label)
    if isinstance(label, (bytes, bytearray)):
        return bytes(label).decode(errors="backslashreplace")
    if isinstance(kind, ClassLabel) and isinstance(label, int):
        if label < 0:
            return None
        if kind.names is not None and label < len(kind.names):
            return kind.names[label]
    return label


class _Schema:
    """The features of all examples of a source.

    Args:
        label: Label feature; a string becomes a ClassLabel of all class names.
        defaults: Values of features that examples lack.
        on_error: ``"skip"`` ignores examples that do not match the others.
    """

    def __init__(self, label: str | None, defaults: Mapping[str, Any], on_error: str) -> None:
        self._label = label
        self._defaults = defaults
        self._skips = on_error == "skip"
        self._inference = Inference(defaults)
        self._known: Features | None = None
        self._pending: list[tuple[Mapping[str, Any], int]] = []
        self._ranges: dict[str, tuple[int, int]] = {}
        self._names: set[str] = set()

    def add(self, example: Mapping[str, Any], position: int, name: Any) -> None:
        """Add an example with its class."""
        self._pending.append((example, position))
        if isinstance(name, str):
            self._names.add(name)

    def flush(self) -> None:
        """Process the examples added since the last call.

        Examples that the known features encode exactly are only encoded, which is native.
        """
        pending, self._pending = self._pending, []
        if not pending or self._matches(pending):
            return
        try:
            self._infer(pending)
        except FeatureError:
            if not self._skips:
                raise
            for each in pending:
                with suppress(FeatureError):
                    self._infer([each])
        with suppress(FeatureError):  # a missing feature is reported by features()
            self._known = Features(self._inference.kinds())

    def _matches(self, examples: Sequence[tuple[Mapping[str, Any], int]]) -> bool:
        known = self._known
        if known is None or not known.is_simple:
            return False
        buffer = known.begin_block()
        try:
            for example, _ in examples:
                buffer.append_exact(example)
        except FeatureError:
            return False
        block = buffer.take()
        self._inference.add_exact(len(block))
        for name in known:  # floats that store large integers must be float64
            found = integer_range(known, block, name)
            self._ranges[name] = join_ranges(self._ranges.get(name, (0, 0)), found)
        return True

    def _infer(self, examples: Sequence[tuple[Mapping[str, Any], int]]) -> None:
        found = Inference(self._defaults)
        for example, position in examples:
            found.add(example, position)
        self._inference.merge(found, lambda name: self._ranges.get(name, (0, 0)))

    def features(self) -> Features:
        """Return the features of all examples."""
        features = Features(self._inference.finish())
        label = self._label
        if label is not None and label in features and is_string(features[label]):
            return features.replace({label: ClassLabel(names=tuple(sorted(self._names)))})
        return features


# The parts.


def _part(
    source: Source, chosen: NDArray[np.bool_], features: Features | None, label: str | None
) -> HeldOutPart:
    items: Any = source.examples
    if hasattr(items, "__getitem__") and hasattr(items, "__len__"):
        items = _ChosenItems(items, np.flatnonzero(chosen))
    else:
        items = _FilteredItems(items, chosen, source.path)
    return HeldOutPart(
        source.kind,
        source.path,
        items,
        length=int(chosen.sum()),
        features=features,
        label=label,
        columns=None if source.columns is None else _rows(source.columns, chosen),
        chosen=chosen,
    )


@dataclass(frozen=True, eq=False)
class _ChosenItems(LazyItems):
    """Some items of a sequence."""

    items: Sequence[Item]
    positions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, position: int) -> Item:
        return self.items[int(self.positions[position])]


@dataclass(frozen=True, eq=False)
class _FilteredItems:
    """Some items of a stream. Every pass reads the whole stream."""

    items: Iterable[Item]
    chosen: NDArray[np.bool_]
    path: str

    def __iter__(self) -> Iterator[Item]:
        count = 0
        for item in self.items:
            if count < len(self.chosen) and self.chosen[count]:
                yield item
            count += 1
        if count != len(self.chosen):
            raise source_error(
                self.path,
                f"has {count:,} examples; it had {len(self.chosen):,} when it was divided",
            )


def _rows(columns: Mapping[str, Any], chosen: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a copy of some rows of columns."""
    rows: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, Mapping):
            rows[name] = _rows(column, chosen)
        else:
            is_array = isinstance(column, np.ndarray)
            rows[name] = column[chosen] if is_array else list(compress(column, chosen))
    return rows
