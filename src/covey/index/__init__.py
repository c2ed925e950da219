"""The index of a split: the location, the length and the class of every record.

``format`` defines the files, ``store`` finds an index beside the shards or in the cache, verifies
and maps it, ``write`` writes indexes, ``build`` scans shards.
"""

from covey.index.format import BY_FILE, IndexMetadata, Shard, fingerprint, index_names, row_dtype
from covey.index.store import (
    GUESS,
    ChangedShard,
    FoundIndex,
    Index,
    IndexBuilder,
    ShardFiles,
    changed_state,
    find_changed,
    find_index,
    find_or_build_index,
    read_index,
    read_metadata,
)

__all__ = [
    "BY_FILE",
    "GUESS",
    "ChangedShard",
    "FoundIndex",
    "Index",
    "IndexBuilder",
    "IndexMetadata",
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
]
