"""The command line: ``covey write``, ``covey verify`` and the others.

A command is a module: ``SUMMARY`` and ``EXAMPLES`` are its help, ``configure`` adds its options to
a parser, and ``run`` returns the exit status (None is 0). Heavy modules are imported when a command
runs, so that ``--help`` is fast.
"""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import covey
from covey.cli import index, info, repair, sample, show, verify, write
from covey.cli.output import error_message, print_message
from covey.errors import CoveyError, escape

INTERRUPTED = 130  # 128 + SIGINT, the convention of shells


COMMANDS = {
    "write": write,
    "info": info,
    "show": show,
    "sample": sample,
    "verify": verify,
    "repair": repair,
    "index": index,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Arguments of the program (default: those of this process).

    Returns:
        The exit status: 0 after success, 1 after an error or if `verify` found problems, 130 after
        Ctrl-C. argparse exits with 2 if the arguments are invalid.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = _parser(given).parse_args(given)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status: int = options.run(options) or 0
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print_message(str(interrupt) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has exited, `head` for instance. Python would fail at exit too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CoveyError, OSError) as error:
        print_message(f"error: {error_message(error)}")
        return 1
    except MemoryError:
        print_message("error: not enough memory")
        return 1
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print_message(f"warning: {message}")


class _Parser(argparse.ArgumentParser):
    """A parser whose messages have no control characters and no credentials."""

    def __init__(self, *, given: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self._given = given

    def error(self, message: str) -> NoReturn:
        from covey.urls import redact, shown

        for each in sorted(self._given, key=len, reverse=True):
            for text in (each, repr(each)[1:-1]):
                message = message.replace(text, shown(text))
        super().error(escape(redact(message)))


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escape characters that the encoding of the output lacks, as JSON does."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPING = "covey.escape"
codecs.register_error(_ESCAPING, _escape)


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        given=given,
        prog="covey",
        description="Write, inspect, verify and index TFRecord datasets.",
    )
    parser.add_argument("--version", action="version", version=f"covey {covey.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for name, command in COMMANDS.items():
        each = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}.",
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            given=given,
        )
        command.configure(each)
        each.set_defaults(run=command.run, refuse=each.error)
    return parser
