"""DALI's index files: one per shard, with a line ``offset size`` for every record.

::

    0 262          birds.idx: the first frame of birds.tfrecord begins at byte 0 and has 262 bytes,
    262 270        header and footer included; the next frame follows it
"""

from __future__ import annotations

import posixpath
from collections import Counter

import numpy as np

from covey.errors import DatasetError
from covey.filenames import sidecar_stem, unique_sidecar_stem
from covey.index.store import Index, ShardFiles
from covey.storage import open_storage
from covey.tfrecord.block import FRAME_BYTES


def export_dali(index: Index, files: ShardFiles, directory: str | None = None) -> list[str]:
    """Write DALI's index files.

    Args:
        index: The index of the shards.
        files: The shards, which must not be compressed.
        directory: The directory to write to; by default that of the shards.

    Returns:
        The paths of the files: the name of each shard without ``.tfrecord``, and with ``.idx``
        appended.
    """
    if index.metadata.compression is not None:
        raise DatasetError(
            f"the shards are compressed ({index.metadata.compression}); DALI reads only "
            "uncompressed shards",
            path=files.directory,
        )
    storage = files.storage if directory is None else open_storage(directory)
    target = files.directory if directory is None else directory
    written = []
    stems = [sidecar_stem(shard.name) for shard in index.metadata.shards]
    counts = Counter(stems)
    for number, shard in enumerate(index.metadata.shards):
        rows = index.rows[index.first_records[number] : index.first_records[number + 1]]
        sizes = rows["length"].astype(np.int64) + FRAME_BYTES
        lines = (f"{a} {b}\n" for a, b in zip(rows["offset"].tolist(), sizes.tolist(), strict=True))
        stem = stems[number] if counts[stems[number]] == 1 else _unique_stem(shard.name)
        written.append(storage.join(target, f"{stem}.idx"))
        storage.write(written[-1], "".join(lines).encode())
    return written


def _unique_stem(name: str) -> str:
    """Return the start of the name of the file if several shards differ only in their suffix."""
    directory, base = posixpath.split(name)
    return posixpath.join(directory, unique_sidecar_stem([base]))
