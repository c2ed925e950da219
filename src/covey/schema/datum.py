"""datum's description of a directory, in two JSON files.

::

    shard_info.json                          {split: {file: number of records}}
    datum_to_type_and_shape_mapping.json     {feature: {"type", "shape", "dense"}}, for all splits

``type`` is int, float or string. A dense feature has the same shape in all examples. A sparse
feature has any number of values; if it has two or more dimensions, the feature ``<name>_shape``
stores its shape. A string with two or three dimensions is an encoded image, grey or RGB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covey.errors import FormatError
from covey.filenames import ENTRIES_FILE, SHARD_INFO_FILE
from covey.schema.columns import Shape
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.tensor import Tensor
from covey.storage import LocalStorage, Storage
from covey.untrusted import MAX_FEATURES, MAX_SHARDS, brief, check_name, check_path, parse_json

ShardInfo = dict[str, dict[str, int]]

DTYPES = {"int": "int64", "float": "float32", "string": "bytes"}


@dataclass(frozen=True, slots=True)
class DatumEntry:
    """datum's description of a feature."""

    type: str
    shape: Shape
    dense: bool

    def __post_init__(self) -> None:
        sizes = [size for size in self.shape if size is not None]
        if self.type not in DTYPES or not isinstance(self.dense, bool):
            raise ValueError(f"type is {self.type!r}, dense is {self.dense!r}")
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError(f"shape is {self.shape}")

    def __str__(self) -> str:
        return f"{'dense' if self.dense else 'sparse'} {self.type} {list(self.shape)}"

    @property
    def is_image(self) -> bool:
        """Whether datum's reader decodes the values as images."""
        return self.type == "string" and len(self.shape) in (2, 3)

    def feature(self) -> Image | Tensor:
        """Return the feature of the records."""
        dtype = DTYPES[self.type]
        if self.is_image and self.dense:
            return Image((None, None, 1 if len(self.shape) == 2 else 3))
        if not self.dense:
            return Tensor(dtype, (None,), default=[])
        return Tensor(dtype, () if dtype == "bytes" else tuple(size or 0 for size in self.shape))


def entries_to_json(entries: Mapping[str, DatumEntry]) -> str:
    """Return the content of the file of entries."""
    content = {
        name: {"type": entry.type, "shape": list(entry.shape), "dense": entry.dense}
        for name, entry in entries.items()
    }
    return json.dumps(content, ensure_ascii=False)


def read_entries(storage: Storage, directory: str) -> dict[str, DatumEntry] | None:
    """Return the entries of a directory; None if it has none."""
    path = storage.join(directory, ENTRIES_FILE)
    content = _read(storage, path)
    if content is None:
        return None
    try:
        if len(content) > MAX_FEATURES:
            raise ValueError(f"{len(content):,} features; must be at most {MAX_FEATURES:,}")
        return {
            feature: DatumEntry(each["type"], tuple(each["shape"]), each["dense"])
            for feature, each in content.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"is not a description of datum: {error}", path=path) from None


def datum_features(storage: Storage, directory: str) -> Features | None:
    """Return the features of the records of a directory; None if it has no entries.

    A sparse feature is a list of any length.
    """
    entries = read_entries(storage, directory)
    if entries is None:
        return None
    return Features({name: entry.feature() for name, entry in entries.items()})


def datum_splits(storage: Storage, directory: str) -> ShardInfo | None:
    """Return the shards of every split of a directory; None if it is not one of datum."""
    path = storage.join(directory, SHARD_INFO_FILE)
    content = _read(storage, path)
    if content is None:
        return None
    try:
        return check_shard_info(content)
    except FormatError as error:
        error.path = path
        raise


def read_shard_info(directory: Path) -> ShardInfo:
    """Return the shards of every split of a local directory; empty if the file does not exist."""
    return datum_splits(LocalStorage(), str(directory)) or {}


def check_shard_info(content: Any) -> ShardInfo:
    """Return valid shard info.

    Raises:
        FormatError: If the content is not valid, or a path leaves the directory.
    """
    if not isinstance(content, Mapping):
        raise FormatError(f"is a {type(content).__name__}; must be a dict of splits")
    for split, shards in content.items():
        check_name(split, "the name of a split")
        is_valid = isinstance(shards, Mapping) and all(
            isinstance(name, str) and type(count) is int and count >= 0
            for name, count in shards.items()
        )
        if not is_valid:
            raise FormatError(
                f"split {brief(split)} is {brief(shards)}; must be a dict of files and their "
                "numbers of records"
            )
        for name in shards:
            check_path(name, f"split {brief(split)}: the name of a shard")
    if sum(map(len, content.values())) > MAX_SHARDS:
        raise FormatError(f"there are more than {MAX_SHARDS:,} shards")
    return {split: dict(shards) for split, shards in content.items()}


def _read(storage: Storage, path: str) -> Any:
    try:
        content = parse_json(storage.read(path), path)
    except FileNotFoundError:
        return None
    if not isinstance(content, dict):
        raise FormatError(f"is a {type(content).__name__}; must be a JSON object", path=path)
    return content
