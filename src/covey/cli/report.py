"""``covey report``: write what a dataset contains to an HTML file."""

from __future__ import annotations

import argparse

from covey.cli.options import (
    add_batch,
    add_path,
    add_progress,
    html_file,
    shows_progress,
    storage_options,
)
from covey.cli.output import print_lines, print_message

SUMMARY = "write the overview, histograms and one batch of a dataset to an HTML file"

EXAMPLES = """\
The file needs no server and has no script: it can be sent by e-mail, or kept beside a model. The
batch is that of ds.batches(P, K, seed=SEED) at STEP, of the first split that has examples; without
a label, that of ds.shuffled(P * K, seed=SEED). Values are those of at most 2,000 examples of each
split.

examples:
  covey report data/birds birds.html
  covey report data/birds test.html --split test -p 16 -k 8 --step 100
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_path(parser)
    parser.add_argument(
        "out", metavar="OUT", type=html_file, help="HTML file to be created or replaced"
    )
    add_batch(parser)
    add_progress(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey._progress import format_bytes
    from covey.urls import shown
    from covey.view.report import ReportOptions, check_target, write_report
    from covey.view.session import Session

    check_target(options.out)  # before the dataset is indexed
    session = Session.of_path(
        options.path,
        split=options.split,
        label=options.label,
        storage_options=storage_options(options),
        progress=shows_progress(options),
    )
    try:
        for split, error in session.open_all().items():
            print_message(f"warning: split {split!r} cannot be opened: {error}")
        batch = ReportOptions(
            options.classes_per_batch, options.examples_per_class, options.seed, options.step
        )
        size = write_report(session, options.out, batch)
    finally:
        session.close()
    if not options.quiet:
        print_lines(f"{shown(options.out)}: {format_bytes(size)}")
