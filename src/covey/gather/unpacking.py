"""Compressed shards that can only be read from their beginning, unpacked once into the cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from typing import BinaryIO

from covey.errors import FileChangedError, StorageError
from covey.records.compression import Compression, Inflater, detect_compression
from covey.records.streams import StreamError
from covey.shards import Shard
from covey.storage import cache_limit
from covey.storage.cache import DiskCache, cache_subfolder, pin, unpin
from covey.storage.forks import ForkAware

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
        StorageError: If there is no room for it, the data is damaged, or changes meanwhile.
    """
    text = f"{path}\0{shard.bytes}\0{shard.fingerprint}\0{shard.version}"
    name = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    target = cache_subfolder("unpacked") / name
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
        beside = None
        try:
            descriptor, beside = tempfile.mkstemp(prefix=f".{name}.", dir=target.parent)
            with open(descriptor, "wb") as file:
                if compression is None:
                    shutil.copyfileobj(stream, file, _PIECE_BYTES)
                else:
                    _inflate(stream, compression, file, needed, room, path)
                size = file.tell()
            if not is_unchanged():
                raise FileChangedError(
                    f"{path}: it was changed while it was unpacked; open the dataset again",
                    path=path,
                )
            _make_room(size, room, path)
            os.replace(beside, target)
            pin(str(target))
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"{path}: it cannot be unpacked into {target.parent} "
                f"({error.strerror or error}); set COVEY_CACHE to a folder with more room"
            ) from error
        finally:
            if beside is not None:
                with contextlib.suppress(FileNotFoundError):  # it was renamed
                    os.unlink(beside)
    return str(target), size


def _inflate(
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
            raise StorageError(f"{path}: {error}; run `covey verify` to see what is left") from None


def _no_room(path: str, room: int) -> StorageError:
    return StorageError(
        f"{path}: it can only be read from its beginning, and what it unpacks to is more than the "
        f"cache may hold ({room} bytes); pass cache_bytes= or set COVEY_CACHE_BYTES to a larger "
        "number, or write the data anew with `covey write`"
    )


def _make_room(size: int, room: int, path: str) -> None:
    try:
        DiskCache(room).make_room(size, {})
    except StorageError:
        raise _no_room(path, room) from None
