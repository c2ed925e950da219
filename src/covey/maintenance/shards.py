"""One shard, all of it: checksums, examples, and the rows that the index has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from covey._threads import ordered_map
from covey.errors import CoveyError, FileChangedError
from covey.index import ShardFiles, changed_state
from covey.maintenance.examples import CheckedBlock, Examples
from covey.maintenance.indexes import Found
from covey.maintenance.report import Problems
from covey.maintenance.rows import RowCheck
from covey.maintenance.shard_reader import OpenShard, read_shard
from covey.results import SkippedRecord
from covey.storage import Stat
from covey.tfrecord import Block
from covey.tfrecord.locations import Members

# Blocks of one shard that are under way while one is waited for.
_AHEAD = 4


@dataclass(frozen=True)
class Shard:
    """What was found in a shard."""

    name: str
    problems: Problems
    size: int | None = None
    """In bytes; None if it is not there, or cannot be read."""
    records: int = 0
    """Those that are valid."""
    numbered: int = 0
    """The same, and those that are known to be corrupt."""
    data: int = 0
    """The bytes of valid records, without their frames."""
    damaged: bool = False


@dataclass(frozen=True)
class ShardCheck:
    """How the shards of a split are checked.

    Args:
        split: Its name.
        files: The shards.
        index: What is left of the index, if there is one.
        examples: Looks at records.
        progress: Is told of records and bytes.
        map_files: Map local shards into memory; False reads them.
    """

    split: str
    files: ShardFiles
    index: Found
    examples: Examples
    progress: Callable[[int, int], None]
    mmap: bool = True

    def __call__(self, name: str, executor: Executor | None) -> Shard:
        """Check a shard.

        Args:
            name: The shard.
            executor: Where its blocks are looked at, if not one after the other.
        """
        problems = Problems(self.split)
        storage = self.files.storage
        path = storage.join(self.files.directory, name)
        try:
            (stat,) = storage.stat([path])
            if stat is None:
                problems.add(name, "the shard is missing")
                return Shard(name, problems)
            with closing(OpenShard(storage, path, mmap=self.mmap)) as shard:
                stat = shard.stat() or stat
                found = self._read(name, shard, stat.size, executor, problems)
                if shard.stat() not in (None, stat):
                    raise FileChangedError("it was changed while it was read", path=path)
                self._check_fresh(name, shard, stat, found)
                return found
        except OSError as error:
            reason = str(error) if isinstance(error, CoveyError) else error.strerror or str(error)
            problems.add(name, f"it cannot be read: {reason.removeprefix(f'{path}: ')}")
            return Shard(name, problems)

    def _read(
        self, name: str, shard: OpenShard, size: int, executor: Executor | None, problems: Problems
    ) -> Shard:
        members: Members = []
        rows = self._rows(name, shard.compression, members, problems)
        records = numbered = data = 0
        damaged = False
        found = read_shard(shard, None if rows is None else members)
        with closing(ordered_map(self._tasks(found, name), executor, _AHEAD)) as looked:
            for each in looked:
                if isinstance(each, SkippedRecord):
                    problems.add(name, each.reason, record=each.record, offset=each.offset)
                    damaged = True
                    numbered += each.lost
                    if rows is not None:
                        rows.pass_over(each)
                    continue
                for row, why in each.misfits:
                    record = each.block.first + row
                    problems.add(name, why, record=record, offset=each.offset(row))
                if rows is not None:
                    rows.compare(each)
                records += len(each.block)
                numbered += len(each.block)
                data += int(each.block.lengths.sum())
                self.progress(len(each.block), int(each.block.lengths.sum()))
        if rows is not None:
            rows.finish(records)
        return Shard(name, problems, size, records, numbered, data, damaged)

    def _tasks(
        self, found: Iterator[Block | SkippedRecord], name: str
    ) -> Iterator[Callable[[], CheckedBlock | SkippedRecord]]:
        for each in found:
            yield partial(self._look, each, name)

    def _look(self, found: Block | SkippedRecord, name: str) -> CheckedBlock | SkippedRecord:
        return found if isinstance(found, SkippedRecord) else self.examples.look(found, name)

    def _number(self, name: str) -> int | None:
        """Which of the index's shards it is."""
        if self.index.about is None:
            return None
        names = [shard.name for shard in self.index.about.shards]
        return names.index(name) if name in names else None

    def _rows(
        self, name: str, compression: str | None, members: Members, problems: Problems
    ) -> RowCheck | None:
        about, rows, number = self.index.about, self.index.rows, self._number(name)
        if about is None or rows is None or number is None:
            return None
        by_member = about.compression is not None and not about.single_stream
        said = about.compression or "no compression"
        if about.shards[number].records and (
            (compression is not None and about.compression is None)
            or (compression is None and by_member)
        ):
            problems.add(
                self.index.names["metadata"],
                f"it says {said}, but {name} has {compression or 'no compression'}, so that its "
                "rows are of no use",
            )
            return None
        return RowCheck(about, rows, number, self.index.names["rows"], members, problems)

    def _check_fresh(self, name: str, shard: OpenShard, stat: Stat, found: Shard) -> None:
        """Compare the shard with what it was when the index was made."""
        number = self._number(name)
        if self.index.about is None or number is None:
            return
        # All of it was read: that it was only copied, or touched, is nothing to tell.
        indexed = replace(self.index.about.shards[number], version="")
        changed = changed_state(shard.path, indexed, stat)
        if changed is not None:
            what = changed.removeprefix(f"{shard.path}: ")
            found.problems.add(name, f"{what} since the index was made")
        # If it is corrupt, another fingerprint is not a wonder.
        elif not found.damaged and shard.fingerprint(indexed.bytes) != indexed.fingerprint:
            found.problems.add(
                name,
                "the shard is not the one that was indexed, it was replaced since the index was "
                "made",
            )
