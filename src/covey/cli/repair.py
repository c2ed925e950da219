"""``covey repair``: copy the valid records of a dataset, or clean it up in place."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from covey.cli.options import PATH, RUNNING, Rows, add_options, reading_options
from covey.cli.output import check_report, print_json, print_lines, write_report

SUMMARY = "copy the valid records of a dataset into a new one, or clean up after interrupted writes"

EXAMPLES = """\
With --output, the valid records are copied and the lost ones are listed; the exit status is 0 if
any record is valid. Without it, interrupted writes are completed or undone, and files of old
versions are deleted; no record is read. Parts of a job array that are not committed are listed.
--delete-parts deletes them, also if their jobs are running.

examples:
  covey repair data/birds
  covey repair data/birds --delete-parts
  covey repair data/birds --output data/birds-repaired
  covey repair 'photos/*.tfrec' --output data/photos --report lost.jsonl
"""

# fmt: off
_OPTIONS: Rows = (
    ("", "--output", str, "NEW", "directory or URL of the new dataset"),
    ("", "--mode", ("error", "overwrite"), None,
     "what to do if a split of NEW exists (default: error)"),
    ("", "--delete-parts", bool, None, "delete parts of job arrays that are not committed"),
    ("", "--report", str, "FILE", "write the lost records to FILE, as JSON Lines"),
)
# fmt: on


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, *PATH, *_OPTIONS, *RUNNING)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from covey.maintenance.repair import repair

    check_report(options.report)
    repaired = repair(
        options.path,
        options.output,
        mode=options.mode or "error",
        delete_parts=options.delete_parts,
        threads=options.threads,
        **reading_options(options),
    )
    write_report(options.report, [asdict(each) for each in repaired.lost])
    if options.json:
        print_json(repaired.to_dict())
    elif not (options.quiet and not repaired.lost):
        print_lines(*str(repaired).split("\n"))
    return 0
