"""Compressed shards that can only be read from their beginning, unpacked once into the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

from covey.errors import StorageError
from covey.records.compression import Inflater, detect_compression
from covey.records.streams import StreamError
from covey.shards import Shard
from covey.storage import Storage, cache_folder, cache_limit
from covey.storage.forks import ForkAware

_PIECE_BYTES = 1 << 20


class _Unpacking(ForkAware):
    """What this process has unpacked: once each, and not removed while it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used: Counter[Path] = Counter()

    @property
    def lock(self) -> threading.Lock:
        return self._lock


_unpacking = _Unpacking()


def release(path: str) -> None:
    """Let go of what :func:`unpack` gave."""
    with _unpacking.lock:
        _unpacking.used -= Counter([Path(path)])


def unpack(storage: Storage, path: str, shard: Shard, cache_bytes: int | None) -> str:
    """The path of a file with the decompressed data of a shard; of the shard itself, if it is not
    compressed and local.

    Raises:
        StorageError: If there is no room for it, or the data is damaged.
    """
    text = f"{storage.clean(path)}\0{shard.bytes}\0{shard.fingerprint}"
    name = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    target = cache_folder() / "unpacked" / name
    with _unpacking.lock:
        _unpacking.used[target] += 1
        if target.exists():
            os.utime(target)  # the last that is removed
            return str(target)
        with storage.open_stream(path) as stream:
            head = stream.read(4096)
            compression = detect_compression(head)
            if compression is None and not storage.is_remote:
                return path
            stream.seek(0)
            target.parent.mkdir(parents=True, exist_ok=True)
            room = cache_limit(cache_bytes)
            beside = target.with_name(f".{name}.{os.getpid()}")
            try:
                with open(beside, "wb") as file:
                    if compression is None:
                        shutil.copyfileobj(stream, file, _PIECE_BYTES)
                    else:
                        inflater = Inflater(stream.read, compression)
                        while piece := inflater.read(_PIECE_BYTES):
                            file.write(piece)
                            if file.tell() > room:
                                raise _no_room(path, room)
                    size = file.tell()
                _make_room(target.parent, size, room, path)
                os.replace(beside, target)
            except StreamError as error:
                raise StorageError(
                    f"{path}: {error}; run `covey verify` to see what is left"
                ) from None
            except OSError as error:
                if isinstance(error, StorageError):
                    raise
                raise StorageError(
                    f"{path}: it cannot be unpacked into {target.parent} "
                    f"({error.strerror or error}); set COVEY_CACHE to a folder with more room"
                ) from error
            finally:
                beside.unlink(missing_ok=True)
    return str(target)


def _no_room(path: str, room: int) -> StorageError:
    return StorageError(
        f"{path}: it can only be read from its beginning, and what it unpacks to is more than the "
        f"cache may hold ({room} bytes); pass cache_bytes= or set COVEY_CACHE_BYTES to a larger "
        "number, or write the data anew with `covey write`"
    )


def _make_room(folder: Path, size: int, room: int, path: str) -> None:
    """Remove what was used longest ago, until there is room; who has it mapped keeps it."""
    found = [each for each in folder.iterdir() if not each.name.startswith(".")]
    stats = {each: each.stat() for each in found}
    total = sum(each.st_size for each in stats.values()) + size
    for each, _ in sorted(stats.items(), key=lambda item: item[1].st_mtime_ns):
        if total <= room:
            return
        if not _unpacking.used[each]:
            each.unlink(missing_ok=True)
            total -= stats[each].st_size
    if total > room:
        raise _no_room(path, room)
