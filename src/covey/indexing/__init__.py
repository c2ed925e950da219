"""Indexing shards that somebody else wrote, and finding indexes again."""

from covey.indexing.building import GUESS, Indexing, ShardFiles
from covey.indexing.keeping import (
    cached_place,
    changed_content,
    changed_state,
    find_changed,
    find_or_build,
    write_index,
)
from covey.indexing.labelling import KnownLabels, Label

__all__ = [
    "GUESS",
    "Indexing",
    "KnownLabels",
    "Label",
    "ShardFiles",
    "cached_place",
    "changed_content",
    "changed_state",
    "find_changed",
    "find_or_build",
    "write_index",
]
