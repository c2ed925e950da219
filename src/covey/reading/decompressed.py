"""Decompressing GZIP members, of which shards are made in which records can be found.

Compressed shards that can only be read from their beginning, unpacked once into the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import secrets
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
from covey.storage.cache import DiskCache, cache_subdirectory, pin, unpin
from covey.tfrecord.compression import Compression, Inflater, detect_compression
from covey.tfrecord.streams import StreamError

# Two to three times as fast, where it is installed.
_deflate: Any = importlib.import_module("deflate") if importlib.util.find_spec("deflate") else None


def _inflate(member: bytes, size: int) -> bytes:
    if _deflate is None:
        return zlib.decompress(member, 31, size)
    try:
        # As it is, a bytearray: bytes() of it would be one more copy.
        return cast(bytes, _deflate.gzip_decompress(member, size))
    except (_deflate.DeflateError, ValueError) as error:
        raise zlib.error(str(error)) from None


# Deflate makes data at most 1032 times as small.
_MOST_RATIO = 1040


class MemberError(Exception):
    """A member is corrupt; the message says how."""


def inflate_member(member: bytes, most: int) -> bytes:
    """The data of one whole member.

    Args:
        member: Its bytes.
        most: The most that it may decompress to.

    >>> import gzip
    >>> bytes(inflate_member(gzip.compress(b"owl"), 100))
    b'owl'
    """
    if len(member) < 18:
        raise MemberError(f"the member has {len(member)} bytes, the least are 18")
    (size,) = struct.unpack("<I", member[-4:])
    # What it says of its size is not a reason to get more memory than it could fill.
    most = min(most, len(member) * _MOST_RATIO)
    if size > most:
        raise MemberError(f"the member says that it has {size} bytes, the most are {most}")
    try:
        data = _inflate(member, size)
    except zlib.error as error:
        raise MemberError(f"the GZIP data is corrupt: {error}") from None
    if len(data) != size:
        raise MemberError(f"the member has {len(data)} bytes, but says {size}")
    return data


_PIECE_BYTES = 1 << 20


class _Unpacking(ForkAware):
    """Unpacks one shard at a time, so that each is unpacked once."""

    @property
    def lock(self) -> threading.Lock:
        return self._lock


_unpacking = _Unpacking()


def release(path: str) -> None:
    """Let go of what :func:`unpack` gave."""
    unpin(path)


def unpack(
    stream: BinaryIO,
    path: str,
    shard: Shard,
    needed: int,
    cache_bytes: int | None,
    is_unchanged: Callable[[], bool],
) -> tuple[str, int]:
    """The path and size of a file with the decompressed data of a shard.

    Another process that makes room may remove the file, as long as it is not open.

    Args:
        stream: The shard, open.
        path: Where it is.
        shard: What it was when it was indexed.
        needed: Where in its data the last record ends; damage behind it does not matter.
        cache_bytes: How much is kept in the cache.
        is_unchanged: Tells afterwards whether the shard has changed meanwhile.

    Raises:
        StorageError: If there is no room for it, the data is corrupt, or changes meanwhile.
    """
    text = f"{path}\0{shard.bytes}\0{shard.fingerprint}\0{shard.version}"
    name = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    target = cache_subdirectory("unpacked") / name
    with _unpacking.lock:
        with contextlib.suppress(FileNotFoundError):
            os.utime(target)  # the last that is removed
            size = target.stat().st_size
            pin(str(target))
            return str(target), size
        stream.seek(0)
        compression = detect_compression(stream.read(4096))
        stream.seek(0)
        room = cache_limit(cache_bytes)
        hidden = f".{name}.{secrets.token_hex(8)}"
        try:
            with replacing(target, temporary=hidden, durable=False) as temporary:
                with open(temporary, "xb", opener=open_private) as file:
                    if compression is None:
                        shutil.copyfileobj(stream, file, _PIECE_BYTES)
                    else:
                        _inflate_unpacking(stream, compression, file, needed, room, path)
                    size = file.tell()
                if not is_unchanged():
                    raise FileChangedError(
                        "it was changed while it was unpacked; open the dataset again", path=path
                    )
                _make_room(size, room, path)
            pin(str(target))
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"it cannot be unpacked into {target.parent} ({error.strerror or error}); "
                "set COVEY_CACHE to a directory with more room",
                path=path,
            ) from error
    return str(target), size


def _inflate_unpacking(
    stream: BinaryIO, compression: Compression, file: BinaryIO, needed: int, room: int, path: str
) -> None:
    inflater = Inflater(stream.read, compression)
    try:
        while piece := inflater.read(_PIECE_BYTES):
            file.write(piece)
            if file.tell() > room:
                raise _no_room(path, room)
    except StreamError as error:
        if file.tell() < needed:
            raise StorageError(
                f"{error}; run `covey verify` to see what is left", path=path
            ) from None


def _no_room(path: str, room: int) -> StorageError:
    return StorageError(
        "it can only be read from its beginning, and what it unpacks to is more than the "
        f"cache may hold ({room} bytes); pass cache_bytes= or set COVEY_CACHE_BYTES to a "
        "larger number, or write the data again with `covey write`",
        path=path,
    )


def _make_room(size: int, room: int, path: str) -> None:
    try:
        DiskCache(room).make_room(size, {})
    except StorageError:
        raise _no_room(path, room) from None
