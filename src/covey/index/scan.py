"""Scans of shards: each is opened once, and its blocks are checked in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar

from covey import _core
from covey._threads import ordered_map
from covey.errors import FileChangedError
from covey.index.format import fingerprint_of
from covey.results import SkippedRecord
from covey.schema import Features
from covey.schema.infer import survey_block, survey_kinds
from covey.storage import Stat, Storage
from covey.storage.local import local_stat
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.block import RecordLocations
from covey.tfrecord.scan import OnError
from covey.untrusted import RegularFile

if TYPE_CHECKING:
    from covey.index.store import ShardFiles

T = TypeVar("T")

# Blocks of a shard that are checked at the same time.
_BLOCKS_IN_FLIGHT = 4


def scan_shards(scans: Sequence[Callable[[Executor | None], T]], threads: int) -> list[T]:
    """Run scans of shards: concurrently if there are at least as many as threads, else by block.

    Args:
        scans: Functions that take the executor of the blocks; None scans them sequentially.
        threads: Number of threads.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="covey-scan") as pool:
        by_shard = len(scans) >= threads
        blocks = None if by_shard or threads == 1 else pool
        tasks = (partial(scan, blocks) for scan in scans)
        return list(ordered_map(tasks, pool if by_shard else None, threads))


@dataclass(frozen=True, slots=True)
class ShardScan(Generic[T]):
    """Result of the scan of a shard."""

    stat: Stat
    compression: str | None
    locations: RecordLocations
    """Locations of the records with valid checksums."""
    skipped: tuple[SkippedRecord, ...]
    """Corrupt ranges."""
    fingerprint: int
    blocks: list[T]
    """Results of the check of each block, in order."""


def scan_shard(
    storage: Storage,
    path: str,
    stat: Stat,
    check: Callable[[Block], T],
    executor: Executor | None = None,
    *,
    progress: Callable[[int, int], None],
    on_error: OnError = "raise",
    verify_data: bool = True,
    warns: bool = True,
) -> ShardScan[T]:
    """Scan a shard, and check its blocks.

    Args:
        storage: Storage of the shard.
        path: Path of the shard.
        stat: State of the shard before the scan.
        check: Function of a block, called in threads.
        executor: Executor of `check`; None checks the blocks in this thread.
        progress: Called with the records and bytes of each block.
        on_error: ``"skip"`` skips corrupt records.
        verify_data: Whether the checksums of the data are verified before `check`, which verifies
            them otherwise.
        warns: Whether skipped records cause a warning.

    Raises:
        CorruptRecordError: If a record is corrupt.
        FileChangedError: If the shard changes during the scan, in place of any other error.
    """
    skipped: list[SkippedRecord] = []
    with (
        open_shard(storage, path, stat) as file,
        RecordReader(file, on_error=on_error) as reader,
    ):
        locations = RecordLocations(reader.compression)
        read = reader.blocks if warns else reader.scan

        def blocks() -> Iterator[Block]:
            for each in read(verify_data=verify_data, members=locations.members):
                if isinstance(each, SkippedRecord):
                    skipped.append(each)
                else:
                    locations.add(each)
                    yield each

        def run(block: Block) -> tuple[T, int, int]:
            return check(block), len(block), int(block.lengths.sum())

        found: list[T] = []
        tasks = (partial(run, block) for block in blocks())
        with closing(ordered_map(tasks, executor, _BLOCKS_IN_FLIGHT)) as results:
            for result, records, size in results:
                found.append(result)
                progress(records, size)
        skipped += reader.skipped
        mark = fingerprint_of(file, stat.size)
        return ShardScan(stat, reader.compression, locations, tuple(skipped), mark, found)


@contextmanager
def open_shard(storage: Storage, path: str, stat: Stat) -> Iterator[BinaryIO]:
    """Open a shard, and check before and after that its state is ``stat``.

    Raises:
        FileChangedError: If it is not, in place of any other error.
    """
    try:
        file = open_source(storage, path)
    except FileNotFoundError:
        raise _changed(path) from None
    with file:
        try:
            yield file
        finally:
            if state_of(file) not in (None, stat):
                raise _changed(path)


def _changed(path: str) -> FileChangedError:
    return FileChangedError(
        "the shard was modified while it was read", path=path, remedy="open the dataset again"
    )


def open_source(storage: Storage, path: str) -> BinaryIO:
    """Open a shard from its beginning.

    Raises:
        StorageError: If a local shard is not a regular file.
    """
    return storage.open_stream(path) if storage.is_remote else RegularFile(path)


def state_of(file: BinaryIO) -> Stat | None:
    """Return the state of an open shard; None if it is remote: its requests validate it."""
    return local_stat(file.stat()) if isinstance(file, RegularFile) else None


@contextmanager
def open_reader(storage: Storage, path: str, **options: Any) -> Iterator[RecordReader]:
    """Open a RecordReader of a shard, as :func:`open_source` does."""
    with open_source(storage, path) as source, RecordReader(source, **options) as reader:
        yield reader


def find_first_features(
    files: ShardFiles, on_error: OnError = "raise"
) -> tuple[Features, Block | None]:
    """Return the features of the first record of the shards, and the record."""
    for path in files.paths:
        with open_reader(files.storage, path, on_error=on_error) as reader:
            for block in reader.blocks():
                survey = _core.Survey()
                survey_block(survey, block[:1])
                return Features(survey_kinds([survey])), block[:1]
    return Features({}), None
