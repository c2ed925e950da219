"""The shards of a dataset as local files: themselves, unpacked, or as far as they were fetched."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import FileChangedError, StorageError
from covey.index import Index, ShardFiles, changed_state
from covey.index.format import FINGERPRINT_BYTES, Shard, fingerprint, fingerprint_of
from covey.reading.decompressed import release, unpack
from covey.reading.faults import changed
from covey.reading.open_files import FilePool, Identity
from covey.storage import LocalBlocks, Stat, Storage, cache_limit, fetch_many
from covey.storage.local import local_stat
from covey.tfrecord.block import FRAME_BYTES
from covey.tfrecord.compression import detect_compression
from covey.tfrecord.streams import RegularFile

# How often remote blocks that are removed at once are fetched again.
_TRIES = 8

# Compression is detected from so many bytes.
_HEAD_BYTES = 4096

# Remote shards that are opened at the same time, and what of the cache there must be for each.
_AT_ONCE = 8
_BYTES_FOR_EACH = 2 << 20

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Table:
    """A split to gather from: its index, and where its shards are."""

    index: Index
    files: ShardFiles


_POOL = FilePool()
_OWNERS = itertools.count()


@dataclass(eq=False)
class LocalShard:
    """A shard that was opened."""

    path: str
    size: int
    blocks: LocalBlocks | None
    """If it is remote: what fetches it, and knows whether it was begun again."""
    identity: Identity | None = None
    """Of the shard itself; None of a file in the cache."""
    unpacked: bool = False
    """Whether it lies in the cache as long as it is used."""
    generation: int = -1
    """Of the blocks, when the file was last opened or mapped."""

    @property
    def is_held(self) -> bool:
        """Whether the file that was opened or mapped is the one that is fetched into."""
        return self.generation == self.newest

    @property
    def newest(self) -> int:
        """The generation that is fetched into; there is one only of what is not remote."""
        return -1 if self.blocks is None else self.blocks.generation

    def look(self) -> int:
        """The same, once it is known whether another process has removed the file."""
        if self.blocks is not None:
            self.blocks.ensure(_NOTHING, _NOTHING)
        return self.newest

    def close(self) -> None:
        """Let go of what lies in the cache."""
        if self.blocks is not None:
            self.blocks.close()
        if self.unpacked:
            release(self.path)


# Shards that were held when something was read of them, and their generations.
HeldShards = tuple[tuple[LocalShard, int], ...]


class LocalShards:
    """Opens shards when they are first needed, and makes sure that they are those of the index.

    Shards are numbered through all tables. Threads may share it; processes may not.
    """

    def __init__(self, tables: Sequence[Table], cache_bytes: int | None) -> None:
        self._cache_bytes = cache_bytes
        self._where: list[tuple[Table, str, Shard]] = [
            (table, path, shard)
            for table in tables
            for path, shard in zip(table.files.paths, table.index.metadata.shards, strict=True)
        ]
        self._first: dict[int, int] = {}
        for number, (table, _, _) in enumerate(self._where):
            self._first.setdefault(id(table), number)
        self._opened: dict[int, LocalShard] = {}
        self._owner = next(_OWNERS)
        self._lock = threading.Lock()  # of one process: a caller that forks opens everything again
        self._holding = threading.Lock()
        self.is_remote = any(table.files.storage.is_remote for table in tables)

    def __len__(self) -> int:
        return len(self._where)

    def path(self, number: int) -> str:
        """Where a shard really is."""
        return self._where[number][1]

    def open(self, number: int) -> LocalShard:
        """A shard, as a local file.

        Raises:
            FileChangedError: If it is missing, or not the one that was indexed.
            StorageError: If it is not a regular file.
        """
        found = self._opened.get(number)
        if found is not None:
            return found
        made = self._open(number)
        with self._lock:
            found = self._opened.setdefault(number, made)
        if found is not made:  # another thread was faster
            made.close()
        return found

    def _open(self, number: int) -> LocalShard:
        table, path, shard = self._where[number]
        storage = table.files.storage
        if not storage.is_remote:
            return self._open_local(number)
        (stat,) = storage.stat([path])
        _check_state(path, shard, stat)
        assert stat is not None
        if not table.index.metadata.single_stream:
            return _open_remote(storage, path, shard, stat)
        with storage.open_stream(path) as stream:
            if fingerprint_of(stream, shard.bytes) != shard.fingerprint:
                raise _replaced(path)
            unpacked, size = unpack(
                stream,
                storage.clean(path),
                shard,
                self._needed(number),
                self._cache_bytes,
                lambda: storage.stat([path]) == [stat],
            )
        return LocalShard(unpacked, size, None, unpacked=True)

    def _open_local(self, number: int) -> LocalShard:
        """Open the file of a shard once; what is checked is what is read."""
        table, path, shard = self._where[number]
        try:
            file = _POOL.open(path)
        except FileNotFoundError:
            raise changed("the shard is missing", path) from None
        try:
            found = file.stat()
            # Not the version: a file that was only touched, or copied, has another one.
            _check_state(path, shard, Stat(found.st_size, ""))
            if fingerprint_of(file, shard.bytes) != shard.fingerprint:
                raise _replaced(path)
            file.seek(0)
            if table.index.metadata.single_stream and detect_compression(file.read(_HEAD_BYTES)):
                file.seek(0)
                unpacked, size = unpack(
                    file,
                    table.files.storage.clean(path),
                    shard,
                    self._needed(number),
                    self._cache_bytes,
                    lambda: local_stat(file.stat()) == local_stat(found),
                )
                file.close()
                return LocalShard(unpacked, size, None, unpacked=True)
            identity = Identity(found, shard.fingerprint)
        except BaseException:
            file.close()
            raise
        _POOL.put((self._owner, number), (file, -1))
        return LocalShard(path, shard.bytes, None, identity)

    def _needed(self, number: int) -> int:
        table, _, shard = self._where[number]
        return _end_of_records(table, shard, number - self._first[id(table)])

    def _open_at_once(self, numbers: Sequence[int]) -> None:
        """Open shards whose server makes one wait, several at a time if the cache is not small."""
        threads = min(len(numbers), _AT_ONCE, cache_limit(self._cache_bytes) // _BYTES_FOR_EACH)
        if threads > 1:
            with ThreadPoolExecutor(threads, thread_name_prefix="covey-open") as pool:
                list(pool.map(self.open, numbers))

    def fetch(
        self,
        shards: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        hold: Callable[[Sequence[int]], None],
    ) -> HeldShards:
        """Wait until ranges of bytes of remote shards are there.

        Args:
            shards, begins, ends: The ranges.
            hold: Opens or maps the files of shards. What is held then cannot be taken away by
                another process that makes room for its own.

        Returns:
            What is held. Another thread may hold files again, with less in them: what is read
            counts only if :meth:`still_holds` says so afterwards.
        """
        numbers = np.unique(shards).tolist()
        self._open_at_once([number for number in numbers if number not in self._opened])
        numbers = [number for number in numbers if self.open(number).blocks is not None]
        for _ in range(_TRIES):
            held = self._hold(numbers, hold)
            fetch_many([self._wanted(number, shards, begins, ends) for number in numbers])
            if self.still_holds(held):
                return held
        raise _no_room(self.path(numbers[0]))

    def _hold(self, numbers: Sequence[int], hold: Callable[[Sequence[int]], None]) -> HeldShards:
        """Hold the files that are fetched into now."""
        opened = [(number, self.open(number)) for number in numbers]
        with self._holding:
            stale = [(number, each, each.newest) for number, each in opened if not each.is_held]
            # Another process may just have removed a file: it is begun again, and held then.
            with contextlib.suppress(FileNotFoundError):
                hold([number for number, _, _ in stale])
                for _, each, generation in stale:
                    each.generation = generation
            return tuple((each, each.generation) for _, each in opened)

    @staticmethod
    def still_holds(held: HeldShards) -> bool:
        """Whether files are still those that were fetched into."""
        return all(each.generation == each.newest == generation for each, generation in held)

    def _wanted(
        self,
        number: int,
        shards: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
    ) -> tuple[LocalBlocks, NDArray[np.int64], NDArray[np.int64]]:
        opened = self.open(number)
        assert opened.blocks is not None
        mine = shards == number
        return opened.blocks, begins[mine], np.minimum(ends[mine], opened.size)

    def hold(self, numbers: Sequence[int]) -> None:
        """Open the files of shards, for reading them."""
        for number in numbers:
            _POOL.put((self._owner, number), self._take(number))

    def read(self, number: int, begin: int, end: int) -> bytes:
        """Bytes of a shard; fewer if it ends before."""
        taken = self._take(number)
        try:
            return taken[0].read_at(begin, end - begin)
        finally:
            _POOL.put((self._owner, number), taken)

    def check_unchanged(self, numbers: Sequence[int]) -> None:
        """Make sure that what was read of shards is of the files that were opened.

        Raises:
            FileChangedError: If a shard was truncated or overwritten.
        """
        for number in numbers:
            opened = self.open(number)
            if opened.identity is None:
                continue
            taken = self._take(number)
            try:
                is_unchanged = opened.identity.is_of(taken[0])
            finally:
                _POOL.put((self._owner, number), taken)
            if not is_unchanged:
                raise _overwritten(opened.path)

    def take_file(self, number: int) -> RegularFile:
        """The open file of a shard; the caller closes it."""
        return self._take(number)[0]

    def _take(self, number: int) -> tuple[RegularFile, int]:
        """The file of a shard, for the caller alone, and the generation of its blocks."""
        opened = self.open(number)
        kept = _POOL.take((self._owner, number))
        if kept is not None and kept[1] == opened.newest:
            return kept
        if kept is not None:
            kept[0].close()
        while True:
            generation = opened.newest
            try:
                file = _POOL.open(opened.path)
            except FileNotFoundError:
                if opened.identity is not None:
                    raise changed("the shard is missing", opened.path) from None
                if opened.blocks is None and not self.unpack_again([number]):
                    raise
                opened.look()  # another process has made room: it is begun again
                continue
            try:
                if opened.identity is not None and not opened.identity.is_of(file):
                    raise _replaced(opened.path)
                if opened.look() == generation:
                    return file, generation
            except BaseException:
                file.close()
                raise
            file.close()

    def unpack_again(self, numbers: Sequence[int]) -> bool:
        """Unpack those shards that another process has removed; False if there are none."""
        opened = [(number, self.open(number)) for number in numbers]
        lost = [n for n, each in opened if each.unpacked and not os.path.exists(each.path)]
        for number in lost:
            self._open(number).close()
        return bool(lost)

    def discard(
        self, shards: NDArray[np.int64], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> list[int] | None:
        """Discard what the cache has of ranges of shards.

        Returns:
            The shards whose files were replaced, and must be mapped again; blocks are fetched when
            they are next read. None if nothing was cached: the shards are local files.
        """
        cached, replaced = False, []
        for number in np.unique(shards).tolist():
            opened = self.open(number)
            if opened.blocks is not None:
                blocks, first, last = self._wanted(number, shards, begins, ends)
                blocks.discard(first, last)
                cached = True
            elif opened.unpacked:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(opened.path)
                kept = _POOL.take((self._owner, number))
                if kept is not None:
                    kept[0].close()
                self.unpack_again([number])
                replaced.append(number)
        return replaced if cached or replaced else None

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            opened = list(self._opened.values())
            self._opened.clear()
        _POOL.close(self._owner)
        for each in opened:
            each.close()

    def __del__(self) -> None:
        if hasattr(self, "_holding"):
            self.close()


def _open_remote(storage: Storage, path: str, shard: Shard, stat: Stat) -> LocalShard:
    """A remote shard, if it is the one of the index."""
    blocks = storage.open_blocks(path)
    try:
        # If its version is known, that tells; else it is compared with what was indexed.
        if not (shard.version and stat.version) and not _begins_and_ends_like(blocks, shard):
            raise _replaced(path)
        if storage.stat([path]) != [stat]:  # then the blocks might be of another
            raise changed("the shard was changed just now", path)
    except BaseException:
        blocks.close()
        raise
    return LocalShard(blocks.path, shard.bytes, blocks)


def _begins_and_ends_like(blocks: LocalBlocks, shard: Shard) -> bool:
    """Whether the fingerprint of a remote file is that of a shard."""
    begins = np.array([0, max(0, shard.bytes - FINGERPRINT_BYTES)], np.int64)
    ends = np.minimum(begins + FINGERPRINT_BYTES, shard.bytes)
    for _ in range(_TRIES):
        generation = blocks.generation
        blocks.ensure(begins, ends)
        try:
            found = fingerprint(blocks.path)
        except FileNotFoundError:  # another process has made room just now
            continue
        blocks.ensure(begins, ends)  # whether that was still the file
        if blocks.generation == generation:
            return found == shard.fingerprint
    raise _no_room(shard.name)


def _no_room(name: str) -> StorageError:
    return StorageError(
        "what is fetched of it is removed again and again; there is too little room in "
        "the cache: pass cache_bytes= or set COVEY_CACHE_BYTES to more",
        path=name,
    )


def _end_of_records(table: Table, shard: Shard, number: int) -> int:
    """Where in the data of a shard the last record ends."""
    end = table.index.first_records[number + 1]
    last = table.index.rows[end - 1 : end] if shard.records else table.index.rows[:0]
    return int((last["inner_offset"] + last["length"] + np.uint64(FRAME_BYTES)).sum())


def _check_state(path: str, shard: Shard, stat: Stat | None) -> None:
    what = changed_state(path, shard, stat)
    if what is not None:
        raise changed(what, path)


def _replaced(path: str) -> FileChangedError:
    return changed(f"{path}: the shard is not the one that was indexed, it was replaced", path)


def _overwritten(path: str) -> FileChangedError:
    return changed(f"{path}: the shard was truncated or overwritten", path)
