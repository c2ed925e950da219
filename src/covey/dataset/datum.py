"""What datum says of its folders: the shards of every split, and the features of all records."""

from __future__ import annotations

from typing import Any

from covey.errors import FeatureError, FormatError
from covey.features import Features, Image, Tensor
from covey.metadata import ENTRIES_FILE, SHARD_INFO_FILE
from covey.storage import Storage
from covey.untrusted import parse_json
from covey.writing.datum import Entry, ShardInfo, check_shard_info, parse_entries

_DTYPES = {"int": "int64", "float": "float32", "string": "bytes"}


def datum_splits(storage: Storage, folder: str) -> ShardInfo | None:
    """The shards of every split, with their records; None if this is no folder of datum's."""
    path = storage.join(folder, SHARD_INFO_FILE)
    content = _read(storage, path)
    if content is None:
        return None
    try:
        return check_shard_info(content)
    except FeatureError as error:
        raise FormatError(f"{path}: {error}") from None


def datum_features(storage: Storage, folder: str) -> Features | None:
    """The features of all records, if datum's own description is there.

    A sparse feature is a list of any length. If it has more dimensions, they are in the feature
    ``<name>_shape`` beside it.
    """
    path = storage.join(folder, ENTRIES_FILE)
    content = _read(storage, path)
    if content is None:
        return None
    return Features({name: _kind(entry) for name, entry in parse_entries(content, path).items()})


def _kind(entry: Entry) -> Any:
    dtype = _DTYPES[entry.type]
    if entry.is_image and entry.dense:
        return Image((None, None, 1 if len(entry.shape) == 2 else 3))
    if not entry.dense:
        return Tensor(dtype, (None,), default=[])
    known = tuple(size or 0 for size in entry.shape)
    return Tensor(dtype) if dtype == "bytes" else Tensor(dtype, known)


def _read(storage: Storage, path: str) -> Any:
    try:
        return parse_json(storage.read(path), path)
    except FileNotFoundError:
        return None
