"""``covey write``: write a source as a split of a dataset."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.formatting import class_cells, print_lines, print_message, table
from covey.cli.options import (
    add_progress,
    add_storage_option,
    check_report,
    count_or_fraction,
    default,
    fraction,
    kind,
    positive,
    shows_progress,
    size,
    write_report,
)
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, SourceError

if TYPE_CHECKING:
    from covey.results import SkippedRecord, WriteResult
    from covey.sources import Source

SUMMARY = "write labelled data as a split of a TFRecord dataset, shuffled, sharded and indexed"

# The names of covey.sources.KINDS, which is slow to import.
KINDS = (
    "image directory, image table, CSV, JSON Lines, JSON, Parquet, NPZ, TFRecords, TFDS directory"
)

EXAMPLES = """\
examples:
  covey write photos data/birds                     a directory of images per class
  covey write birds.csv data/birds --label species
  covey write glyphs.npz data/glyphs --held-out-classes 100
  covey write photos data/birds --val-fraction 0.1 --on-error skip --report bad.jsonl
  covey write more.jsonl data/birds --mode append
  covey write photos s3://bucket/birds --storage-option profile=mine
"""

_MAX_LISTED = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("source", metavar="SOURCE", help="file, directory, or quoted pattern")
    parser.add_argument("target", metavar="TARGET", help="directory or URL of the dataset")

    reading = parser.add_argument_group("source")
    reading.add_argument(
        "--kind", type=kind, help=f"format of SOURCE (default: detected from its content): {KINDS}"
    )
    reading.add_argument("--label", help="label feature (default: a feature with a common name)")
    reading.add_argument(
        "--key", help="feature that is unique to an example (default: its file, id or position)"
    )
    reading.add_argument(
        "--source-split", metavar="NAME", help="split of SOURCE to read (default: that of --split)"
    )
    reading.add_argument(
        "--default",
        metavar="NAME=VALUE",
        type=default,
        action="append",
        default=[],
        help="value of a feature that JSON objects lack; may be repeated",
    )
    reading.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="skip: skip and list examples that cannot be read (default: raise)",
    )
    reading.add_argument(
        "--report", metavar="FILE", help="write the skipped examples to FILE, as JSON Lines"
    )

    splits = parser.add_argument_group("splits")
    splits.add_argument("--split", default="train", help="split to write (default: train)")
    held_out = splits.add_mutually_exclusive_group()
    held_out.add_argument(
        "--val-fraction",
        metavar="FRACTION",
        type=fraction,
        help="write about this fraction of the examples as a second split; the hash of the key "
        "decides, so the side of an example does not depend on the others",
    )
    held_out.add_argument(
        "--held-out-classes",
        metavar="N",
        type=count_or_fraction,
        help="write this number (or percentage) of the classes as a second split, to evaluate on "
        "unseen classes; the hashes of the class names decide",
    )
    splits.add_argument("--val-split", metavar="NAME", help="second split (default: val)")
    splits.add_argument(
        "--val-seed",
        metavar="N",
        type=int,
        default=0,
        help="seed of the division (default: 0); --seed does not change it",
    )
    splits.add_argument(
        "--mode",
        choices=("error", "overwrite", "append"),
        default="error",
        help="what to do if a split exists (default: error)",
    )

    order = parser.add_argument_group("order")
    order.add_argument("--seed", type=int, default=0, help="seed of the order (default: 0)")
    order.add_argument("--no-shuffle", action="store_true", help="keep the order of SOURCE")
    order.add_argument(
        "--sort-by-class",
        action="store_true",
        help="store the examples of each class together, for readers that stream them",
    )

    files = parser.add_argument_group("files")
    shards = files.add_mutually_exclusive_group()
    shards.add_argument("--shards", metavar="N", type=positive, help="shards of each split")
    shards.add_argument(
        "--records-per-shard", metavar="N", type=positive, help="records in each shard"
    )
    shards.add_argument(
        "--shard-bytes",
        metavar="SIZE",
        type=size,
        default=256 << 20,
        help="size of each shard (default: 256M)",
    )
    files.add_argument(
        "--compression",
        choices=("none", "gzip", "zlib"),
        default="none",
        help="gzip keeps random access; TFDS reads only none (default: none)",
    )
    files.add_argument(
        "--compression-level", type=int, choices=range(10), default=6, help="(default: 6)"
    )
    add_storage_option(files)
    files.add_argument("--name", help="name of the dataset (default: that of its directory)")
    files.add_argument("--description", default="", help="description of the dataset")

    running = parser.add_argument_group("running")
    running.add_argument(
        "--workers", metavar="N", type=positive, help="number of threads or processes"
    )
    running.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=size,
        default=512 << 20,
        help="approximate size of the examples in memory; more are spilled to disk (default: 512M)",
    )
    add_progress(running)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    _check(options)
    source = _open(options)
    skipped: list[tuple[str, SkippedRecord, int]] = []
    written: list[WriteResult] = []
    try:
        for split, part in _divide(source, options):
            result = _write(part, split, options)
            skipped += [(split, each, _position(part, each.record)) for each in result.skipped]
            written.append(result)
    except BaseException:
        if written:
            print_message(f"split {written[0].split!r} is written; the following error is later")
        raise
    if not options.quiet:
        print_lines(*summary(written))
    _report(skipped, source, options)


def _check(options: argparse.Namespace) -> None:
    """Raise the errors that are known before the source is read."""
    from covey.dataset_info import check_split_name
    from covey.urls import shown

    splits = _splits(options)
    if options.val_split is not None and len(splits) == 1:
        options.refuse("--val-split needs --val-fraction or --held-out-classes")
    if len(set(splits)) < len(splits):
        options.refuse(f"--split and --val-split are both {options.split!r}")
    for split in splits:
        check_split_name(split)
    _check_target(options)
    if os.path.realpath(options.source) == os.path.realpath(options.target):
        raise DatasetError("SOURCE and TARGET are the same", path=shown(options.target))
    check_report(options.report)


def _splits(options: argparse.Namespace) -> list[str]:
    divides = options.val_fraction is not None or options.held_out_classes is not None
    return [options.split, options.val_split or "val"] if divides else [options.split]


def _check_target(options: argparse.Namespace) -> bool:
    """Return whether the dataset has no schema that the splits must have.

    Raises:
        DatasetError: If a split cannot be written.
    """
    from covey.urls import shown
    from covey.writing.target import TargetSplit

    try:
        with _directory(options) as directory:
            found = [
                TargetSplit.inspect(directory, split, options.mode, options.name)
                for split in _splits(options)
            ]
            return all(each.known_schema()[0] is None for each in found)
    except NotADirectoryError:
        raise DatasetError("must be a directory, is a file", path=shown(options.target)) from None


@contextmanager
def _directory(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the directory of the dataset, or a local copy of the metadata of a URL."""
    from covey.storage import is_remote
    from covey.writing.publish import RemoteStaging

    if not is_remote(options.target):
        yield Path(options.target)
        return
    storage = dict(options.storage_option)
    with RemoteStaging(options.target, options.split, appends=False, options=storage) as mirror:
        yield mirror.directory


def _open(options: argparse.Namespace) -> Source:
    """Open the source, and print its description."""
    from covey.sources import open_source

    source = open_source(
        options.source,
        kind=options.kind,
        label=options.label,
        split=options.source_split or options.split,
    )
    if not options.quiet:
        print_lines(f"{source.path}: {', '.join([source.kind, *_describe(source)])}")
    return source


def _describe(source: Source) -> Iterator[str]:
    from covey import ClassLabel

    if source.length is not None:
        yield f"{source.length:,} {'images' if source.kind.startswith('image') else 'examples'}"
    if source.label is None:
        yield "no label (--label specifies one)"
        return
    kind = None if source.features is None else source.features.get(source.label)
    column: Any = (source.columns or {}).get(source.label)
    if isinstance(kind, ClassLabel) and kind.names is not None:
        yield f"{len(kind.names):,} classes of {source.label!r}"
    elif hasattr(column, "tolist"):
        yield f"{len(set(column.tolist())):,} classes of {source.label!r}"
    else:
        yield f"label {source.label!r}"


def _divide(source: Source, options: argparse.Namespace) -> list[tuple[str, Source]]:
    """Return the splits to write with their sources."""
    splits = _splits(options)
    if len(splits) == 1:
        return [(options.split, source)]
    from covey._progress import Progress
    from covey.sources.hold_out import hold_out

    classes = options.held_out_classes
    # An existing split determines the schema; without one, both parts must have the same.
    infers = _check_target(options)
    with Progress(shows_progress(options), source.length, "dividing") as bar, _named(source):
        parts = hold_out(
            source,
            fraction=options.val_fraction,
            classes=classes if isinstance(classes, int) else None,
            class_fraction=classes if isinstance(classes, float) else None,
            key=options.key,
            label=options.label,
            seed=options.val_seed,
            infer=infers,
            defaults=dict(options.default),
            on_error=options.on_error,
            progress=bar.add,
        )
    return list(zip(splits, parts, strict=True))


def _write(source: Source, split: str, options: argparse.Namespace) -> WriteResult:
    import covey

    with _named(source):
        return covey.write(
            source,
            options.target,
            split=split,
            label=options.label,
            defaults=dict(options.default),
            key=options.key,
            name=options.name,
            description=options.description,
            shuffle=not options.no_shuffle,
            sort_by_class=options.sort_by_class,
            seed=options.seed,
            shards=options.shards,
            records_per_shard=options.records_per_shard,
            shard_bytes=options.shard_bytes,
            compression=None if options.compression == "none" else options.compression.upper(),
            compression_level=options.compression_level,
            mode=options.mode,
            memory_limit=options.memory_limit,
            workers=options.workers,
            on_error=options.on_error,
            progress=shows_progress(options),
            storage_options=dict(options.storage_option),
        )


@contextmanager
def _named(source: Source) -> Iterator[None]:
    """Add the path of the source to errors of its examples, and the option that skips them."""
    try:
        yield
    except (SourceError, FeatureError) as error:
        if error.path is None:
            error.path = source.path
        is_item = isinstance(error, SourceError) or error.example is not None
        if is_item and not error.remedy and not isinstance(error, DuplicateKeyError):
            error.remedy = "--on-error skip skips and lists examples that cannot be read"
        raise


def _position(source: Source, example: int) -> int:
    """Return the position of an example in the source that was divided."""
    from covey.sources.hold_out import HeldOutPart

    return source.position(example) if isinstance(source, HeldOutPart) else example


def summary(written: list[WriteResult]) -> list[str]:
    """Return the lines of a table with a row for each split."""
    from covey._progress import format_bytes

    rows = [
        [
            each.split,
            f"{each.records:,}",
            *class_cells(list(each.classes.values())),
            f"{len(each.shards):,}",
            format_bytes(each.bytes),
            f"{each.seconds:.2f} s",
        ]
        for each in written
    ]
    header = ["split", "examples", "classes", "per class", "shards", "size", "time"]
    features = ", ".join(written[0].features)
    label = "" if written[0].label is None else f"; label {written[0].label!r}"
    lines = [f"{written[0].path}: {features}{label}", *table(header, rows)]
    replaced = sum(len(each.replaced) for each in written)
    if replaced:
        lines.append(
            f"{replaced:,} shards of the replaced version stay until the next write; `covey repair "
            f"{written[0].path}` deletes them"
        )
    return lines


def _report(
    skipped: list[tuple[str, SkippedRecord, int]], source: Source, options: argparse.Namespace
) -> None:
    """Write and print the skipped examples."""
    rows: list[dict[str, Any]] = [
        {"split": split, "example": position, "reason": each.reason}
        for split, each, position in skipped
    ]
    write_report(options.report, rows)
    if not rows:
        return
    rows.sort(key=lambda row: row["example"])
    lines = [f"skipped {len(rows):,} examples of {source.path}:"]
    lines += [f"  example {row['example']}: {row['reason']}" for row in rows[:_MAX_LISTED]]
    if len(rows) > _MAX_LISTED:
        where = f"see {options.report}" if options.report else "--report FILE lists all"
        lines.append(f"  and {len(rows) - _MAX_LISTED:,} more: {where}")
    print_message(*lines)
