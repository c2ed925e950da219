"""Reading TFRecord files from end to end, into batches of columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from covey._threads import cpu_count, ordered_map
from covey.results import SkippedRecord
from covey.schema import Features
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.reader import OnError

# A thread is given about this much to decode at once: enough that handing it over costs nothing,
# little enough to stay in the cache.
_TASK_BYTES = 2 << 20


def read_batches(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    features: Features,
    batch_size: int = 128,
    *,
    names: Iterable[str] | None = None,
    drop_remainder: bool = False,
    threads: int | None = None,
    compression: str | None = "auto",
    verify: bool = True,
    on_error: OnError = "raise",
    max_record_bytes: int = 1 << 28,
    mmap: bool = True,
    skipped: list[SkippedRecord] | None = None,
) -> Iterator[dict[str, Any]]:
    """Read files one after the other, in batches of columns.

    Args:
        paths: The files, in order. A batch may reach from one into the next.
        features: How to decode the records.
        batch_size: Examples in a batch; the last one may have fewer.
        names: Decode only these features.
        drop_remainder: Leave out a last batch that is not full.
        threads: How many decode at once; all CPU cores by default. The batches do not depend on it.
        compression, verify, on_error, max_record_bytes, map_files: As for
            :class:`covey.RecordReader`. A record that is valid but no Example, or does not fit the
            features, is always an error.
        skipped: A list to which ``on_error="skip"`` adds what it left out.

    Yields:
        A dict of columns, as :meth:`Features.decode_batch` gives them. Batches that were decoded
        together are views of the same arrays: copy one to keep it and not the others.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; must be 1 or more")
    workers = cpu_count() if threads is None else threads
    if workers < 1:
        raise ValueError(f"threads is {threads}; must be 1 or more")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    wanted = features if names is None else features.select(names)
    options: dict[str, Any] = {
        "compression": compression,
        "verify": verify,
        "on_error": on_error,
        "max_record_bytes": max_record_bytes,
        "mmap": mmap,
    }
    blocks = _blocks(listed, options, [] if skipped is None else skipped)
    tasks = _tasks(blocks, batch_size, drop_remainder)
    return _run(wanted, tasks, batch_size, workers)


def _blocks(
    paths: Sequence[str | os.PathLike[str]], options: dict[str, Any], skipped: list[SkippedRecord]
) -> Iterator[Block]:
    for path in paths:
        with RecordReader(path, **options) as reader:
            # A caller that decodes also verifies, on its own core; but who skips must know at once.
            yield from reader.blocks(verify_data=options["on_error"] == "skip")
            skipped.extend(reader.skipped)


def _tasks(
    blocks: Iterator[Block], batch_size: int, drop_remainder: bool
) -> Iterator[tuple[list[Block], int]]:
    """Cut blocks into tasks of whole batches: (blocks, rows in all)."""
    held: list[Block] = []
    rows = size = 0
    for block in blocks:
        held.append(block)
        rows += len(block)
        size += int(block.lengths.sum())
        # As many whole batches as make a task, by the average of what is held; one at least.
        task = max(1, _TASK_BYTES * rows // (max(1, size) * batch_size)) * batch_size
        while rows >= task:
            ready, held = _cut(held, task)
            yield ready, task
            rows -= task
            size = sum(int(block.lengths.sum()) for block in held)
    rest = rows // batch_size * batch_size if drop_remainder else rows
    if rest:
        yield _cut(held, rest)[0], rest


def _cut(blocks: list[Block], rows: int) -> tuple[list[Block], list[Block]]:
    """The first rows of blocks, and the rest."""
    for i, block in enumerate(blocks):
        if rows < len(block):
            return [*blocks[:i], block[:rows]], [block[rows:], *blocks[i + 1 :]]
        rows -= len(block)
    return blocks, []


def _run(
    features: Features,
    tasks: Iterator[tuple[list[Block], int]],
    batch_size: int,
    workers: int,
) -> Iterator[dict[str, Any]]:
    def decode(blocks: list[Block], rows: int) -> tuple[dict[str, Any], int]:
        return features.decode_batch(blocks), rows

    work = (partial(decode, blocks, rows) for blocks, rows in tasks)
    pool = ThreadPoolExecutor(workers, thread_name_prefix="covey-decode") if workers > 1 else None
    try:
        for columns, rows in ordered_map(work, pool, workers + 1):
            for start in range(0, rows, batch_size):
                yield _slice(columns, start, min(start + batch_size, rows))
    finally:
        # Also when the consumer leaves early: nothing is decoded that nobody wants.
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _slice(columns: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {
        name: _slice(column, start, stop) if isinstance(column, dict) else column[start:stop]
        for name, column in columns.items()
    }
