"""The index of a split: the place, the length and the class of every record.

Indexing shards that another program wrote, and finding indexes again.
"""

from covey.index.build import GUESS, Indexing, ShardFiles
from covey.index.format import (
    BY_FILE,
    IndexMetadata,
    IndexWriter,
    Shard,
    fingerprint,
    index_names,
    row_dtype,
    write_classes,
)
from covey.index.labels import KnownLabels, Label
from covey.index.read import Index, array_limits, read_index, read_metadata
from covey.index.store import (
    cached_location,
    changed_content,
    changed_state,
    find_changed,
    find_or_build_index,
    write_index,
)

__all__ = [
    "BY_FILE",
    "Index",
    "IndexMetadata",
    "IndexWriter",
    "Shard",
    "array_limits",
    "fingerprint",
    "index_names",
    "read_index",
    "read_metadata",
    "row_dtype",
    "write_classes",
]


__all__ = [
    "GUESS",
    "Indexing",
    "KnownLabels",
    "Label",
    "ShardFiles",
    "cached_location",
    "changed_content",
    "changed_state",
    "find_changed",
    "find_or_build_index",
    "write_index",
]
