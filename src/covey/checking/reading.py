"""All that a shard holds, sound or not, wherever it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO

from covey.errors import CorruptRecordError
from covey.records import Block, RecordReader
from covey.records.places import Members
from covey.records.salvage import Damage, salvage
from covey.records.stretches import DamagedFile
from covey.storage import Storage


def find_compression(storage: Storage, path: str) -> str | None:
    """How a shard is compressed, even if its beginning is damaged."""
    with _opened(storage, path) as source, closing(DamagedFile(source)) as file:
        return file.compression


def read_shard(
    storage: Storage, path: str, compression: str | None, members: Members | None = None
) -> Iterator[Block | Damage]:
    """The sound records of a shard, in order, and a damage in the place of each that is not.

    Args:
        storage: Where it is.
        path: The shard.
        compression: As :func:`find_compression` found it.
        members: Is filled with the members of a compressed shard, up to its first damage.
    """
    done = 0
    if compression is not None and members is not None:
        # Who reads a damaged file does not know its members; so that is the second try.
        try:
            with (
                _opened(storage, path) as source,
                RecordReader(source, compression=compression) as reader,
            ):
                for block in reader.blocks(members=members):
                    yield block
                    done = block.first + len(block)
            return
        except CorruptRecordError:
            pass
    with _opened(storage, path) as source:
        for found in salvage(source, compression=compression):
            if isinstance(found, Damage) or found.first >= done:
                yield found
            elif found.first + len(found) > done:
                yield found[done - found.first :]


@contextmanager
def _opened(storage: Storage, path: str) -> Iterator[str | BinaryIO]:
    if not storage.is_remote:
        yield path
        return
    with storage.open_stream(path) as stream:
        yield stream
