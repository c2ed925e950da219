"""The shards of a dataset as local files: themselves, unpacked, or as far as they were fetched."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, StorageError
from covey.gather.unpacking import release, unpack
from covey.index import Index
from covey.indexing import ShardFiles, changed_content, changed_state
from covey.records.block import FRAME_BYTES
from covey.shards import FINGERPRINT_BYTES, Shard, fingerprint
from covey.storage import LocalBlocks, Stat, Storage, cache_limit, fetch_many

# How often remote blocks that are removed at once are fetched again.
_TRIES = 8

# Files that are kept open at the most, if they are read and not mapped.
_OPEN_FILES = 64

# Remote shards that are opened at the same time, and what of the cache there must be for each.
_AT_ONCE = 8
_BYTES_FOR_EACH = 2 << 20

_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class Table:
    """A split to gather from: its index, and where its shards are."""

    index: Index
    files: ShardFiles


@dataclass(eq=False)
class LocalShard:
    """A shard that was opened."""

    path: str
    size: int
    blocks: LocalBlocks | None
    """If it is remote: what fetches it, and knows whether it was begun anew."""
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
Held = tuple[tuple[LocalShard, int], ...]


class LocalShards:
    """Opens shards when they are first needed, and makes sure that they are those of the index.

    Shards are numbered through all tables. Threads may share it; processes may not.
    """

    def __init__(self, tables: Sequence[Table], cache_bytes: int | None) -> None:
        self._cache_bytes = cache_bytes
        self._where: list[tuple[Table, str, Shard]] = [
            (table, path, shard)
            for table in tables
            for path, shard in zip(table.files.paths, table.index.about.shards, strict=True)
        ]
        self._first: dict[int, int] = {}
        for number, (table, _, _) in enumerate(self._where):
            self._first.setdefault(id(table), number)
        self._opened: dict[int, LocalShard] = {}
        # Each with the generation of the file that it is of.
        self._descriptors: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()  # of one process: whoever forks opens everything anew
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
            DatasetError: If it is missing, or not the one that was indexed.
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
        (stat,) = storage.stat([path])
        _refuse(changed_state(path, shard, stat))
        assert stat is not None
        if storage.is_remote and not table.index.about.streamed:
            return _open_remote(storage, path, shard, stat)
        _refuse(changed_content(storage, path, shard))
        if table.index.about.streamed:
            needed = _end_of_records(table, shard, number - self._first[id(table)])
            unpacked, size = unpack(storage, path, shard, stat, needed, self._cache_bytes)
            return LocalShard(unpacked, size, None, unpacked=True)
        return LocalShard(path, shard.bytes, None)

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
    ) -> Held:
        """Wait until ranges of bytes of remote shards are there.

        Args:
            shards, begins, ends: The ranges.
            hold: Opens or maps the files of shards. What is held then cannot be taken away by
                another process that makes room for its own.

        Returns:
            What is held. Another thread may hold files anew, with less in them: what is read
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

    def _hold(self, numbers: Sequence[int], hold: Callable[[Sequence[int]], None]) -> Held:
        """Hold the files that are fetched into now."""
        opened = [(number, self.open(number)) for number in numbers]
        with self._holding:
            stale = [(number, each, each.newest) for number, each in opened if not each.is_held]
            # Another process may just have removed a file: it is begun anew, and held then.
            with contextlib.suppress(FileNotFoundError):
                hold([number for number, _, _ in stale])
                for _, each, generation in stale:
                    each.generation = generation
            return tuple((each, each.generation) for _, each in opened)

    @staticmethod
    def still_holds(held: Held) -> bool:
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
            descriptor = self._take(number)
            self._put_back(number, descriptor)

    def read(self, number: int, begin: int, end: int) -> bytes:
        """Bytes of a shard; fewer if it ends before."""
        taken = self._take(number)
        try:
            descriptor, _ = taken
            os.lseek(descriptor, begin, os.SEEK_SET)  # nobody else has the descriptor now
            data = os.read(descriptor, end - begin)
            while len(data) < end - begin:  # systems give 2 GiB at a time at the most
                more = os.read(descriptor, end - begin - len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._put_back(number, taken)

    def _take(self, number: int) -> tuple[int, int]:
        """A descriptor of a shard, for nobody else meanwhile, and the generation of its file."""
        opened = self.open(number)
        with self._lock:
            kept = self._descriptors.pop(number, None)
        if kept is not None and kept[1] == opened.newest:
            return kept
        if kept is not None:
            os.close(kept[0])
        while True:
            generation = opened.newest
            try:
                descriptor = os.open(opened.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except FileNotFoundError:
                if opened.blocks is None and not self.unpack_again([number]):
                    raise
                opened.look()  # another process has made room: it is begun anew
                continue
            try:
                if opened.look() == generation:
                    return descriptor, generation
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _put_back(self, number: int, descriptor: tuple[int, int]) -> None:
        """Keep a descriptor for the next time; close the one that was used longest ago."""
        with self._lock:
            spare = self._descriptors.pop(number, None)
            self._descriptors[number] = descriptor
            if spare is None and len(self._descriptors) > _OPEN_FILES:
                _, spare = self._descriptors.popitem(last=False)
        if spare is not None:
            os.close(spare[0])

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
                with self._lock:
                    kept = self._descriptors.pop(number, None)
                if kept is not None:
                    os.close(kept[0])
                self.unpack_again([number])
                replaced.append(number)
        return replaced if cached or replaced else None

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            descriptors = [descriptor for descriptor, _ in self._descriptors.values()]
            self._descriptors.clear()
            opened = list(self._opened.values())
            self._opened.clear()
        for descriptor in descriptors:
            os.close(descriptor)
        for each in opened:
            each.close()

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()


def _open_remote(storage: Storage, path: str, shard: Shard, stat: Stat) -> LocalShard:
    """A remote shard, if it is the one of the index."""
    blocks = storage.open_blocks(path)
    try:
        # If its version is known, that tells; else it is compared with what was indexed.
        if not (shard.version and stat.version) and not _begins_and_ends_like(blocks, shard):
            _refuse(f"{path}: the shard is not the one that was indexed, it was replaced")
        if storage.stat([path]) != [stat]:  # then the blocks might be of another
            _refuse(f"{path}: the shard was changed just now")
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
        f"{name}: what is fetched of it is removed again and again; there is too little room in "
        "the cache: pass cache_bytes= or set COVEY_CACHE_BYTES to more"
    )


def _end_of_records(table: Table, shard: Shard, number: int) -> int:
    """Where in the data of a shard the last record ends."""
    end = table.index.first_records[number + 1]
    last = table.index.rows[end - 1 : end] if shard.records else table.index.rows[:0]
    return int((last["within"] + last["length"] + np.uint64(FRAME_BYTES)).sum())


def _refuse(changed: str | None) -> None:
    if changed is not None:
        raise DatasetError(f"{changed}; open the dataset again, or index it anew")
