"""``covey index``: build the index of TFRecord files."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from covey._text import count_of, table
from covey.cli.options import LABEL, PATH, RUNNING, add_options, reading_options
from covey.cli.output import SPLIT_HEADER, print_json, print_lines, print_message, split_cells
from covey.errors import CorruptRecordError, ExampleError

if TYPE_CHECKING:
    from covey.results import IndexResult

SUMMARY = "build the index of a dataset, or of any TFRecord files, beside the shards"

EXAMPLES = """\
A valid index is kept.

examples:
  covey index photos --label species
  covey index 'photos/*.tfrec' --label @file        one class per file
  covey index data/birds --export-dali              writes index files for DALI
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    force = ("", "--force", bool, None, "rebuild a valid index too")
    add_options(parser, *PATH, *LABEL, force, *RUNNING)
    parser.add_argument(
        "--export-dali",
        metavar="DIR",
        nargs="?",
        const=True,
        default=False,
        help="write index files for DALI beside the shards, or to DIR",
    )


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.maintenance.build_index import build_index
    from covey.urls import shown

    path = shown(options.path)
    try:
        made = build_index(
            options.path,
            label=options.label,
            force=options.force,
            to_dali=options.export_dali,
            threads=options.threads,
            **reading_options(options),
        )
    except (CorruptRecordError, ExampleError) as error:
        error.remedy = (
            f"`covey verify {path}` lists all problems, `covey repair {path} --output NEW` copies "
            "the valid records"
        )
        raise
    if options.json:
        print_json({"path": path, "splits": {each.split: _to_dict(each) for each in made}})
    elif not options.quiet:
        print_lines(*_summary(path, made))
    for each in made:
        if each.differences:
            count = len(each.differences)
            more = f" (and {count - 1:,} more shards)" if count > 1 else ""
            print_message(f"{each.differences[0]}{more}; `covey repair` writes a valid dataset")


def _summary(path: str, made: tuple[IndexResult, ...]) -> list[str]:
    """Return the lines of a table with a row for each split."""
    rows = []
    for each in made:
        metadata, classes = each.index.metadata, each.index.classes
        counts = [] if classes is None else classes["records"].tolist()
        size = sum(shard.bytes for shard in metadata.shards)
        cells = split_cells(each.split, metadata.records, counts, metadata.shards, size)
        rows.append([*cells, "built" if each.is_new else "kept", f"{each.seconds:.2f} s"])
    labels = {each.index.metadata.label for each in made}
    (label,) = labels if len(labels) == 1 else (None,)
    described = "no label" if label is None else f"label {label!r}"
    exported = sum(len(each.exported) for each in made)
    lines = [f"{path}: {described}", *table([*SPLIT_HEADER, "index", "time"], rows)]
    if exported:
        first = next(each.exported[0] for each in made if each.exported)
        count = count_of(exported, "DALI index file")
        lines.append(f"{count} written, such as {os.path.basename(first)}")
    return lines


def _to_dict(made: IndexResult) -> dict[str, Any]:
    metadata, classes = made.index.metadata, made.index.classes
    return {
        "records": metadata.records,
        "shards": [shard.name for shard in metadata.shards],
        "label": metadata.label,
        "classes": None if classes is None else len(classes),
        "compression": metadata.compression,
        "built": made.is_new,
        "exported": list(made.exported),
        "differences": list(made.differences),
    }
