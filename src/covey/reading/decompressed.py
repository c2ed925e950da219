"""Decompression: of single GZIP members, and of whole shards into the cache.

covey writes GZIP shards in many members of whole records, so that a record is read by decompressing
one member. Other compressed shards can only be read from their beginning: they are decompressed
once, into the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from covey._files import open_private, replacing
from covey._fork import ForkAware
from covey.errors import FileChangedError, StorageError
from covey.index.format import Shard
from covey.storage import cache_limit
from covey.storage.cache import DiskCache
from covey.storage.cache_entry import pin
from covey.tfrecord.compression import Compression, Inflater, StreamError, detect_compression
from covey.untrusted import RegularFile

# Two to three times as fast as zlib, if it is installed.
_deflate: Any = importlib.import_module("deflate") if importlib.util.find_spec("deflate") else None

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
    >>> bytes(inflate_member(gzip.compress(b"owl"), 100))
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
        data = _inflate(member, size)
    except zlib.error as error:
        raise MemberError(f"the GZIP data is corrupt: {error}") from None
    if len(data) != size:
        raise MemberError(f"the GZIP member has {len(data)} bytes, but its trailer has size {size}")
    return data


def _inflate(member: bytes, size: int) -> bytes:
    if _deflate is None:
        return zlib.decompress(member, 31, size)
    try:
        # A bytearray; bytes() would copy it.
        return cast(bytes, _deflate.gzip_decompress(member, size))
    except (_deflate.DeflateError, ValueError) as error:
        raise zlib.error(str(error)) from None


class _DecompressionLock(ForkAware):
    """Threads decompress one shard at a time, so that each shard is decompressed once."""

    @property
    def lock(self) -> threading.Lock:
        return self._lock


_decompression = _DecompressionLock()


def open_decompressed(
    stream: BinaryIO,
    path: str,
    shard: Shard,
    needed: int,
    cache_bytes: int | None,
    is_unchanged: Callable[[], bool] = lambda: True,
) -> tuple[RegularFile, str]:
    """Open the decompressed data of a shard in the cache; decompress it if it is not there.

    The file is pinned: the cache does not evict it while the file, or a duplicate of its
    descriptor, is open.

    Args:
        stream: The open shard.
        path: The path or URL of the shard.
        shard: The shard in the index.
        needed: The end of the last record in the data; corruption after it is ignored.
        cache_bytes: Size limit of the cache.
        is_unchanged: Returns afterwards whether the shard is unchanged.

    Returns:
        The open file, and its path.

    Raises:
        StorageError: If the data is corrupt, changes meanwhile, or exceeds the limit of the cache.
    """
    cache = DiskCache(cache_limit(cache_bytes))
    identity = path, str(shard.bytes), str(shard.fingerprint), shard.version
    with _decompression.lock:
        try:
            target = cache.entry_path("unpacked", *identity)
            found = _open_existing(target)
            if found is not None:
                return found, target
            with replacing(target, durable=False) as temporary:
                with open(temporary, "xb", opener=open_private) as file:
                    _decompress(stream, file, needed, cache.limit, path)
                    size = file.tell()
                if not is_unchanged():
                    raise FileChangedError(
                        "the shard changed while it was decompressed",
                        path=path,
                        remedy="open the dataset again",
                    )
                if not cache.try_make_room(size, {}):
                    raise _full_error(path, cache.limit)
                opened = RegularFile(temporary)
                pin(opened.fileno(), temporary)
            return opened, target
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"it cannot be decompressed into {cache.root} ({error.strerror or error})",
                path=path,
                remedy="free disk space, or set COVEY_CACHE to another directory",
            ) from error


def _open_existing(target: str) -> RegularFile | None:
    with contextlib.suppress(FileNotFoundError):
        os.utime(target)  # the time of the last use
        file = RegularFile(target)
        if pin(file.fileno(), target):
            return file
        file.close()
    return None


def _decompress(stream: BinaryIO, file: BinaryIO, needed: int, limit: int, path: str) -> None:
    stream.seek(0)
    compression: Compression | None = detect_compression(stream.read(_HEAD_BYTES))
    stream.seek(0)
    if compression is None:
        shutil.copyfileobj(stream, file, _CHUNK_BYTES)
        return
    inflater = Inflater(stream.read, compression)
    try:
        while chunk := inflater.read(_CHUNK_BYTES):
            file.write(chunk)
            if file.tell() > limit:
                raise _full_error(path, limit)
    except StreamError as error:
        if file.tell() < needed:
            raise StorageError(
                str(error), path=path, remedy="run `covey verify` to list the corrupt records"
            ) from None


def _full_error(path: str, limit: int) -> StorageError:
    return StorageError(
        "the shard must be decompressed as a whole, and its data exceeds the limit of the cache "
        f"({limit} bytes)",
        path=path,
        remedy="raise cache_bytes=, or set COVEY_CACHE_BYTES, or rewrite the data with "
        "`covey write`",
    )
