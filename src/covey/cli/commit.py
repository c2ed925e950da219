"""``covey commit``: commit the parts of a write."""

from __future__ import annotations

import argparse

from covey.cli.options import (
    ENGINE,
    PROGRESS,
    SPLIT,
    STORAGE,
    add_options,
    find_engine,
    positive,
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
    add_options(
        parser,
        ("", "target", str, "TARGET", "directory or URL of the dataset"),
        *SPLIT,
        *STORAGE,
        *ENGINE,
        ("running", "--workers", positive, "N", "number of processes (default: all CPU cores)"),
        ("running", "--memory-limit", size, "SIZE", "as for `covey write` (default: 512M)"),
        *PROGRESS,
    )
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
