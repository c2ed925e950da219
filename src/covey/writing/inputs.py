"""Input of a write: columns, or items one by one; :mod:`covey.writing.input_types` returns it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covey.errors import CoveyError, DatasetError, DuplicateKeyError, FeatureError, SourceError
from covey.schema import ClassLabel, Features, Tensor
from covey.schema.lattice import with_dtype
from covey.shuffle.keys import Key, duplicate_error
from covey.writing.options import WriteOptions

# Items.


def split_item(item: Any, options: WriteOptions) -> tuple[Mapping[str, Any], Key | None]:
    """Return the example and the key of an item.

    Args:
        item: A dict; a pair of a key and a dict; a tuple, if the options have names for its
            elements; or the error of a source, which is raised.
        options: Options of the write.

    Raises:
        CoveyError: If the item is not an example; ``example`` is not set.
    """
    key: Key | None = None
    if isinstance(item, CoveyError):
        raise item
    is_pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Mapping)
    if is_pair and options.names is None:
        key, item = _check_key(item[0]), item[1]
    if not isinstance(item, Mapping):
        item = _name_elements(item, options.names)
    if options.key is not None:
        value = get_value(item, options.key)
        if value is None:
            raise FeatureError("the key is missing", feature=options.key)
        key = _check_key(value)
    return item, key


def _name_elements(item: Any, names: Sequence[str] | None) -> dict[str, Any]:
    kind = type(item).__name__
    if not isinstance(item, (tuple, list)):
        raise FeatureError(
            f"the item is of type {kind}; must be a dict of values, or a pair of a key and a dict"
        )
    if names is None:
        raise FeatureError(
            f"the item is a {kind} of {len(item)} elements",
            remedy="name the elements, as in names=('image', 'label')",
        )
    if len(item) != len(names):
        raise FeatureError(
            f"the item has {len(item)} elements, but there are {len(names)} names: "
            f"{', '.join(names)}"
        )
    return dict(zip(names, item, strict=True))


def get_value(example: Mapping[str, Any], name: str) -> Any:
    """Return the value of a name or path, ``a/b``; None if it does not exist."""
    if name in example:
        return example[name]
    value: Any = example
    for part in name.split("/"):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _check_key(key: Any) -> Key:
    """Return a key as a string, bytes or an integer of Python."""
    if hasattr(key, "item") and getattr(key, "shape", None) == ():
        key = key.item()  # a scalar of numpy or of a framework
    if isinstance(key, str) and not key.isascii():
        try:
            key.encode()
        except UnicodeError:
            raise FeatureError(
                f"the key {key!r} is not valid UTF-8", remedy="convert it to bytes"
            ) from None
    elif isinstance(key, (int, np.integer)):
        if not -(2**63) <= key < 2**63:
            raise FeatureError(f"the key {key} does not fit 64 bits; convert it to a string")
    elif not isinstance(key, (str, bytes)):
        raise FeatureError(
            f"the key {key!r} is of type {type(key).__name__}; must be a string, bytes or an "
            "integer"
        )
    return key  # type: ignore[no-any-return]


def source_failed(example: int, error: Exception) -> SourceError:
    """Return the error for an exception of a source."""
    return SourceError(f"the source failed: {type(error).__name__}: {error}", example=example)


# Input.


@dataclass(frozen=True)
class Input:
    """Examples as columns, or as items."""

    columns: Mapping[str, Any] | None = None
    """Columns, which are used in place of items."""
    items: Iterable[Any] | None = None
    """Dicts, (key, dict) pairs, tuples whose elements need names, or errors of a source."""
    length: int | None = None
    by_index: bool = False
    """Whether ``items[i]`` returns any item, so that several workers can fetch items."""
    features: Features | None = None
    """Features of the source, if it has any."""
    class_names: Mapping[str, tuple[str, ...]] | None = None
    """Class names of integer features of the source, by feature."""
    label: str | None = None
    """Label feature of the source."""
    path: str | None = None
    """Path of the source, for errors."""
    label_hint: str = ""
    """What to do if the source lacks a label, for the error."""
    adds_classes: bool = False
    """Whether the label is a string in ``features`` because several splits have other classes."""
    sources: tuple[Input, ...] = ()
    """Inputs that follow each other, which are used in place of items."""
    number: int | None = None
    """Number of the input among several sources."""
    key_prefix: str = ""
    """Name of the source among several sources, which precedes its keys."""
    repeats: bool = False
    """Whether it is known that each call of a function, or each iteration, yields all items."""

    @property
    def parts(self) -> tuple[Input, ...]:
        """The inputs that follow each other; this one, if there is only one."""
        return self.sources or (self,)

    @property
    def first(self) -> int:
        """Position of the first example."""
        return (self.number or 0) << SOURCE_BITS

    def locate(self, position: int) -> tuple[str | None, int]:
        """Return the path of the source of an example, and its position in that source."""
        found = next((each for each in self.sources if each.first <= position < each.end), self)
        return found.path, position - found.first

    @property
    def end(self) -> int:
        """Position after all examples that the input can have."""
        return self.first + (1 << SOURCE_BITS)

    @property
    def is_repeatable(self) -> bool:
        """Whether the items can be read more than once, as far as is known; see :meth:`probe`."""
        is_list = isinstance(self.items, (list, tuple))
        return self.repeats or is_list or self.by_index or hasattr(self.items, "read_range")

    def probe(self) -> Input:
        """Return the input with :attr:`is_repeatable`, for which a function is called.

        The list that a function returns takes the place of the function, unless it is one of
        several: these are read one after the other, so that their lists are not held together.
        """
        items: Any = self.items
        if self.sources:
            return replace(self, sources=tuple(each.probe() for each in self.sources))
        if items is None or hasattr(items, "__next__") or self.is_repeatable:
            return self
        with located(self):
            try:
                first = items() if callable(items) else iter(items)
                if isinstance(first, (list, tuple)):
                    kept = first if self.number is None else items
                    return replace(self, items=kept, length=len(first), repeats=True)
                second = items() if callable(items) else iter(items)
            except CoveyError:
                raise
            except Exception as error:
                raise source_failed(0, error) from error
        return replace(self, repeats=first is not second)

    @property
    def can_be_divided(self) -> bool:
        """Whether several readers can each read a range of the examples."""
        is_list = isinstance(self.items, (list, tuple))
        has_ranges = self.by_index or hasattr(self.items, "read_range")
        return self.length is not None and (is_list or has_ranges)

    def read(self, begin: int = 0, end: int | None = None) -> Iterable[Any]:
        """Return the items of a range; all items by default."""
        items: Any = self.items
        if items is None:
            found: Iterable[Any] = ()
        elif begin == 0 and end in (None, self.length) and not self.by_index:
            found = items() if callable(items) else items
        elif isinstance(items, (list, tuple)):
            found = items[begin:end]
        elif hasattr(items, "read_range"):
            found = items.read_range(begin, self.length if end is None else end)
        elif self.by_index:
            found = fetch(items, range(begin, (self.length or 0) if end is None else end))
        else:
            found = itertools.islice(items() if callable(items) else items, begin, end)
        return found if self.number is None else self._keyed(found, begin)

    def _keyed(self, items: Iterable[Any], begin: int) -> Iterator[Any]:
        """Yield items with keys that are unique among several sources."""
        prefix = self.key_prefix
        for position, item in enumerate(items, begin):
            if type(item) is tuple and len(item) == 2 and isinstance(item[1], (dict, Mapping)):
                key, example = item
                if isinstance(key, bytes):
                    key = key.decode(errors="backslashreplace")
                yield (f"{prefix}:{key}", example) if prefix else item
            elif isinstance(item, CoveyError):
                yield item
            else:
                yield f"{self.number}:{position}", item


@contextmanager
def located(examples: Input) -> Iterator[None]:
    """Add the path of the source to errors of its examples, and of a label that it lacks."""
    try:
        yield
    except (SourceError, FeatureError, DatasetError) as error:
        is_own = not isinstance(error, DatasetError) or error.option == "label"
        if error.path is None and is_own:
            error.path = examples.path
        if error.example is not None and error.example >= examples.first:
            error.example -= examples.first
        if error.option == "label" and examples.label_hint:
            error.remedy = f"{error.remedy}, or {examples.label_hint}".removeprefix(", or ")
        raise


def name_key(
    error: DuplicateKeyError, inputs: Sequence[Input], options: WriteOptions
) -> DuplicateKeyError:
    """Return the error of two examples with the same key, with the key if it can be read again."""
    key, path, positions = None, error.path, error.examples
    for each in inputs:
        first, second = (_key_at(each, position, options) for position in positions)
        if first is not None and first == second:
            key, path = first, path or each.locate(positions[0])[0]
            break
    mask = (1 << SOURCE_BITS) - 1
    named = duplicate_error((positions[0] & mask, positions[1] & mask), key)
    named.path, named.task = path, error.task
    return named


def _key_at(examples: Input, position: int, options: WriteOptions) -> Key | None:
    """Return the key of an example, which is read again; None if that is not possible."""
    for part in examples.parts:
        offset = position - part.first
        if part.first <= position < part.end and not hasattr(part.items, "__next__"):
            with contextlib.suppress(Exception):  # errors of any type from the source
                if part.columns is not None and options.key is not None:
                    return _check_key(get_value(part.columns, options.key)[offset])
                for item in part.read(offset, offset + 1):
                    return split_item(item, options)[1]
    return None


SOURCE_BITS = 40
"""Bits of a position in one of several sources; the number of the source precedes them."""


def fetch(source: Any, indices: range) -> Iterator[Any]:
    """Yield items by index, and an error in place of each that cannot be fetched."""
    for index in indices:
        try:
            item = source[index]
        except CoveyError as error:
            item = error
        except Exception as error:
            item = source_failed(index, error)
        yield item


def declare_types(
    examples: Input,
    features: Features | None,
    types: Mapping[str, str],
    defaults: Mapping[str, Any],
) -> Input:
    """Return an input whose values have declared types and defaults.

    Args:
        examples: The input.
        features: Features of the examples, if all are declared.
        types: Dtypes of some of them, otherwise.
        defaults: Values of missing features.

    Raises:
        FeatureError: If the input has features, and one that is declared is not among them.
    """
    items: Any = examples.items
    optional = {*defaults} if features is None else {*features.optional}
    found: Mapping[str, str] = {}
    if hasattr(items, "declare"):
        items, found = items.declare(
            types if features is None else single_types(features), optional
        )
    known = examples.features
    if known is not None and features is None:
        known = with_types(known, {**found, **types}).with_defaults(defaults)
    return replace(examples, items=items, features=known)


def single_types(features: Features) -> dict[str, str]:
    """Return the dtypes of features that are single numbers or strings."""
    return {
        name: kind.dtype
        for name, kind in features.items()
        if type(kind) is Tensor and not kind.shape
    }


def with_types(features: Features, types: Mapping[str, str]) -> Features:
    """Return features with other dtypes."""
    kinds = features.select(types)
    return features.replace({name: with_dtype(kinds[name], types[name]) for name in types})


def name_classes(features: Features, names: Mapping[str, tuple[str, ...]] | None) -> Features:
    """Return features in which integers with class names are class labels."""
    known = {
        name: ClassLabel(names=classes)
        for name, classes in (names or {}).items()
        if name in features
    }
    return features.replace(known) if known else features
