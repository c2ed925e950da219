"""Decompression: of single GZIP members, and of whole shards into the cache.

covey writes GZIP shards in many members of whole records, so that a record is read by decompressing
one member. Other compressed shards can only be read from their beginning: when a dataset is opened,
they are decompressed into the cache, and the copies are read in place of the shards.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from covey._files import open_private, replacing
from covey.errors import StorageError
from covey.filenames import find_moved
from covey.index import Index, Shard, ShardFiles, changed_state
from covey.index.format import fingerprint_of
from covey.reading.gather import Pins, Table
from covey.schema.diagnostics import changed_error
from covey.storage import LocalStorage, Stat
from covey.storage.cache import DiskCache, cache_limit, pin
from covey.storage.local import local_stat
from covey.tfrecord.block import FRAME_BYTES
from covey.tfrecord.compression import Compression, Inflater, StreamError, detect_compression
from covey.untrusted import RegularFile

# Deflate compresses at most 1032 : 1.
_MAX_RATIO = 1040

_MIN_MEMBER_BYTES = 18
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 4096


class MemberError(Exception):
    """A GZIP member is corrupt."""


def inflate_member(member: bytes, limit: int) -> bytes:
    """Return the data of one GZIP member.

    Args:
        member: The compressed bytes.
        limit: The maximum size of the data.

    Raises:
        MemberError: If the member is corrupt.

    >>> import gzip
    >>> inflate_member(gzip.compress(b"owl"), 100)
    b'owl'
    """
    if len(member) < _MIN_MEMBER_BYTES:
        raise MemberError(
            f"the GZIP member has {len(member)} bytes; the minimum is {_MIN_MEMBER_BYTES}"
        )
    (size,) = struct.unpack("<I", member[-4:])
    # The size in the trailer is not trusted: no more memory is allocated than the member can fill.
    limit = min(limit, len(member) * _MAX_RATIO)
    if size > limit:
        raise MemberError(f"the size in the GZIP trailer is {size}; the maximum is {limit}")
    try:
        data = zlib.decompress(member, 31, size)
    except zlib.error as error:
        raise MemberError(f"the GZIP data is corrupt: {error}") from None
    if len(data) != size:
        raise MemberError(f"the GZIP member has {len(data)} bytes, but its trailer has size {size}")
    return data


def decompress_to_cache(table: Table, cache_bytes: int | None) -> Table:
    """Return a table of plain files: of shards that can only be read from their beginning, copies.

    Copies that are in the cache already are used again. The cache does not evict them while the
    table exists, if they are few.

    Args:
        table: The shards and their index.
        cache_bytes: Size limit of the cache.

    Raises:
        FileChangedError: If a shard is missing, or is not the one that was indexed.
        StorageError: If a shard is corrupt, or the copies exceed the limit of the cache.
    """
    index, metadata = table.index, table.index.metadata
    cache = DiskCache(cache_limit(cache_bytes))
    shards: list[Shard] = []
    pins = Pins()
    copies: dict[str, int] = {}
    for number, shard in enumerate(metadata.shards):
        path, file = _open_plain(table, number, _data_bytes(index, number), cache, copies)
        with file:
            state = file.stat()
            crc = fingerprint_of(file, state.st_size)
            pins.add(file.fileno())
        shards.append(Shard(path, shard.records, state.st_size, crc))
    plain = Index(
        replace(metadata, compression=None, single_stream=False, shards=tuple(shards)),
        _plain_rows(index),
        index.classes,
        index.by_class,
        skipped=index.skipped,
    )
    files = ShardFiles(LocalStorage(), os.sep, tuple(shard.name for shard in shards))
    return Table(plain, files, table, frozenset(copies), pins)


def _plain_rows(index: Index) -> NDArray[Any]:
    """Return the rows of the index as those of plain files, without a copy."""
    fields = dict(index.rows.dtype.fields or {})
    fields["offset"] = fields.pop("inner_offset")
    dtype: Any = {
        "names": list(fields),
        "formats": [each[0] for each in fields.values()],
        "offsets": [each[1] for each in fields.values()],
        "itemsize": index.rows.dtype.itemsize,
    }
    return index.rows.view(np.dtype(dtype))


def _data_bytes(index: Index, shard: int) -> int:
    """Return the size of the records of a shard; corruption after the last one is ignored."""
    first, end = index.first_records[shard : shard + 2]
    if first == end:
        return 0
    row = index.rows[end - 1]
    return int(row["inner_offset"]) + int(row["length"]) + FRAME_BYTES


def _open_plain(
    table: Table, number: int, size: int, cache: DiskCache, copies: dict[str, int]
) -> tuple[str, RegularFile]:
    """Open the plain data of a shard: its copy in the cache, or the shard itself if it is plain.

    Args:
        table: The table of the shard.
        number: Number of the shard.
        size: Size of the data.
        cache: The cache.
        copies: Sizes of the other copies, which are not evicted; that of this copy is added.

    Returns:
        The path and the open file, which is pinned.
    """
    files, shard = table.files, table.index.metadata.shards[number]
    path = files.paths[number]
    identity = files.storage.clean(path), str(shard.bytes), str(shard.fingerprint), shard.version
    with cache.wrap_os_errors():
        target = cache.entry_path("unpacked", *identity)
        found = _open_copy(target, size)
    if found is not None:
        copies[target] = size
        return target, found
    with _open_shard(table, number) as stream:
        compression = detect_compression(stream.read(_HEAD_BYTES))
        if compression is None and not files.storage.is_remote:
            moved = find_moved(path)
            return moved, RegularFile(moved)
        with cache.wrap_os_errors():
            if not cache.try_make_room(size, copies):
                raise _full_error(path, cache.limit)
            before = _state(stream)
            stream.seek(0)
            with replacing(target, durable=False) as temporary:
                with open(temporary, "xb", opener=open_private) as file:
                    _copy(stream, compression, file, size, path)
                if _state(stream) != before:
                    raise changed_error("the shard changed while it was decompressed", path)
                opened = RegularFile(temporary)
                pin(opened.fileno(), temporary)
        copies[target] = size
        return target, opened


def _copy(stream: BinaryIO, compression: Compression, file: BinaryIO, size: int, path: str) -> None:
    """Write the first ``size`` decompressed bytes of a shard."""
    read = stream.read if compression is None else Inflater(stream.read, compression).read
    reason = f"the index has records up to byte {size} of the decompressed data, which ends before"
    try:
        while file.tell() < size and (chunk := read(_CHUNK_BYTES)):
            file.write(chunk[: size - file.tell()])
    except StreamError as error:
        reason = str(error)
    if file.tell() < size:
        raise StorageError(
            reason, path=path, remedy="run `covey verify` to list the corrupt records"
        )


def _state(stream: BinaryIO) -> Stat | None:
    """Return the state of an open local file; None for a remote one, whose requests check it."""
    return local_stat(stream.stat()) if isinstance(stream, RegularFile) else None


def _open_copy(target: str, size: int) -> RegularFile | None:
    with contextlib.suppress(FileNotFoundError):
        os.utime(target)  # the time of the last use
        file = RegularFile(target)
        if file.stat().st_size == size and pin(file.fileno(), target):
            return file
        file.close()
    return None


@contextmanager
def _open_shard(table: Table, number: int) -> Iterator[BinaryIO]:
    """Open a shard that is the one that was indexed."""
    storage, path = table.files.storage, table.files.paths[number]
    shard = table.index.metadata.shards[number]
    try:
        file = storage.open_stream(path) if storage.is_remote else RegularFile(find_moved(path))
    except FileNotFoundError:
        raise changed_error("the shard is missing", path) from None
    with closing(file):
        state = _state(file)
        # Without the version of a local file, which changes when it is touched or copied.
        found = storage.stat([path])[0] if state is None else Stat(state.size, "")
        reason = changed_state(shard, found)
        if reason is None and fingerprint_of(file, shard.bytes) != shard.fingerprint:
            reason = "the shard is not the one that was indexed"
        if reason is not None:
            raise changed_error(reason, path)
        file.seek(0)
        yield file


def _full_error(path: str, limit: int) -> StorageError:
    return StorageError(
        "the shard must be decompressed as a whole, and its data exceeds the limit of the cache "
        f"({limit} bytes)",
        path=path,
        remedy="raise cache_bytes=, or set COVEY_CACHE_BYTES, or rewrite the data with "
        "`covey write`",
    )
