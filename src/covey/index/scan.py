"""Scans of shards: each is opened once, and its blocks are checked in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeVar

from covey._threads import ordered_map
from covey.storage import Stat, Storage
from covey.storage.local import local_stat
from covey.tfrecord import RecordReader
from covey.untrusted import RegularFile

T = TypeVar("T")
Found = TypeVar("Found")

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


def map_blocks(
    check: Callable[[Found], T], found: Iterable[Found], executor: Executor | None
) -> Iterator[T]:
    """Yield the results of a function of the blocks of a shard, in order."""
    tasks = (partial(check, each) for each in found)
    with closing(ordered_map(tasks, executor, _BLOCKS_IN_FLIGHT)) as results:
        yield from results


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
