"""``covey view``: show a dataset in the browser."""

from __future__ import annotations

import argparse
import socket

from covey.cli.options import LABEL, PATH, PROGRESS, Rows, add_options, count, reading_options
from covey.cli.output import print_message

SUMMARY = "show the examples, the classes and the batches of a dataset in the browser"

EXAMPLES = """\
The URL of the page is printed on a line of its own, and opened in the browser. It has a token,
without which the server answers no request. Ctrl-C ends the server, which changes no file. The page
of a remote machine is opened through an SSH tunnel: its command is printed, too.

examples:
  covey view data/birds
  covey view data/birds --embeddings birds.npy --split test
  covey view s3://bucket/birds --port 8080 --no-browser
"""

# fmt: off
_OPTIONS: Rows = (
    ("", "--embeddings", str, "FILE",
     ".npy file with a vector for each example of the split (default: the first split)"),
    ("", "--port", count, "N", "port of the server; 0 for any (default)"),
    ("", "--host", str, "ADDRESS",
     "address to bind to (default: 127.0.0.1, which other machines cannot connect to)"),
    ("", "--no-browser", bool, None, "do not open the browser"),
)
# fmt: on


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_options(parser, *PATH, *LABEL, *_OPTIONS, *PROGRESS)
    parser.set_defaults(port=0, host="127.0.0.1")


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from covey.view import View
    from covey.view.embeddings import Embeddings
    from covey.view.server import is_loopback
    from covey.view.session import Session

    session = Session.of_path(options.path, label=options.label, **reading_options(options))
    try:
        # Before the page asks for them: indexing shows its progress, and errors are printed.
        for split, error in session.open_all().items():
            print_message(f"warning: split {split!r} cannot be opened: {error}")
        if options.embeddings is not None:
            session.embeddings = Embeddings.of(session, options.embeddings)
        is_local = is_loopback(options.host)
        view = View(
            session,
            host=options.host,
            port=options.port,
            allow_frames=is_local,
            in_thread=False,
        )
    except BaseException:
        session.close()
        raise
    with view:
        if not is_local:
            print_message(
                f"warning: other machines can connect to {options.host}; connections are not "
                "encrypted, and the URL gives access to all examples"
            )
        print(view.url, flush=True)
        if is_local and not options.quiet:
            print_message(
                "to open it on another machine, run this there first: "
                f"ssh -N -L {view.port}:localhost:{view.port} {socket.gethostname()}"
            )
        if not options.no_browser and not view.open_browser() and not options.quiet:
            print_message("no browser was found; open the URL, and press Ctrl-C to end")
        view.run()
