"""What one process has open of a dataset: its shards, and the maps of them."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._fork import ForkAware
from covey.errors import StorageError
from covey.reading.faults import changed
from covey.reading.local_shards import LocalShards, Table
from covey.reading.open_files import max_open_files
from covey.tfrecord.locations import longest_member


@dataclass(frozen=True, eq=False)
class Members:
    """The members of a shard: where each begins, and where the last ends."""

    edges: NDArray[np.int64]
    longest: int
    """The most bytes that one may decompress to."""


class _KeptDescriptors(ForkAware):
    """How many descriptors the datasets of this process keep, at the most."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[int, int] = {}
        self._keys = itertools.count()

    def reserve(self, owner: object, count: int) -> bool:
        """Reserve descriptors as long as `owner` lives; False if there are too few."""
        with self._lock:
            if sum(list(self._counts.values())) + count > max_open_files() // 2:
                return False
            key = next(self._keys)
            self._counts[key] = count
        # It does not take the lock: garbage may be collected while this thread holds it.
        weakref.finalize(owner, self._counts.pop, key)
        return True


_KEPT = _KeptDescriptors()


class OpenShards:
    """What one process has open."""

    def __init__(self, tables: Sequence[Table], cache_bytes: int | None) -> None:
        self.process = os.getpid()
        self.shards = LocalShards(tables, cache_bytes)
        self.gather = _core.Gather([_row_table(table) for table in tables])
        self._members: dict[tuple[int, int], Members] = {}
        self._mapping = threading.Lock()
        self._keep_open = _KEPT.reserve(self, len(self.shards))
        size = sum(shard.bytes for table in tables for shard in table.index.metadata.shards)
        self._scattered = size > _memory() // 2

    def map(self, numbers: Sequence[int]) -> None:
        """Map shards into memory: the files that were checked, whatever their paths are now."""
        # Each needs a descriptor until it is mapped.
        together = min(16, max_open_files() // 64)
        for begin in range(0, len(numbers), together):
            part = numbers[begin : begin + together]
            for number in part:
                self.shards.open(number)  # which may take long, if it is fetched or unpacked
            with self._mapping, ExitStack() as stack:
                self._map(part, stack)

    def _map(self, numbers: Sequence[int], stack: ExitStack) -> None:
        files: list[_core.ShardFile] = []
        for number in numbers:
            shard = self.shards.open(number)
            file = stack.enter_context(self.shards.take_file(number))
            mark = None if shard.identity is None else shard.identity.fingerprint
            files.append(
                _core.ShardFile(
                    shard=number,
                    path=os.fsencode(shard.path),
                    descriptor=file.fileno(),
                    size=shard.size,
                    fingerprint=mark,
                )
            )
        try:
            self.gather.set_shards(files, keep_open=self._keep_open, scattered=self._scattered)
        except OSError as error:
            raise StorageError(
                f"{os.fsdecode(error.filename)}: it cannot be mapped into memory "
                f"({error.strerror}); open the dataset with map_files=False"
            ) from None
        except _core.Fault as fault:
            path = self.shards.path(fault.offset)
            raise changed(f"{path}: the shard was truncated or has grown", path) from None

    def members(self, table: Table, shard: int) -> Members:
        """The members of a shard."""
        key = id(table), shard
        found = self._members.get(key)
        if found is None:
            shards = table.index.metadata.shards
            first, end = table.index.first_records[shard : shard + 2]
            rows = table.index.rows[first:end]
            starts = np.unique(np.minimum(rows["offset"], np.uint64(2**62))).astype(np.int64)
            edges = np.append(starts, shards[shard].bytes)
            found = self._members[key] = Members(edges, longest_member(rows["length"]))
        return found


def _row_table(table: Table) -> _core.RowTable:
    metadata = table.index.metadata
    return _core.RowTable(
        table.index.rows, shards=len(metadata.shards), single_stream=metadata.single_stream
    )


def _memory() -> int:
    """The bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
