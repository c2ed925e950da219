"""``covey index``: the index of shards, a caller that wrote them."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from covey.cli.formatting import RemediedError, say, table, tell
from covey.cli.options import add_path, add_running, print_json, shows, storage_options
from covey.errors import CorruptRecordError, ExampleError

if TYPE_CHECKING:
    from covey.results import IndexResult

WHAT = "make the index of a dataset, or of any TFRecord files, beside the shards"

EXAMPLES = """\
an index that is there, and right, is left as it is

examples:
  covey index photos --label species
  covey index 'photos/*.tfrec' --label @file        one class per file
  covey index data/birds --export-dali              writes <shard>.idx beside each shard
  covey index data/birds --import-dali idx_files
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what there is to choose."""
    parser.epilog = EXAMPLES
    add_path(parser)
    parser.add_argument(
        "--label",
        metavar="KEY",
        help="the feature that tells the class, or @file (default: as before, or what is called "
        "so)",
    )
    parser.add_argument("--force", action="store_true", help="rebuild it in any case")
    parser.add_argument(
        "--export-dali",
        metavar="DIR",
        nargs="?",
        const=True,
        default=False,
        help="write DALI's index files, beside the shards or into DIR",
    )
    parser.add_argument(
        "--import-dali",
        metavar="DIR",
        nargs="?",
        const=True,
        default=False,
        help="make the index of DALI's index files, those beside the shards or in DIR",
    )
    add_running(parser)


def run(options: argparse.Namespace) -> None:
    """Do it."""
    from covey.maintenance.build_index import build_index
    from covey.urls import shown

    path = shown(options.path)
    try:
        made = build_index(
            options.path,
            split=options.split,
            label=options.label,
            force=options.force,
            from_dali=options.import_dali,
            to_dali=options.export_dali,
            storage_options=storage_options(options),
            threads=options.threads,
            progress=shows(options),
        )
    except (CorruptRecordError, ExampleError) as error:
        raise RemediedError(
            str(error),
            f"  `covey verify {path}` lists all that is wrong, and `covey repair "
            f"{path} --output NEW` saves what is valid",
        ) from error
    if options.json:
        print_json({"path": path, "splits": {each.split: _to_dict(each) for each in made}})
    elif not options.quiet:
        say(*_summary(path, made))
    for each in made:
        if each.differences:
            count = len(each.differences)
            more = f" (and {count - 1:,} more shards)" if count > 1 else ""
            tell(f"{each.differences[0]}{more}; `covey repair` writes a dataset that agrees")


def _summary(path: str, made: tuple[IndexResult, ...]) -> list[str]:
    """The lines of a table with a row for each split."""
    from covey._progress import format_bytes

    rows = []
    for each in made:
        about, classes = each.index.metadata, each.index.classes
        counts = sorted([] if classes is None else classes["records"].tolist())
        few, many = (counts[0], counts[-1]) if counts else (0, 0)
        per_class = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        rows.append(
            [
                each.split,
                f"{about.records:,}",
                f"{len(counts):,}" if counts else "-",
                per_class if counts else "-",
                f"{len(about.shards):,}",
                format_bytes(sum(shard.bytes for shard in about.shards)),
                "made" if each.is_new else "was there",
                f"{each.seconds:.2f} s",
            ]
        )
    header = ["split", "examples", "classes", "per class", "shards", "size", "index", "time"]
    labels = {each.index.metadata.label for each in made}
    (label,) = labels if len(labels) == 1 else (None,)
    told = "nothing tells the class"
    if label is not None:
        told = "each file is a class" if label == "@file" else f"{label!r} tells the class"
    exported = sum(len(each.exported) for each in made)
    lines = [f"{path}: {told}", *table(header, rows)]
    if exported:
        first = next(each.exported[0] for each in made if each.exported)
        files = "file" if exported == 1 else "files"
        lines.append(f"{exported:,} {files} for DALI written, such as {os.path.basename(first)}")
    return lines


def _to_dict(made: IndexResult) -> dict[str, Any]:
    about, classes = made.index.metadata, made.index.classes
    return {
        "records": about.records,
        "shards": [shard.name for shard in about.shards],
        "label": about.label,
        "classes": None if classes is None else len(classes),
        "compression": about.compression,
        "made": made.is_new,
        "exported": list(made.exported),
        "differences": list(made.differences),
    }
