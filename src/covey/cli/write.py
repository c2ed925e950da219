"""``covey write``: write the splits of a source to a dataset."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from covey._text import count_of, list_names, table
from covey.cli.options import (
    ENGINE,
    PROGRESS,
    STORAGE,
    Rows,
    add_options,
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
    SPLIT_HEADER,
    check_report,
    print_lines,
    print_message,
    split_cells,
    write_report,
)
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, SourceError

if TYPE_CHECKING:
    from covey.results import WriteResult
    from covey.sources import Source

SUMMARY = "write labelled data as a TFRecord dataset, shuffled, sharded and indexed"

# The names of covey.sources.KINDS, which is slow to import.
KINDS = (
    "TFRecords, TFDS directory, NPZ, WebDataset, CSV, JSON Lines, JSON, Parquet, Arrow, "
    "image table, image directory, audio table, audio directory"
)

EXAMPLES = """\
examples:
  covey write photos data/birds                     a directory of images per class, or per split
  covey write photos data/birds --splits train,val --class-from last
  covey write birds/labels.csv data/birds --images file    images that a table lists
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


# The options of a table are arguments of the same name, and have the defaults of the function.
# fmt: off
_OF_OPEN: Rows = (
    ("source", "--kind", kind, None,
     f"format of SOURCE (default: by the names of files): {KINDS}"),
    ("source/label", "--label", str, None,
     "label feature (default: the label of the format, the only ClassLabel, or a feature with a "
     "common name such as label, class or category)"),
    ("source", "--columns", [name_list], "NAMES",
     "names of the columns of a table without a header: path,fine,coarse"),
    ("source", "--delimiter", str, "CHARACTER",
     "delimiter of a table, or tab (default: detected)"),
    ("source", "--encoding", str, None,
     "encoding of a table or of JSON, such as latin-1 or utf-16 (default: UTF-8)"),
    ("source", "--field", str, "PATH", "path of the list of examples in a JSON file: data.items"),
    ("source", "--images", str, "COLUMN",
     "column of a table that names an image or sound for each row (default: file_name)"),
    ("source", "--class-from", str, "RULE",
     "name classes by the path of directories (path), the last directory (last), or a regular "
     "expression such as '^(?P<label>[^_]+)_', which is searched in the path of a file "
     "(default: the first directory)"),
)

_OF_WRITE: Rows = (
    ("splits/name", "--split", str, None,
     "split to write (default: all splits of SOURCE; train if it has none)"),
    ("splits/name", "--split-by", str, "NAME",
     "feature whose values are the splits to write, such as a column of train and test"),
    ("source", "--key", str, None,
     "feature that is unique to an example (default: its file, id or position)"),
    ("source", "--on-error", ("raise", "skip"), None,
     "skip: skip and list examples that cannot be read (default: raise)"),
    ("splits", "--mode", ("error", "overwrite", "append"), None,
     "what to do if a split exists (default: error)"),
    ("order", "--seed", int, None, "seed of the order (default: 0)"),
    ("order", "--sort-by-class", bool, None,
     "store the examples of each class together, for readers that stream them"),
    ("files/shards", "--shards", positive, "N", "shards of each split"),
    ("files/shards", "--records-per-shard", positive, "N", "records in each shard"),
    ("files/shards", "--shard-bytes", size, "SIZE", "size of each shard (default: 256M)"),
    ("files", "--compression-level", range(10), None, "(default: 6)"),
    ("files", "--name", str, None, "name of the dataset (default: the name of its directory)"),
    ("files", "--description", str, None, "description of the dataset"),
    ("running", "--part", str, "K/N",
     "write part K of N of SOURCE, in one job of a job array; `covey commit TARGET` commits "
     "all parts"),
    ("running", "--memory-limit", size, "SIZE",
     "approximate size of the examples in memory, of each task with --engine; more are spilled "
     "to disk (default: 512M)"),
)

_OF_HOLD_OUT: Rows = (
    ("splits/size", "--hold-out-fraction", fraction, "FRACTION",
     "write about this fraction of the examples as a second split; the hash of the key "
     "decides, so the split of an example does not depend on the others"),
    ("splits/size", "--hold-out-classes", count_or_fraction, "N",
     "write this number (or percentage) of the classes as a second split, to evaluate on "
     "unseen classes; the hashes of the class names decide"),
    ("splits", "--hold-out-by", str, "FEATURE",
     "keep examples with the same value of FEATURE in one split: its hash decides, not the key"),
    ("splits", "--hold-out-split", str, "NAME", "second split (default: val)"),
    ("splits", "--hold-out-seed", int, "N",
     "seed of the choice (default: 0); --seed does not change it"),
)

_OTHERS: Rows = (
    ("", "source", str, "SOURCE", "file, directory, or quoted pattern"),
    ("", "target", str, "TARGET", "directory or URL of the dataset"),
    ("source/label", "--no-label", bool, None, "write unlabelled data"),
    ("source", "--source-split", str, "NAME",
     "split of SOURCE to read (default: the split of --split)"),
    ("source", "--splits", [str], "NAMES",
     "directories of SOURCE that are splits, such as train,val,test, or none; other "
     "directories are not read; may be repeated (default: the first directories, if all have "
     "common names of splits)"),
    ("source", "--type", [feature_type], "NAME=TYPE",
     "type of a feature, such as time=float64 or zip=str; may be repeated (default: the type of "
     "the format, or inferred from the values)"),
    ("source", "--default", [default], "NAME=VALUE",
     "value of a feature that JSON objects lack, or whose cell is empty or null; may be "
     "repeated"),
    ("source", "--report", str, "FILE", "write the skipped examples to FILE, as JSON Lines"),
    ("order", "--no-shuffle", bool, None, "keep the order of SOURCE"),
    ("files", "--compression", ("none", "gzip", "zlib"), None,
     "gzip keeps random access; TFDS reads only none (default: none)"),
    ("running", "--workers", positive, "N", "number of threads or processes"),
)
# fmt: on


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(
        parser, *_OF_OPEN, *_OF_WRITE, *_OF_HOLD_OUT, *_OTHERS, *STORAGE, *ENGINE, *PROGRESS
    )


def _given(options: argparse.Namespace, table: Rows, prefix: str = "--") -> dict[str, Any]:
    """Return the options of a table that are given, as arguments."""
    names = {option[2:].replace("-", "_"): option.removeprefix(prefix) for _, option, *_ in table}
    found = {given.replace("-", "_"): getattr(options, name) for name, given in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import covey
    from covey.urls import shown

    if os.path.realpath(options.source) == os.path.realpath(options.target):
        raise DatasetError("SOURCE and TARGET are the same", path=shown(options.target))
    check_report(options.report)
    held_out = _given(options, _OF_HOLD_OUT, "--hold-out-")
    hold_out = covey.HoldOut(**held_out) if held_out else None
    engine = find_engine(options)
    compression = options.compression or "none"
    source, notes = _open(options)
    with _advised():
        result = covey.write(
            source,
            options.target,
            **_given(options, _OF_WRITE),
            hold_out=hold_out,
            label=None if options.no_label else options.label or "auto",
            types=dict(options.type or ()),
            defaults=dict(options.default or ()),
            shuffle=not options.no_shuffle,
            compression=None if compression == "none" else compression.upper(),
            workers=options.workers if engine is None else None,
            engine=engine,
            progress=shows_progress(options),
            storage_options=dict(options.storage_option or ()),
        )
    if not options.quiet:
        print_lines(*summary(result, options, notes))
    _report(result, options, has_splits=isinstance(source, Mapping))


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
        splits=None if options.splits is None else ",".join(options.splits),
        **_given(options, _OF_OPEN),
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
        if error.option == "label":
            error.remedy = "pass --label NAME, or --no-label if the data is unlabelled"
        raise


def summary(
    result: WriteResult, options: argparse.Namespace, printed: Collection[str] = ()
) -> list[str]:
    """Return the tables of the columns and of the splits, and the notes that are not printed."""
    from covey.cli.values import column_lines
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
            *split_cells(
                each.split, each.records, [*each.classes.values()], each.shards, each.bytes
            ),
            f"{each.seconds:.2f} s",
        ]
        for each in written
    ]
    # Shards of ZLIB would be unpacked into the cache.
    reads = getattr(options, "compression", None) != "zlib"
    lines = [
        *column_lines(result, options.target, reads=reads),
        *table([*SPLIT_HEADER, "time"], rows),
    ]
    lines += [f"note: {each}" for each in result.notes if each not in printed]
    for split, names in result.unshared_classes.items():
        if names and options.hold_out_classes is None:
            count = count_of(len(names), "class is", "classes are")
            shown = list_names(map(str, names), _MAX_NAMES)
            lines.append(f"note: {count} in {split!r} only: {shown}")
    if result.kept_splits and options.mode == "overwrite":
        kept = list_names(result.kept_splits)
        lines.append(f"note: splits of an earlier write may overlap with the new ones: {kept}")
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
    rows = [
        {**({"split": split} if has_splits else {}), "example": each.record, "reason": each.reason}
        for split, each in skipped
    ]
    write_report(options.report, rows)
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
