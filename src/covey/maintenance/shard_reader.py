"""All that a shard holds, sound or not, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO

from covey.errors import CorruptRecordError
from covey.index.format import fingerprint_of
from covey.results import SkippedRecord
from covey.storage import Stat, Storage
from covey.storage.local import local_stat
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.locations import Members
from covey.tfrecord.recovery import salvage
from covey.tfrecord.segments import CorruptFile
from covey.tfrecord.streams import RegularFile


class OpenShard:
    """A shard that is opened once, so that all of it is read from the same file. To be closed.

    Args:
        storage: Where it is.
        path: The shard.
        map_files: Map a local shard into memory; False reads it.

    Raises:
        StorageError: If a local shard is not a regular file.
    """

    def __init__(self, storage: Storage, path: str, *, mmap: bool = True) -> None:
        self.path = path
        self.mmap = mmap
        self._storage = storage
        self._file = None if storage.is_remote else RegularFile(path)
        self.compression = self._find_compression()
        """How it is compressed, even if its beginning is corrupt."""

    def _find_compression(self) -> str | None:
        with self.source() as source, closing(CorruptFile(source)) as file:
            return file.compression

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def stat(self) -> Stat | None:
        """Its state now; None if it is remote, where each request looks at that itself."""
        return None if self._file is None else local_stat(self._file.stat())

    def fingerprint(self, size: int) -> int:
        """What tells it from another file."""
        with self.source() as stream:
            return fingerprint_of(stream, size)

    @contextmanager
    def source(self) -> Iterator[BinaryIO]:
        """The file, from its beginning."""
        if self._file is not None:
            self._file.seek(0)
            yield self._file
            return
        with self._storage.open_stream(self.path) as stream:
            yield stream


def find_compression(storage: Storage, path: str) -> str | None:
    """How a shard is compressed, even if its beginning is corrupt."""
    with closing(OpenShard(storage, path)) as shard:
        return shard.compression


def read_shard(shard: OpenShard, members: Members | None = None) -> Iterator[Block | SkippedRecord]:
    """The valid records of a shard, in order, and a damage in the place of each that is not.

    Args:
        shard: The shard.
        members: Is filled with the members of a compressed shard, up to its first damage.
    """
    compression = shard.compression
    done = 0
    if compression is not None and members is not None:
        # Who reads a corrupt file does not know its members; so that is the second try.
        try:
            with (
                shard.source() as source,
                RecordReader(source, compression=compression) as reader,
            ):
                for block in reader.blocks(members=members):
                    yield block
                    done = block.first + len(block)
            return
        except CorruptRecordError:
            pass
    with shard.source() as source:
        for found in salvage(source, compression=compression, mmap=shard.mmap):
            if isinstance(found, SkippedRecord) or found.first >= done:
                yield found
            elif found.first + len(found) > done:
                yield found[done - found.first :]
