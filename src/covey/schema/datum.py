"""The two files that datum's reader goes by: where records are, and what they hold.

::

    shard_info.json                          {split: {file: records}}, of all splits
    datum_to_type_and_shape_mapping.json     {feature: {"type", "shape", "dense"}}, for all of them

``type`` is int, float or string. A dense feature has one shape in all examples, a sparse one has
any number of values; if it has two or more dimensions, ``<name>_shape`` beside it restores them.
A string with two or three dimensions is an encoded image, grey or in colour.

What datum says of its directories: the shards of every split, and the features of all records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey._files import atomic_write
from covey.errors import DatasetError, FeatureError, FormatError
from covey.filenames import ENTRIES_FILE, SHARD_INFO_FILE
from covey.schema.columns import Shape
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.types import Tensor
from covey.storage import Storage
from covey.untrusted import (
    MAX_FEATURES,
    MAX_SHARDS,
    brief,
    check_name,
    check_path,
    parse_json,
    read_file,
)
from covey.writing.locks import locked

ShardInfo = dict[str, dict[str, int]]

TYPES = ("string", "float", "int")


@dataclass(frozen=True, slots=True)
class DatumEntry:
    """What datum's reader is told of one feature."""

    type: str
    shape: Shape
    dense: bool

    def __post_init__(self) -> None:
        sizes = [size for size in self.shape if size is not None]
        if self.type not in TYPES or not isinstance(self.dense, bool):
            raise ValueError(f"type is {self.type!r} and dense {self.dense!r}")
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"shape is {self.shape}")

    @property
    def is_image(self) -> bool:
        """Whether datum's reader decodes it."""
        return self.type == "string" and len(self.shape) in (2, 3)


def merge_entries(
    known: Mapping[str, DatumEntry], found: Mapping[str, DatumEntry], where: str
) -> dict[str, DatumEntry]:
    """What fits the splits that are there and another one.

    Args:
        known: Of those that are there.
        found: Of the other.
        where: What to call those that are there.

    Raises:
        DatasetError: If nothing does, for there is one file for all.
    """
    merged: dict[str, DatumEntry] = {}
    for name in dict.fromkeys((*known, *found)):
        a, b = known.get(name), found.get(name)
        entry = (a or b) if a is None or b is None else _fit(a, b)
        missing = a is None or b is None
        if entry is None or (missing and entry.dense):
            raise DatasetError(
                f"{where} {'lacks' if a is None else 'has'} feature {name!r}"
                f"{'' if a is None else f' as {_describe(a)}'}, and this split "
                f"{'lacks it' if b is None else f'has it as {_describe(b)}'}; datum's reader knows "
                "one form for all splits of a directory: write another directory, or remove this one"
            )
        merged[name] = entry
    return merged


def common_shape(a: Shape, b: Shape) -> Shape:
    """What fits two shapes of up to one dimension, or of equally many."""
    if len(a) != len(b):
        return (None,)
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def _fit(a: DatumEntry, b: DatumEntry) -> DatumEntry | None:
    if (a.type, a.dense, a.is_image) != (b.type, b.dense, b.is_image):
        return None
    if a == b:
        return a
    if a.is_image:
        return replace(a, shape=(None, None, *max(a.shape[2:], b.shape[2:])))
    if a.dense or (len(a.shape) != len(b.shape) and max(len(a.shape), len(b.shape)) > 1):
        return None
    return replace(a, shape=common_shape(a.shape, b.shape))


def _describe(entry: DatumEntry) -> str:
    return f"{'dense' if entry.dense else 'sparse'} {entry.type} {list(entry.shape)}"


def entries_to_json(entries: Mapping[str, DatumEntry]) -> str:
    """The text of the file."""
    content = {
        name: {"type": entry.type, "shape": list(entry.shape), "dense": entry.dense}
        for name, entry in entries.items()
    }
    return json.dumps(content, ensure_ascii=False)


def read_entries(directory: Path) -> dict[str, DatumEntry] | None:
    """The content of the file, which datum may have written; None if there is none."""
    path = directory / ENTRIES_FILE
    content = _read(path)
    return None if content is None else parse_entries(content, str(path))


def parse_entries(content: Any, name: str) -> dict[str, DatumEntry]:
    """The same, of a file that was read."""
    try:
        if len(content) > MAX_FEATURES:
            raise ValueError(f"{len(content):,} features; must be at most {MAX_FEATURES:,}")
        return {
            feature: DatumEntry(each["type"], tuple(each["shape"]), each["dense"])
            for feature, each in content.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"it is not what datum or covey writes ({error}); remove it with its dataset", path=name
        ) from None


def read_shard_info(directory: Path) -> ShardInfo:
    """The shards of all splits; empty if there is no such file."""
    path = directory / SHARD_INFO_FILE
    try:
        return check_shard_info(_read(path) or {})
    except FeatureError as error:
        raise FormatError(f"{error}; remove it with its dataset", path=path) from None


def check_shard_info(content: Any) -> ShardInfo:
    """Make sure that shards are given as the file has them, and lie in the directory of the file."""
    if not isinstance(content, Mapping):
        raise FeatureError(f"shard info is of type {type(content).__name__}; must be a dict")
    for split, shards in content.items():
        fits = isinstance(shards, Mapping) and all(
            isinstance(name, str) and type(count) is int and count >= 0
            for name, count in shards.items()
        )
        if not isinstance(split, str) or not fits:
            raise FeatureError(
                f"the shards of split {brief(split)} are {brief(shards)}; must be a dict of files "
                "and their numbers of records"
            )
        try:
            check_name(split, "the name of a split")
            for name in shards:
                check_path(name, f"split {brief(split)}: the name of a shard")
        except FormatError as error:
            raise FeatureError(str(error)) from None
    if sum(map(len, content.values())) > MAX_SHARDS:
        raise FeatureError(f"there are over {MAX_SHARDS:,} shards; must be fewer")
    return {split: dict(shards) for split, shards in content.items()}


def shard_info_to_json(shard_info: ShardInfo) -> str:
    """The text of the file."""
    return json.dumps(shard_info, indent=1, ensure_ascii=False)


def save_shard_info(directory: Path, shard_info: ShardInfo) -> None:
    """Put the shards of some splits in the place of what the file has of the same splits."""
    path = directory / SHARD_INFO_FILE
    with locked(directory):
        before = read_shard_info(directory)
        after = {**before, **shard_info}
        if after == before and path.exists():
            return
        atomic_write(path, shard_info_to_json(after).encode())


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = parse_json(read_file(path), str(path))
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise FormatError("it is not a dict; remove it with its dataset", path=path)
    return content


def check_split(name: str) -> None:
    """Make sure that datum has a way to ask for a split of this name."""
    if not re.fullmatch(r"\w+", name):
        raise DatasetError(
            f"split is {name!r}; datum's reader finds names of letters, digits and '_' only"
        )


_DTYPES = {"int": "int64", "float": "float32", "string": "bytes"}


def datum_splits(storage: Storage, directory: str) -> ShardInfo | None:
    """The shards of every split, with their records; None if this is not a directory of datum's."""
    path = storage.join(directory, SHARD_INFO_FILE)
    content = _read_datum(storage, path)
    if content is None:
        return None
    try:
        return check_shard_info(content)
    except FeatureError as error:
        raise FormatError(f"{error}", path=path) from None


def datum_features(storage: Storage, directory: str) -> Features | None:
    """The features of all records, if datum's own description is there.

    A sparse feature is a list of any length. If it has more dimensions, they are in the feature
    ``<name>_shape`` beside it.
    """
    path = storage.join(directory, ENTRIES_FILE)
    content = _read_datum(storage, path)
    if content is None:
        return None
    return Features({name: _kind(entry) for name, entry in parse_entries(content, path).items()})


def _kind(entry: DatumEntry) -> Any:
    dtype = _DTYPES[entry.type]
    if entry.is_image and entry.dense:
        return Image((None, None, 1 if len(entry.shape) == 2 else 3))
    if not entry.dense:
        return Tensor(dtype, (None,), default=[])
    known = tuple(size or 0 for size in entry.shape)
    return Tensor(dtype) if dtype == "bytes" else Tensor(dtype, known)


def _read_datum(storage: Storage, path: str) -> Any:
    try:
        return parse_json(storage.read(path), path)
    except FileNotFoundError:
        return None
