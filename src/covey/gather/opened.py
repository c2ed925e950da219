"""What one process has open of a dataset: its shards, and the maps of them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import DatasetError, StorageError
from covey.gather.shards import LocalShards, Table
from covey.records.places import longest_member


@dataclass(frozen=True, eq=False)
class Members:
    """The members of a shard: where each begins, and where the last ends."""

    edges: NDArray[np.int64]
    longest: int
    """The most bytes that one may decompress to."""


class _Kept:
    """The descriptors that all datasets of this process keep together, at the most."""

    count = 0

    @classmethod
    def release(cls, count: int) -> None:
        cls.count -= count


class Opened:
    """What one process has open."""

    def __init__(self, tables: Sequence[Table], cache_bytes: int | None) -> None:
        self.process = os.getpid()
        self.shards = LocalShards(tables, cache_bytes)
        self.gather = _core.Gather([_native(table) for table in tables])
        self._members: dict[tuple[int, int], Members] = {}
        self._keep_open = _Kept.count + len(self.shards) <= _descriptors()
        if self._keep_open:
            _Kept.count += len(self.shards)
            weakref.finalize(self, _Kept.release, len(self.shards))
        size = sum(shard.bytes for table in tables for shard in table.index.about.shards)
        self._scattered = size > _memory() // 2

    def map(self, numbers: Sequence[int]) -> None:
        """Map shards into memory."""
        opened = [(number, self.shards.open(number)) for number in numbers]
        files: list[tuple[int, bytes | None, int]] = [
            (number, os.fsencode(each.path), each.size) for number, each in opened
        ]
        try:
            self.gather.set_shards(files, self._keep_open, self._scattered)
        except FileNotFoundError:
            if not self.shards.unpack_again(numbers):
                raise
            self.map(numbers)
        except OSError as error:
            raise StorageError(
                f"{os.fsdecode(error.filename)}: it cannot be mapped into memory "
                f"({error.strerror}); open the dataset with map_files=False"
            ) from None
        except _core.Fault as fault:
            _, _, number, _, expected, _ = fault.args
            raise DatasetError(
                f"{self.shards.path(number)}: the shard has no longer {expected} bytes; open the "
                "dataset again"
            ) from None

    def members(self, table: Table, shard: int) -> Members:
        """The members of a shard."""
        key = id(table), shard
        found = self._members.get(key)
        if found is None:
            shards = table.index.about.shards
            first, end = table.index.first_records[shard : shard + 2]
            rows = table.index.rows[first:end]
            starts = np.unique(np.minimum(rows["offset"], np.uint64(2**62))).astype(np.int64)
            edges = np.append(starts, shards[shard].bytes)
            found = self._members[key] = Members(edges, longest_member(rows["length"]))
        return found


def _native(table: Table) -> tuple[Any, int, int, int, int, int, int, int]:
    """A table as the native core takes it."""
    rows, about = table.index.rows, table.index.about
    fields = rows.dtype.fields
    assert fields is not None
    at = {name: int(field[1]) for name, field in fields.items()}
    offset = at["within"] if about.streamed else at["offset"]
    shards = len(about.shards)
    label = at.get("label", -1)
    return rows, len(rows), rows.dtype.itemsize, at["shard"], at["length"], offset, label, shards


def _descriptors() -> int:
    """How many files may be kept open."""
    try:
        import resource
    except ImportError:
        return 512
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def _memory() -> int:
    """The bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30
