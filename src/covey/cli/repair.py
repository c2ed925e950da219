"""``covey repair``: copy what is valid of a dataset, or clean it up in place."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict

from covey.cli.formatting import say
from covey.cli.options import add_path, add_running, print_json, shows, storage_options
from covey.errors import DatasetError, escape

WHAT = "copy the valid records of a dataset into a new one, or clean up after interrupted writes"

EXAMPLES = """\
With --output, the valid records are copied, and what is lost is listed; the exit status is 0 if
anything could be saved. Without it, interrupted writes are completed or undone, and files of old
versions are deleted; no record is read.

examples:
  covey repair data/birds
  covey repair data/birds --output data/birds-mended
  covey repair 'photos/*.tfrec' --output data/photos --report lost.jsonl
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what there is to choose."""
    parser.epilog = EXAMPLES
    add_path(parser)
    parser.add_argument(
        "--output", metavar="NEW", help="the directory of the new dataset, or a URL"
    )
    parser.add_argument(
        "--mode",
        choices=("error", "overwrite"),
        default="error",
        help="what to do if NEW has such a split already (default: error)",
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write all that is lost to FILE, as JSON Lines"
    )
    add_running(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    from covey.maintenance.repair import repair

    if options.report is not None:
        directory = os.path.dirname(options.report) or "."
        if not os.access(directory, os.W_OK) or os.path.isdir(options.report):
            raise DatasetError(f"{options.report}: the report cannot be written there")
    repaired = repair(
        options.path,
        options.output,
        split=options.split,
        mode=options.mode,
        storage_options=storage_options(options),
        threads=options.threads,
        progress=shows(options),
    )
    if options.report is not None:
        with open(options.report, "w", encoding="utf-8") as file:
            for each in repaired.lost:
                file.write(escape(json.dumps(asdict(each), ensure_ascii=False)) + "\n")
    if options.json:
        print_json(repaired.to_dict())
    elif not (options.quiet and not repaired.lost):
        rest = f"see {options.report}" if options.report else "--report FILE lists them all"
        say(*repaired.describe(rest).split("\n"))
    return 0
