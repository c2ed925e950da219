"""The index of a split: the location, the length and the class of every record.

``format`` defines the files, ``read`` verifies and maps them, ``store`` finds an index beside the
shards or in the cache, ``build`` scans shards.
"""

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
from covey.index.read import Index, read_index, read_metadata
from covey.index.store import (
    GUESS,
    ChangedShard,
    FoundIndex,
    IndexBuilder,
    ShardFiles,
    changed_state,
    find_changed,
    find_index,
    find_or_build_index,
    write_index,
)

__all__ = [
    "BY_FILE",
    "GUESS",
    "ChangedShard",
    "FoundIndex",
    "Index",
    "IndexBuilder",
    "IndexMetadata",
    "IndexWriter",
    "Shard",
    "ShardFiles",
    "changed_state",
    "find_changed",
    "find_index",
    "find_or_build_index",
    "fingerprint",
    "index_names",
    "read_index",
    "read_metadata",
    "row_dtype",
    "write_classes",
    "write_index",
]
