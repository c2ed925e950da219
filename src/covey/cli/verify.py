"""``covey verify``: find the problems of a dataset."""

from __future__ import annotations

import argparse

from covey.cli.options import PATH, RUNNING, add_options, reading_options
from covey.cli.output import print_json, print_lines

SUMMARY = "check every checksum, example and index row of a dataset, and list all problems"

EXAMPLES = """\
The exit status is 0 if there are no problems, and 1 if there are.

examples:
  covey verify data/birds
  covey verify 'photos/*.tfrec' --json > problems.json
  covey verify s3://bucket/birds --storage-option anon=true
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, *PATH, *RUNNING)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from covey.maintenance.verify import verify

    report = verify(options.path, threads=options.threads, **reading_options(options))
    if options.json:
        print_json(report.to_dict())
    elif not (options.quiet and report.is_valid):
        print_lines(*str(report).split("\n"))
    return 0 if report.is_valid else 1
