"""The shards of a dataset as local files: themselves, unpacked, or as far as they were fetched."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.errors import DatasetError, StorageError
from covey.gather.unpacking import release, unpack
from covey.index import Index
from covey.indexing import ShardFiles, changed_content, changed_state
from covey.shards import Shard
from covey.storage import LocalBlocks, fetch_many

# How often remote blocks that are removed at once are fetched again.
_TRIES = 8

# Files that are kept open at the most, if they are read and not mapped.
_OPEN_FILES = 64


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
        return self.blocks is None or self.generation == self.blocks.generation


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
        self._opened: dict[int, LocalShard] = {}
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()  # of one process: whoever forks opens everything anew
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
        with self._lock:
            if number not in self._opened:
                self._opened[number] = self._open(number)
            return self._opened[number]

    def _open(self, number: int) -> LocalShard:
        table, path, shard = self._where[number]
        storage = table.files.storage
        (stat,) = storage.stat([path])
        changed = changed_state(path, shard, stat)
        if changed is None:
            changed = changed_content(storage, path, shard)
        if changed is not None:
            raise DatasetError(f"{changed}; open the dataset again, or index it anew")
        if table.index.about.streamed:
            unpacked = unpack(storage, path, shard, self._cache_bytes)
            return LocalShard(unpacked, os.stat(unpacked).st_size, None, unpacked=True)
        if storage.is_remote:
            blocks = storage.open_blocks(path)
            return LocalShard(blocks.path, shard.bytes, blocks)
        return LocalShard(path, shard.bytes, None)

    def fetch(
        self,
        shards: NDArray[np.int64],
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        hold: Callable[[Sequence[int]], None],
    ) -> None:
        """Wait until ranges of bytes of remote shards are there.

        Args:
            shards, begins, ends: The ranges.
            hold: Opens or maps the files of shards. What is held then cannot be taken away by
                another process that makes room for its own.
        """
        numbers = [n for n in np.unique(shards).tolist() if self.open(n).blocks is not None]
        stale = [number for number in numbers if not self.open(number).is_held]
        for _ in range(_TRIES):
            for number in stale:
                opened = self.open(number)
                assert opened.blocks is not None
                opened.path, opened.generation = opened.blocks.path, opened.blocks.generation
                self._forget(number)
            with contextlib.suppress(FileNotFoundError):  # somebody was faster: it is fetched anew
                hold(stale)
            fetch_many([self._wanted(number, shards, begins, ends) for number in numbers])
            stale = [number for number in numbers if not self.open(number).is_held]
            if not stale:
                return
        raise StorageError(
            f"{self.path(stale[0])}: what is fetched of it is removed again and again; there is "
            "too little room in the cache: set COVEY_CACHE_BYTES to more"
        )

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
        descriptor = self._take(number)
        try:
            if hasattr(os, "pread"):
                return os.pread(descriptor, end - begin, begin)
            os.lseek(descriptor, begin, os.SEEK_SET)  # nobody else has the descriptor now
            return os.read(descriptor, end - begin)
        finally:
            self._put_back(number, descriptor)

    def _take(self, number: int) -> int:
        """A descriptor of a shard, for nobody else meanwhile."""
        with self._lock:
            descriptor = self._descriptors.pop(number, None)
        if descriptor is None:
            flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
            descriptor = os.open(self.open(number).path, flags)
        return descriptor

    def _put_back(self, number: int, descriptor: int) -> None:
        """Keep a descriptor for the next time; close the one that was used longest ago."""
        with self._lock:
            spare = self._descriptors.pop(number, None)
            self._descriptors[number] = descriptor
            if spare is None and len(self._descriptors) > _OPEN_FILES:
                _, spare = self._descriptors.popitem(last=False)
        if spare is not None:
            os.close(spare)

    def _forget(self, number: int) -> None:
        with self._lock:
            descriptor = self._descriptors.pop(number, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            descriptors = list(self._descriptors.values())
            self._descriptors.clear()
            opened = list(self._opened.values())
            self._opened.clear()
        for descriptor in descriptors:
            os.close(descriptor)
        for each in opened:
            if each.blocks is not None:
                each.blocks.close()
            if each.unpacked:
                release(each.path)

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()
