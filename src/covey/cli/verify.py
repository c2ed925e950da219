"""``covey verify``: everything that is wrong with a dataset."""

from __future__ import annotations

import argparse

from covey.cli.formatting import say
from covey.cli.options import add_path, add_running, print_json, shows, storage_options

WHAT = "check every checksum, example and index row of a dataset, and list all that is wrong"

EXAMPLES = """\
ends with 0 if nothing is wrong, and with 1 if anything is

examples:
  covey verify data/birds
  covey verify 'photos/*.tfrec' --json > problems.json
  covey verify s3://bucket/birds --storage-option anon=true
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Say what there is to choose."""
    parser.epilog = EXAMPLES
    add_path(parser)
    add_running(parser)


def run(options: argparse.Namespace) -> int:
    """Do it."""
    from covey.maintenance.verify import verify

    report = verify(
        options.path,
        split=options.split,
        storage_options=storage_options(options),
        threads=options.threads,
        progress=shows(options),
    )
    if options.json:
        print_json(report.to_dict())
    elif not (options.quiet and report.is_valid):
        say(*report.describe("--json lists them all").split("\n"))
    return 0 if report.is_valid else 1
