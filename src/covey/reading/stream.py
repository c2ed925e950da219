"""Sequential reading of TFRecord files, in batches of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from covey._threads import cpu_count, ordered_map
from covey.results import SkippedRecord
from covey.schema import Features
from covey.tfrecord import Block, RecordReader
from covey.tfrecord.scan import OnError
from covey.urls import AnyPath, parse_paths

# Approximate size of the task of a decoding thread: large enough that the overhead is negligible,
# small enough for the CPU cache.
_TASK_BYTES = 2 << 20


def read_batches(
    paths: AnyPath | Iterable[AnyPath],
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
    skipped: list[SkippedRecord] | None = None,
) -> Iterator[dict[str, Any]]:
    """Read files in order, in batches of columns.

    Args:
        paths: The files, in order. A batch may contain records of several files.
        features: The features of the records.
        batch_size: Examples per batch; the last batch may have fewer.
        names: The features to decode (default: all).
        drop_remainder: Whether to drop a last batch with fewer examples.
        threads: Decoding threads (default: one per CPU core). The batches do not depend on it.
        compression, verify, on_error, max_record_bytes: As for :class:`covey.RecordReader`. A
            valid record that is not an Example of these features is always an error.
        skipped: A list to which ``on_error="skip"`` appends the skipped records.

    Yields:
        A dict of columns, as :meth:`Features.decode_batch` returns them. Batches that were decoded
        together are views of the same arrays: copy a batch to keep it without the others.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; must be an integer >= 1")
    workers = cpu_count() if threads is None else threads
    if workers < 1:
        raise ValueError(f"threads is {threads}; must be an integer >= 1")
    parsed = parse_paths(paths, "paths")
    files = [parsed] if isinstance(parsed, str) else parsed
    selected = features if names is None else features.select(names)
    options: dict[str, Any] = {
        "compression": compression,
        "verify": verify,
        "on_error": on_error,
        "max_record_bytes": max_record_bytes,
    }
    blocks = _blocks(files, options, [] if skipped is None else skipped)
    tasks = _tasks(blocks, batch_size, drop_remainder)
    return _run(selected, tasks, batch_size, workers)


def _blocks(
    paths: Sequence[str], options: dict[str, Any], skipped: list[SkippedRecord]
) -> Iterator[Block]:
    for path in paths:
        with RecordReader(path, **options) as reader:
            # Decoding threads verify the data, except if corrupt records are skipped here.
            yield from reader.blocks(verify_data=options["on_error"] == "skip")
            skipped.extend(reader.skipped)


def _tasks(
    blocks: Iterator[Block], batch_size: int, drop_remainder: bool
) -> Iterator[tuple[list[Block], int]]:
    """Split blocks into tasks of whole batches: (blocks, number of rows)."""
    held: list[Block] = []
    rows = size = 0
    for block in blocks:
        held.append(block)
        rows += len(block)
        size += int(block.lengths.sum())
        # The number of batches of a task, by the average size of the rows held; at least one.
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
    """Return the first rows of blocks, and the remaining ones."""
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
        # Also if the consumer stops early: cancel the remaining tasks.
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


def _slice(columns: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {
        name: _slice(column, start, stop) if isinstance(column, dict) else column[start:stop]
        for name, column in columns.items()
    }
