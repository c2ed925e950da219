"""The command line: ``covey write``, ``covey verify`` and the others.

A command is a function that adds its options to a parser, one that runs, and a line in the table
below. Nothing heavy is imported before a command runs, so that help comes at once.
"""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import covey
from covey.cli import index, info, repair, sample, verify, write
from covey.cli.formatting import in_terms_of_options, tell
from covey.errors import CoveyError, escape

INTERRUPTED = 130  # 128 and the number of the signal, as shells have it


@dataclass(frozen=True)
class Command:
    """One thing to do."""

    name: str
    what: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    """Gives the status to end with; 0 if it gives none."""


COMMANDS = (
    Command("write", write.WHAT, write.configure, write.run),
    Command("info", info.WHAT, info.configure, info.run),
    Command("sample", sample.WHAT, sample.configure, sample.run),
    Command("verify", verify.WHAT, verify.configure, verify.run),
    Command("repair", repair.WHAT, repair.configure, repair.run),
    Command("index", index.WHAT, index.configure, index.run),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: What follows the name of the program; by default that of this process.

    Returns:
        0 if all went well, 1 after an error, or if there is something wrong with what was verified,
        130 after Ctrl-C. What is not a valid command ends the program with 2, as argparse does.
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
        tell(str(interrupt) or "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # A caller that read our output has gone, `head` for instance; Python must not find out again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CoveyError, OSError) as error:
        tell(f"error: {in_terms_of_options(str(error))}", *getattr(error, "remedies", ()))
        return 1
    except MemoryError:
        tell("error: there is not enough memory")
        return 1
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    tell(f"warning: {in_terms_of_options(str(message))}")


class _Parser(argparse.ArgumentParser):
    """A parser whose messages repeat arguments without control characters and credentials."""

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
    """What the output cannot have, as JSON writes it: names of classes may be any text."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPING = "covey.escape"
codecs.register_error(_ESCAPING, _escape)


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        given=given,
        prog="covey",
        description="Labelled data to TFRecord datasets that any reader understands.",
    )
    parser.add_argument("--version", action="version", version=f"covey {covey.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, title="commands")
    for command in COMMANDS:
        each = commands.add_parser(
            command.name,
            help=command.what,
            description=f"{command.what[0].upper()}{command.what[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            given=given,
        )
        command.configure(each)
        each.set_defaults(run=command.run, refuse=each.error)
    return parser
