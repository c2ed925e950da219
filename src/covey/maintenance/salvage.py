"""What of a split is valid: found out in one pass, given out in another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._threads import ordered_map
from covey.errors import CoveyError, FileChangedError
from covey.index import ShardFiles
from covey.maintenance.examples import Examples
from covey.maintenance.shard_reader import OpenShard, read_shard
from covey.results import Problem, SkippedRecord
from covey.shuffle.keys import ClassSizes, OrderedRecords, Part
from covey.storage import Stat
from covey.tfrecord import Block
from covey.tfrecord.block import FRAME_BYTES
from covey.writing.shards import Cuts, Sharding


@dataclass
class SoundShard:
    """What can be saved of a shard."""

    name: str
    compression: str | None = None
    stat: Stat | None = None
    """Its state when it was read."""
    records: int = 0
    bytes: int = 0
    """Of these records, in their frames."""
    lost: list[Problem] = field(default_factory=list)
    misfits: list[int] = field(default_factory=list)
    """The numbers of records that are read, but left out."""
    texts: set[str] = field(default_factory=set)
    """The classes, if they are strings."""
    surveys: list[_core.Survey] = field(default_factory=list)


@dataclass(frozen=True)
class Saving:
    """Looks for what is valid in the shards of a split.

    Args:
        split: Its name.
        files: The shards.
        examples: Looks at records.
        said: How many records each shard should have, if something says so.
        progress: Is told of records and bytes.
        map_files: Map local shards into memory; False reads them.
    """

    split: str
    files: ShardFiles
    examples: Examples
    said: tuple[int, ...] | None
    progress: Callable[[int, int], None]
    mmap: bool = True

    def find(self, executor: Executor | None, threads: int) -> list[SoundShard]:
        """Look through all shards, several at a time."""
        tasks = (partial(self._find, number) for number in range(len(self.files.names)))
        return list(ordered_map(tasks, executor, threads))

    def _find(self, number: int) -> SoundShard:
        found = SoundShard(self.files.names[number])
        path = self.files.paths[number]
        try:
            (stat,) = self.files.storage.stat([path])
            if stat is None:
                records = "" if self.said is None else f", with its {self.said[number]:,} records"
                self._lose(found, None, None, f"the shard is missing{records}")
                return found
            with closing(OpenShard(self.files.storage, path, mmap=self.mmap)) as shard:
                found.compression, found.stat = shard.compression, shard.stat()
                self._read(found, shard)
        except OSError as error:
            # What was read of it before may be read differently next time: none of it is taken.
            reason = str(error) if isinstance(error, CoveyError) else error.strerror or str(error)
            found = SoundShard(found.name)
            self._lose(found, None, None, f"it cannot be read: {reason.removeprefix(f'{path}: ')}")
        return found

    def _read(self, found: SoundShard, shard: OpenShard) -> None:
        for each in read_shard(shard):
            if isinstance(each, SkippedRecord):
                if each.lost:
                    self._lose(found, each.record, each.offset, each.reason)
                continue
            looked = self.examples.look(each, found.name)
            for row, why in looked.misfits:
                self._lose(found, each.first + row, looked.offset(row), why)
                found.misfits.append(each.first + row)
            for part in looked.parts:
                found.records += len(part)
                found.bytes += _frame_bytes(part)
            found.texts |= looked.texts
            found.surveys += looked.surveys
            self.progress(len(each), int(each.lengths.sum()))

    def _lose(self, found: SoundShard, record: int | None, offset: int | None, why: str) -> None:
        found.lost.append(Problem(found.name, record, offset, why, self.split))


def _frame_bytes(block: Block) -> int:
    return int(block.lengths.sum()) + FRAME_BYTES * len(block)


class SoundRecords(OrderedRecords):
    """The valid records of a split, in their order.

    Args:
        files: The shards.
        shards: What is valid in each.
    """

    def __init__(self, files: ShardFiles, shards: list[SoundShard]) -> None:
        self._files = files
        self._shards = shards
        self.records = sum(shard.records for shard in shards)
        self.bytes = sum(shard.bytes for shard in shards)

    def tasks(self) -> Iterator[Callable[[], Part]]:
        for path, shard in zip(self._files.paths, self._shards, strict=True):
            given = 0
            for block in self._blocks(path, shard) if shard.records else ():
                given += len(block)
                yield partial(_with_no_classes, block)
            if given != shard.records:
                raise _changed(path)

    def _blocks(self, path: str, shard: SoundShard) -> Iterator[Block]:
        """The valid records of a shard, in blocks without a gap."""
        # Read and not mapped: blocks are written to a file as they are.
        with closing(OpenShard(self._files.storage, path, mmap=False)) as opened:
            if opened.stat() != shard.stat:
                raise _changed(path)
            yield from self._sound(opened, shard)

    def _sound(self, opened: OpenShard, shard: SoundShard) -> Iterator[Block]:
        misfits = np.array(shard.misfits, np.int64)
        for each in read_shard(opened):
            if isinstance(each, SkippedRecord):
                continue
            begin, end = np.searchsorted(misfits, [each.first, each.first + len(each)])
            at = 0
            for row in (*(misfits[begin:end] - each.first).tolist(), len(each)):
                if row > at:
                    yield each[at:row]
                at = row + 1

    def classes(self) -> ClassSizes:
        raise AssertionError("shards end where they did, whatever their classes")


def _changed(path: str) -> FileChangedError:
    return FileChangedError("it was changed while it was repaired; repair it again", path=path)


def _with_no_classes(block: Block) -> Part:
    return block, None


@dataclass(frozen=True, slots=True)
class ShardingAsBefore(Sharding):
    """Shards end where they did; those of which nothing is left are gone."""

    ends: tuple[int, ...] = ()
    """How many records there are up to the end of each."""

    def plan(self, ordered: OrderedRecords, *, by_class: bool) -> Cuts:
        ends: NDArray[np.int64] = np.unique(np.array(self.ends, np.int64))
        return Cuts("records", ends[ends > 0])
