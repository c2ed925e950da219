"""Scan of shards by the workers of an engine, for their index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from covey._progress import Progress
from covey.engines.shards import AddProgress, ShardItem, ShardPool, scan_located
from covey.index.build import ScannedShard, ShardScan, shard_changed
from covey.index.labels import FunctionLabels, LabelReader, StringLabels
from covey.storage import Stat

MakeReader = Callable[[], LabelReader | None] | None
"""Picklable function that returns a new label reader; None if the records have no label."""


def scan_in_workers(
    workers: ShardPool, scan: ShardScan, make_reader: MakeReader, bar: Progress
) -> list[ScannedShard]:
    """Return the shards of a pass, which workers have scanned.

    Args:
        workers: The workers.
        scan: The pass.
        make_reader: Function that returns the label reader of a task.
        bar: Progress bar.
    """
    reader, stats = scan.label_reader, scan.stats
    assert not isinstance(reader, FunctionLabels)
    items = [ShardItem(n, path, stats[n].size) for n, path in enumerate(scan.files.paths)]
    # GUESS is not the same object in another process.
    builder = replace(scan.builder, label=None, workers=None)
    context = replace(scan, builder=builder, stats={}, label_reader=None), make_reader
    found: dict[int, ScannedShard] = {}
    for group, (shards, strings) in workers.scan(
        _scan_group, context, items, bar, "indexing", payload=stats.__getitem__
    ):
        if isinstance(reader, StringLabels):
            ids = reader.merge(strings)
            shards = [each.with_labels(ids) for each in shards]
        found.update(zip(group, shards, strict=True))
    return [found[number] for number in range(len(items))]


def _scan_group(
    context: tuple[ShardScan, MakeReader],
    shards: Sequence[tuple[int, Stat]],
    progress: AddProgress,
) -> tuple[list[ScannedShard], tuple[str, ...]]:
    """Scan shards in a worker.

    Args:
        context: The pass, without label reader, and the function that returns it.
        shards: Number and state of each shard.
        progress: Function of the number of records and bytes that were scanned.

    Returns:
        The shards, and the strings of the label by their provisional ids.
    """
    scan, make_reader = context
    reader = None if make_reader is None else make_reader()
    scan = replace(scan, label_reader=reader, progress=progress)
    scanned: list[ScannedShard] = []
    for number, stat in shards:
        path = scan.files.paths[number]
        scanned += scan_located(path, partial(_scan_here, scan, number, stat))
    return scanned, reader.provisional() if isinstance(reader, StringLabels) else ()


def _scan_here(scan: ShardScan, number: int, expected: Stat) -> list[ScannedShard]:
    """Scan a shard whose state another node has determined."""
    storage, path = scan.files.storage, scan.files.paths[number]
    (stat,) = [expected] if storage.is_remote else storage.stat([path])
    if stat is None or (stat.size, _time(stat)) != (expected.size, _time(expected)):
        raise shard_changed(path)
    return replace(scan, stats={number: stat}).shards([number], scan.builder.threads or 1)


def _time(stat: Stat) -> str:
    """Return the version of a local file without the inode number, which depends on the mount."""
    return stat.version.partition("-")[0]
