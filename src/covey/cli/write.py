"""``covey write``: write the splits of a source as those of a dataset."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from covey._text import count_of, list_names, table
from covey.cli.options import (
    add_engine,
    add_progress,
    add_storage_option,
    count_or_fraction,
    default,
    feature_type,
    find_engine,
    fraction,
    kind,
    name_list,
    positive,
    shows_progress,
    size,
)
from covey.cli.output import (
    check_report,
    class_cells,
    print_lines,
    print_message,
    shorten,
    write_report,
)
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, SourceError

if TYPE_CHECKING:
    from covey import HoldOut
    from covey.results import SkippedRecord, WriteResult
    from covey.sources import Source

SUMMARY = "write labelled data as a TFRecord dataset, shuffled, sharded and indexed"

# The names of covey.sources.KINDS, which is slow to import.
KINDS = (
    "audio directory, image directory, image table, CSV, JSON Lines, JSON, Parquet, NPZ, "
    "WebDataset, TFRecords, TFDS directory"
)

EXAMPLES = """\
examples:
  covey write photos data/birds                     a directory of images per class, or per split
  covey write photos data/birds --splits train,val --class-from last
  covey write birds.csv data/birds --label species
  covey write birds.csv data/birds --split-by split
  covey write birds.csv data/birds --type ring=str --default weight=-1
  covey write glyphs.npz data/glyphs --hold-out-classes 100
  covey write photos data/birds --hold-out-fraction 0.1 --on-error skip --report bad.jsonl
  covey write more.jsonl data/birds --mode append
  covey write photos s3://bucket/birds --storage-option profile=mine
  covey write photos data/birds --engine ray
  covey write photos data/birds --part $SLURM_ARRAY_TASK_ID/64      then: covey commit data/birds
"""

_MAX_LISTED = 20
_MAX_NAMES = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("source", metavar="SOURCE", help="file, directory, or quoted pattern")
    parser.add_argument("target", metavar="TARGET", help="directory or URL of the dataset")

    reading = parser.add_argument_group("source")
    reading.add_argument(
        "--kind", type=kind, help=f"format of SOURCE (default: detected from its content): {KINDS}"
    )
    labels = reading.add_mutually_exclusive_group()
    labels.add_argument(
        "--label",
        help="label feature (default: that of the format, the only ClassLabel, or a feature with "
        "a common name such as label, class or category)",
    )
    labels.add_argument("--no-label", action="store_true", help="write unlabelled data")
    reading.add_argument(
        "--key", help="feature that is unique to an example (default: its file, id or position)"
    )
    reading.add_argument(
        "--columns",
        metavar="NAMES",
        type=name_list,
        action="extend",
        help="names of the columns of a table without a header, or of the elements of lists in "
        "JSON: path,fine,coarse",
    )
    reading.add_argument(
        "--delimiter", metavar="CHARACTER", help="delimiter of a table, or tab (default: detected)"
    )
    reading.add_argument(
        "--field", metavar="PATH", help="path of the examples in a JSON file: data.items"
    )
    reading.add_argument(
        "--source-split", metavar="NAME", help="split of SOURCE to read (default: that of --split)"
    )
    reading.add_argument(
        "--splits",
        metavar="NAMES",
        action="append",
        help="directories of SOURCE that are splits, such as train,val,test, or none; other "
        "directories are not read; may be repeated (default: detected by their names)",
    )
    reading.add_argument(
        "--class-depth",
        metavar="N",
        type=positive,
        help="name classes by the first N directories below the split (default: all directories, "
        "if all files are at the same depth)",
    )
    reading.add_argument(
        "--class-from",
        choices=("last", "path"),
        help="name classes by the last directory, or by the path of directories (default: path)",
    )
    reading.add_argument(
        "--type",
        metavar="NAME=TYPE",
        type=feature_type,
        action="append",
        default=[],
        help="type of a feature, such as time=float64 or zip=str; may be repeated (default: that "
        "of the format, or inferred from the values)",
    )
    reading.add_argument(
        "--default",
        metavar="NAME=VALUE",
        type=default,
        action="append",
        default=[],
        help="value of a feature that JSON objects lack, or whose cell is empty or null; may be "
        "repeated",
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
    names = splits.add_mutually_exclusive_group()
    names.add_argument(
        "--split", help="split to write (default: all splits of SOURCE; train if it has none)"
    )
    names.add_argument(
        "--split-by",
        metavar="NAME",
        help="feature whose values are the splits to write, such as a column of train and test",
    )
    held_out = splits.add_mutually_exclusive_group()
    held_out.add_argument(
        "--hold-out-fraction",
        metavar="FRACTION",
        type=fraction,
        help="write about this fraction of the examples as a second split; the hash of the key "
        "decides, so the split of an example does not depend on the others",
    )
    held_out.add_argument(
        "--hold-out-classes",
        metavar="N",
        type=count_or_fraction,
        help="write this number (or percentage) of the classes as a second split, to evaluate on "
        "unseen classes; the hashes of the class names decide",
    )
    splits.add_argument(
        "--hold-out-by",
        metavar="FEATURE",
        help="feature whose hash decides in place of that of the key: examples with the same value "
        "are in the same split",
    )
    splits.add_argument("--hold-out-split", metavar="NAME", help="second split (default: val)")
    splits.add_argument(
        "--hold-out-seed",
        metavar="N",
        type=int,
        default=0,
        help="seed of the choice (default: 0); --seed does not change it",
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
    add_engine(running, workers=False)
    running.add_argument(
        "--part",
        metavar="K/N",
        help="write part K of N of SOURCE, in one job of a job array; `covey commit TARGET` "
        "commits all parts",
    )
    running.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=size,
        default=512 << 20,
        help="approximate size of the examples in memory, of each task with --engine; more are "
        "spilled to disk (default: 512M)",
    )
    add_progress(running)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import covey

    _check(options)
    hold_out = _hold_out(options)
    engine = find_engine(options)
    source, notes = _open(options)
    with _advised():
        result = covey.write(
            source,
            options.target,
            split=options.split,
            hold_out=hold_out,
            split_by=options.split_by,
            label=None if options.no_label else options.label or "auto",
            types=dict(options.type),
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
            workers=options.workers if engine is None else None,
            engine=engine,
            part=options.part,
            on_error=options.on_error,
            progress=shows_progress(options),
            storage_options=dict(options.storage_option),
        )
    if not options.quiet:
        print_lines(*summary(result, options, notes))
    _report(result, options, has_splits=isinstance(source, Mapping))


def _check(options: argparse.Namespace) -> None:
    """Raise the errors that are known before the source is read."""
    from covey.dataset_info import check_split_name
    from covey.urls import shown

    if options.split is not None:
        check_split_name(options.split)
    if os.path.realpath(options.source) == os.path.realpath(options.target):
        raise DatasetError("SOURCE and TARGET are the same", path=shown(options.target))
    check_report(options.report)


def _hold_out(options: argparse.Namespace) -> HoldOut | None:
    """Return the examples to hold out."""
    from covey import HoldOut

    if options.hold_out_fraction is None and options.hold_out_classes is None:
        if options.hold_out_by is not None:
            options.refuse("--hold-out-by needs --hold-out-fraction")
        if options.hold_out_split is not None:
            options.refuse("--hold-out-split needs --hold-out-fraction or --hold-out-classes")
        return None
    if options.split_by is not None:
        options.refuse("--split-by cannot be used with --hold-out-fraction or --hold-out-classes")
    split = options.hold_out_split or "val"
    if split == (options.split or "train"):
        options.refuse(f"--split and --hold-out-split are both {split!r}")
    return HoldOut(
        fraction=options.hold_out_fraction,
        classes=options.hold_out_classes,
        by=options.hold_out_by,
        split=split,
        seed=options.hold_out_seed,
    )


def _open(
    options: argparse.Namespace,
) -> tuple[Source | Mapping[str, Source], tuple[str, ...]]:
    """Open the source or the splits to write; print their description and notes.

    Returns:
        The source or its splits, and the notes.
    """
    from covey.sources import Source, open_splits
    from covey.sources.source import choose_split, renaming_note

    found = open_splits(
        options.source,
        kind=options.kind,
        label=options.label,
        columns=options.columns,
        delimiter=options.delimiter,
        field=options.field,
        splits=None if options.splits is None else ",".join(options.splits),
        class_depth=options.class_depth,
        class_from=options.class_from,
    )
    wanted = options.source_split or options.split
    notes = found.notes
    opened: Source | Mapping[str, Source]
    if isinstance(found, Source):
        opened = found
    elif wanted is not None:
        chosen = choose_split(found, wanted, options.source)
        opened = found[chosen]
        if options.source_split is None and chosen != options.split:
            notes = (*notes, renaming_note(chosen, options.split))
    else:
        opened = dict(found)
    if not options.quiet:
        for each in [opened] if isinstance(opened, Source) else opened.values():
            print_lines(f"{each.path}: {', '.join([each.kind, *_describe(each)])}")
        for note in notes:
            print_lines(f"note: {note}")
    return opened, notes


def _describe(source: Source) -> Iterator[str]:
    from covey import ClassLabel

    if source.length is not None:
        yield f"{source.length:,} {'images' if source.kind.startswith('image') else 'examples'}"
    if source.label is None:
        return
    kind = None if source.features is None else source.features.get(source.label)
    column: Any = (source.columns or {}).get(source.label)
    if isinstance(kind, ClassLabel) and kind.names is not None:
        yield f"{count_of(len(kind.names), 'class', 'classes')} of {source.label!r}"
    elif hasattr(column, "tolist"):
        classes = count_of(len(set(column.tolist())), "class", "classes")
        yield f"{classes} of {source.label!r}"
    else:
        yield f"label {source.label!r}"


@contextmanager
def _advised() -> Iterator[None]:
    """Add the options of the command to errors that they avoid."""
    try:
        yield
    except (SourceError, FeatureError) as error:
        is_item = isinstance(error, SourceError) or error.example is not None
        if is_item and not error.remedy and not isinstance(error, DuplicateKeyError):
            error.remedy = "--on-error skip skips and lists examples that cannot be read"
        raise
    except DatasetError as error:
        error.remedy = error.remedy.replace("label=None", "--no-label")
        raise


def summary(
    result: WriteResult, options: argparse.Namespace, printed: Collection[str] = ()
) -> list[str]:
    """Return the lines of a table with a row for each split, and the notes that are not printed."""
    from covey._progress import format_bytes
    from covey.filenames import OLD_DIRECTORY
    from covey.urls import is_remote

    written = list(result.splits.values())
    if result.part is not None:
        counts = [f"{each.split} {count_of(each.records, 'example')}" for each in written]
        return [
            f"{result.path}: part {result.part}: {', '.join(counts)}, {result.seconds:.2f} s; "
            "`covey commit` commits all parts"
        ]
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
    features = ", ".join(result.features)
    label = "" if result.label is None else f"; label {result.label!r}"
    lines = [f"{result.path}: {features}{label}", *table(header, rows)]
    notes = (each for each in result.notes if each not in printed)
    lines += [f"note: {each.replace('; features= for', '; --type for')}" for each in notes]
    for split, names in result.unshared_classes.items():
        if names and options.hold_out_classes is None:
            shown = ", ".join(repr(shorten(str(name))) for name in names[:_MAX_NAMES])
            more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
            count = "1 class is" if len(names) == 1 else f"{len(names):,} classes are"
            lines.append(f"note: {count} in {split!r} only: {shown}{more}")
    if result.kept_splits and options.mode == "overwrite":
        kept = count_of(len(result.kept_splits), "other split")
        lines.append(
            f"note: {kept} of an earlier write, {list_names(result.kept_splits)}, "
            "may have the same examples"
        )
    replaced = sum(len(each.replaced) for each in written)
    if replaced and not is_remote(options.target):
        kept = count_of(replaced, "shard")
        lines.append(
            f"{kept} of the replaced version moved to {OLD_DIRECTORY} until the next write; "
            f"`covey repair {result.path}` deletes them"
        )
    return lines


def _report(result: WriteResult, options: argparse.Namespace, *, has_splits: bool) -> None:
    """Write and print the skipped examples, with their split if the source has splits."""
    skipped = [(split, each) for split, own in result.splits.items() for each in own.skipped]
    write_report(
        options.report,
        [{**({"split": split} if has_splits else {}), **_to_json(each)} for split, each in skipped],
    )
    if not skipped:
        return
    lines = [f"skipped {count_of(len(skipped), 'example')} of {options.source}:"]
    for split, each in skipped[:_MAX_LISTED]:
        where = f"{split}: " if has_splits else ""
        lines.append(f"  {where}example {each.record}: {each.reason}")
    if len(skipped) > _MAX_LISTED:
        where = f"see {options.report}" if options.report else "--report FILE lists all"
        lines.append(f"  and {len(skipped) - _MAX_LISTED:,} more: {where}")
    print_message(*lines)


def _to_json(skipped: SkippedRecord) -> dict[str, Any]:
    return {"example": skipped.record, "reason": skipped.reason}
