"""``covey commit``: commit the parts of a write."""

from __future__ import annotations

import argparse

from covey.cli.options import (
    add_engine,
    add_progress,
    add_storage_option,
    find_engine,
    reading_options,
    size,
)
from covey.cli.output import print_lines

SUMMARY = "commit the parts that `covey write --part K/N` has written"

EXAMPLES = """\
The dataset is not changed if a part is missing, or differs from the others.

examples:
  covey commit data/birds
  covey commit s3://bucket/birds --engine processes
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("target", metavar="TARGET", help="directory or URL of the dataset")
    parser.add_argument(
        "--split", help="a split of the parts, if parts of several writes exist (default: all)"
    )
    add_engine(parser)
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        type=size,
        help="approximate size of the records in memory, of each task (default: 512M)",
    )
    add_storage_option(parser)
    add_progress(parser)
    parser.set_defaults(hold_out_classes=None, mode=None)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    import covey
    from covey.cli.write import summary

    result = covey.commit(
        options.target,
        engine=find_engine(options),
        memory_limit=options.memory_limit,
        **reading_options(options),
    )
    if not options.quiet:
        print_lines(*summary(result, options))
