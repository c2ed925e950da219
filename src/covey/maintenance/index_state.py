"""The index that a split has now, if it has one; nothing is made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from covey.dataset.layout import SplitFiles
from covey.errors import DatasetError, FormatError, StorageError
from covey.index import (
    Index,
    Indexing,
    IndexMetadata,
    ShardFiles,
    cached_location,
    find_changed,
    find_or_build_index,
    index_names,
)

Kind = Literal["fresh", "stale", "damaged", "missing"]


@dataclass(frozen=True, eq=False)
class State:
    """What there is of an index."""

    kind: Kind
    why: str = ""
    """If it is stale or corrupt."""
    index: Index | None = None
    """If it is fresh."""
    about: IndexMetadata | None = None
    """What it says of itself, if that can be read."""
    beside: bool = False
    """Whether it lies beside the shards, and not in the cache."""


def find_state(split: SplitFiles) -> State:
    """Look for an index beside the shards, and in the cache."""
    files = split.files
    try:
        about = _about_beside(split)
    except (FormatError, StorageError) as error:
        if files.storage.is_remote and isinstance(error, StorageError):
            raise
        state = State("damaged", str(error))
    else:
        state = State("missing") if about is None else _state(about, files)
    try:
        index, directory = find_or_build_index(files, split.stem, _OnlyFound(), keep=False)
    except _NothingFoundError:
        return state
    except DatasetError as error:  # a shard was changed, and covey had written it
        return State("stale", str(error), about=state.about)
    # One beside the shards may be corrupt, and the one of the cache is used.
    if files.storage.is_remote:
        beside = directory != cached_location(files, split.stem, _OnlyFound())
    else:
        beside = directory == Path(files.directory)
    return State("fresh", index=index, about=index.metadata, beside=beside)


def _about_beside(split: SplitFiles) -> IndexMetadata | None:
    storage = split.files.storage
    path = storage.join(split.files.directory, index_names(split.stem)["metadata"])
    try:
        return IndexMetadata.from_json(storage.read(path), path)
    except FileNotFoundError:
        return None


def _state(about: IndexMetadata, files: ShardFiles) -> State:
    """Why an index is of no use, if it turns out to be."""
    if tuple(shard.name for shard in about.shards) != files.names:
        return State("stale", "it is of other shards than those of the split", about=about)
    changed = find_changed(files, about.shards)
    if changed is not None:
        return State("stale", changed, about=about)
    return State("damaged", "its files do not fit together", about=about)


class _NothingFoundError(Exception):
    """There is no index that can be used."""


@dataclass(frozen=True)
class _OnlyFound(Indexing):
    """Indexing that indexes nothing."""

    def build(self, files: ShardFiles) -> Index:
        raise _NothingFoundError
