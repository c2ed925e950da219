"""The options of ``covey write``.

``covey write``: from any source to a dataset.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.cli.formatting import (
    RemediedError,
    in_terms_of_options,
    say,
    table,
    tell,
    with_article,
)
from covey.cli.options import (
    count_or_share,
    default,
    fraction,
    kind,
    positive,
    size,
    storage_option,
)
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, SourceError, escape

if TYPE_CHECKING:
    from covey.results import SkippedRecord, WriteResult
    from covey.sources import Source


# As covey.sources has them; asking it would take longer than the rest of the help.
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


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what there is to choose."""
    parser.epilog = EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a file, a directory, or a quoted pattern")
    parser.add_argument("target", metavar="TARGET", help="the directory of the dataset, or a URL")

    reading = parser.add_argument_group("what is read")
    reading.add_argument(
        "--kind", type=kind, help=f"what SOURCE is, if that is not clear from its contents: {KINDS}"
    )
    reading.add_argument(
        "--label", help="the feature that tells the class (default: what is called so, or similar)"
    )
    reading.add_argument(
        "--key", help="the feature that is unique to an example (default: its file, id or number)"
    )
    reading.add_argument(
        "--source-split", metavar="NAME", help="of a SOURCE with splits (default: as --split)"
    )
    reading.add_argument(
        "--default",
        metavar="NAME=VALUE",
        type=default,
        action="append",
        default=[],
        help="what JSON objects get that lack a feature; may be repeated",
    )
    reading.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="skip leaves out what cannot be read, and lists it (default: raise)",
    )
    reading.add_argument(
        "--report", metavar="FILE", help="write all that was left out to FILE, as JSON Lines"
    )

    splits = parser.add_argument_group("splits")
    splits.add_argument("--split", default="train", help="what to write (default: train)")
    held_out = splits.add_mutually_exclusive_group()
    held_out.add_argument(
        "--val-fraction",
        metavar="SHARE",
        type=fraction,
        help="write about this share of the examples as a second split; the hash of an example's "
        "key decides, so that it stays where it is when others are added",
    )
    held_out.add_argument(
        "--held-out-classes",
        metavar="N",
        type=count_or_share,
        help="write this many classes (or 10%% of them) as a second split, to judge a model by "
        "classes it has never seen; the hashes of their names decide",
    )
    splits.add_argument("--val-split", metavar="NAME", help="the second split (default: val)")
    splits.add_argument(
        "--val-seed",
        metavar="N",
        type=int,
        default=0,
        help="divide otherwise (default: 0); --seed does not change who is held out",
    )
    splits.add_argument(
        "--mode",
        choices=("error", "overwrite", "append"),
        default="error",
        help="what to do if a split is there already (default: error)",
    )

    order = parser.add_argument_group("order")
    order.add_argument("--seed", type=int, default=0, help="of the shuffled order (default: 0)")
    order.add_argument("--no-shuffle", action="store_true", help="keep the order of SOURCE")
    order.add_argument(
        "--order", choices=("class",), help="lay classes together, for readers that need them so"
    )

    files = parser.add_argument_group("files")
    shards = files.add_mutually_exclusive_group()
    shards.add_argument("--shards", metavar="N", type=positive, help="how many, of each split")
    shards.add_argument("--records-per-shard", metavar="N", type=positive)
    shards.add_argument(
        "--shard-size", metavar="SIZE", type=size, default=256 << 20, help="(default: 256M)"
    )
    files.add_argument(
        "--compression",
        choices=("none", "gzip", "zlib"),
        default="none",
        help="gzip can still be read at random; TFDS reads only none (default: none)",
    )
    files.add_argument(
        "--compression-level",
        type=int,
        choices=range(10),
        default=6,
        help="of compression (default: 6)",
    )
    files.add_argument(
        "--storage-option",
        metavar="NAME=VALUE",
        type=storage_option,
        action="append",
        default=[],
        help="what fsspec needs if TARGET is a URL, such as profile=mine; may be repeated",
    )
    files.add_argument("--name", help="of the dataset (default: that of its directory)")
    files.add_argument("--description", default="", help="of the dataset, for people")

    running = parser.add_argument_group("running")
    running.add_argument(
        "--workers", metavar="N", type=positive, help="how many threads or processes work"
    )
    running.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=size,
        default=512 << 20,
        help="hold about so much, and put the rest aside on disk (default: 512M)",
    )
    running.add_argument("--no-progress", action="store_true", help="show no progress bar")
    running.add_argument(
        "-q", "--quiet", action="store_true", help="say only what went wrong or was left out"
    )


WHAT = "write labelled data as a split of a TFRecord dataset, shuffled, sharded and indexed"

# What is left out is listed up to here; --report has the rest.
_LISTED = 20


def run(options: argparse.Namespace) -> None:
    """Do it."""
    _check(options)
    source = _open(options)
    parts = _divide(source, options)
    left_out: list[tuple[str, SkippedRecord]] = []
    done: list[WriteResult] = []
    try:
        for split, part in parts:
            written = _write(part, split, options)
            left_out += [(split, each) for each in _numbered(written, part)]
            done.append(written)
    except BaseException:
        if done:
            tell(f"split {done[0].split!r} was written before what follows, and stays")
        raise
    if not options.quiet:
        say(*summarise(done))
    _report(left_out, source, options)


def _check(options: argparse.Namespace) -> None:
    """Find out beforehand what would be wrong in the end."""
    from covey.dataset_info import check_split_name
    from covey.urls import shown

    splits = _splits(options)
    if options.val_split is not None and len(splits) == 1:
        options.refuse("--val-split needs --val-fraction or --held-out-classes")
    if len(set(splits)) < len(splits):
        options.refuse(f"--split and the split that is held out are both {options.split!r}")
    for split in splits:
        check_split_name(split)
    _look(options)
    if os.path.realpath(options.source) == os.path.realpath(options.target):
        raise DatasetError("this is SOURCE and TARGET; write elsewhere", path=shown(options.target))
    if options.report is not None:
        directory = os.path.dirname(options.report) or "."
        if not os.access(directory, os.W_OK) or os.path.isdir(options.report):
            raise DatasetError(f"{options.report}: the report cannot be written there")


def _splits(options: argparse.Namespace) -> list[str]:
    divides = options.val_fraction is not None or options.held_out_classes is not None
    return [options.split, options.val_split or "val"] if divides else [options.split]


def _look(options: argparse.Namespace) -> bool:
    """Whether nothing that stays decides about features; an error if a split may not be written."""
    from covey.urls import shown
    from covey.writing.target import TargetSplit

    try:
        with _directory(options) as directory:
            found = [
                TargetSplit.look(directory, split, options.mode, options.name)
                for split in _splits(options)
            ]
            return all(each.base()[0] is None for each in found)
    except NotADirectoryError:
        raise DatasetError(
            "it is a file; must be a directory", path=shown(options.target)
        ) from None


@contextmanager
def _directory(options: argparse.Namespace) -> Iterator[Path]:
    """The directory of the dataset, or one that stands for a URL."""
    from covey.storage import is_remote
    from covey.writing.publish import RemoteStaging

    if not is_remote(options.target):
        yield Path(options.target)
        return
    storage = dict(options.storage_option)
    with RemoteStaging(options.target, options.split, appends=False, options=storage) as mirror:
        yield mirror.directory


def _open(options: argparse.Namespace) -> Source:
    """Open the source, and say what it is."""
    from covey.sources import open_source

    source = open_source(
        options.source,
        kind=options.kind,
        label=options.label,
        split=options.source_split or options.split,
    )
    if not options.quiet:
        seen = "looks like" if options.kind is None else "is read as"
        what = ", ".join(_describe(source))
        say(f"{source.path} {seen} {with_article(source.kind)}{': ' if what else ''}{what}")
        if source.label is None:
            say("  no feature tells the class of an example; --label names one that does")
    return source


def _describe(source: Source) -> Iterator[str]:
    """What is known about a source before it is read."""
    from covey import ClassLabel

    if source.length is not None:
        yield f"{source.length:,} {'images' if source.kind.startswith('image') else 'examples'}"
    if source.label is None:
        return
    kind = None if source.features is None else source.features.get(source.label)
    column: Any = (source.columns or {}).get(source.label)
    if isinstance(kind, ClassLabel) and kind.names is not None:
        yield f"{len(kind.names):,} classes of {source.label!r}"
    elif hasattr(column, "tolist"):
        yield f"{len(set(column.tolist())):,} classes of {source.label!r}"
    else:
        yield f"classes told by {source.label!r}"


def _divide(source: Source, options: argparse.Namespace) -> list[tuple[str, Source]]:
    """The splits to write, and what goes into each."""
    splits = _splits(options)
    if len(splits) == 1:
        return [(options.split, source)]
    from covey._progress import Progress
    from covey.sources.hold_out import hold_out

    classes = options.held_out_classes
    # Splits that are there already decide about features: what does not know them adapts.
    is_first = _look(options)
    with Progress(_shows(options), source.length, "dividing") as shown, _Blaming(source):
        parts = hold_out(
            source,
            fraction=options.val_fraction,
            classes=classes if isinstance(classes, int) else None,
            class_fraction=classes if isinstance(classes, float) else None,
            key=options.key,
            label=options.label,
            seed=options.val_seed,
            infer=is_first,
            defaults=dict(options.default),
            on_error=options.on_error,
            progress=shown.add,
        )
    return list(zip(splits, parts, strict=True))


def _shows(options: argparse.Namespace) -> bool | None:
    """Whether to show progress; None leaves it to where the output goes."""
    return False if options.quiet or options.no_progress else None


def _write(source: Source, split: str, options: argparse.Namespace) -> WriteResult:
    import covey

    with _Blaming(source):
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
            order=options.order,
            seed=options.seed,
            shards=options.shards,
            records_per_shard=options.records_per_shard,
            shard_bytes=options.shard_size,
            compression=None if options.compression == "none" else options.compression.upper(),
            compression_level=options.compression_level,
            mode=options.mode,
            memory_limit=options.memory_limit,
            workers=options.workers,
            on_error=options.on_error,
            progress=_shows(options),
            storage_options=dict(options.storage_option),
        )


class _Blaming:
    """Errors about examples say which file they are from, and what can be done about them."""

    def __init__(self, source: Source) -> None:
        self._path = source.path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (SourceError, FeatureError)):
            return
        message = str(error)
        about_one = isinstance(error, SourceError) or message.startswith("example ")
        if isinstance(error, FeatureError):
            message = f"{self._path}: {message}"
        remedies = ["  --on-error skip leaves out what cannot be read, and lists it"]
        if not about_one or isinstance(error, DuplicateKeyError):
            remedies = []
        raise RemediedError(message, *remedies) from error


def _numbered(written: WriteResult, source: Source) -> Iterator[SkippedRecord]:
    """What was left out, by its number in the whole source."""
    from covey.sources.hold_out import HeldOutPart

    for each in written.skipped:
        number = source.position(each.record) if isinstance(source, HeldOutPart) else each.record
        yield replace(each, record=number)


def summarise(written: list[WriteResult]) -> list[str]:
    """The lines of a table of what was written, with a row for each split."""
    from covey._progress import format_bytes

    rows = []
    for each in written:
        counts = sorted(each.classes.values())
        few, many = (counts[0], counts[-1]) if counts else (0, 0)
        per_class = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        rows.append(
            [
                each.split,
                f"{each.records:,}",
                f"{len(counts):,}" if counts else "-",
                per_class if counts else "-",
                f"{len(each.shards):,}",
                format_bytes(each.bytes),
                f"{each.seconds:.2f} s",
            ]
        )
    header = ["split", "examples", "classes", "per class", "shards", "size", "time"]
    features = ", ".join(written[0].features)
    label = "" if written[0].label is None else f"; {written[0].label!r} tells the class"
    lines = [f"{written[0].path}: {features}{label}", *table(header, rows)]
    replaced = sum(len(each.replaced) for each in written)
    if replaced:
        lines.append(
            f"{replaced:,} shards of the replaced version stay until the next write; `covey repair "
            f"{written[0].path}` deletes them"
        )
    return lines


def _report(
    left_out: list[tuple[str, SkippedRecord]], source: Source, options: argparse.Namespace
) -> None:
    """Tell of what was left out."""
    if options.report is not None:
        with open(options.report, "w", encoding="utf-8") as file:
            for split, each in left_out:
                fields = {"split": split, "example": each.record, "reason": each.reason}
                file.write(escape(json.dumps(fields, ensure_ascii=False)) + "\n")
    if not left_out:
        return
    left_out.sort(key=lambda each: each[1].record)
    lines = [f"left out {len(left_out):,} of the examples of {source.path}:"]
    lines += [f"  example {each.record}: {each.reason}" for _, each in left_out[:_LISTED]]
    if len(left_out) > _LISTED:
        where = f"see {options.report}" if options.report else "--report FILE lists them all"
        lines.append(f"  and {len(left_out) - _LISTED:,} more: {where}")
    tell(*map(in_terms_of_options, lines))
