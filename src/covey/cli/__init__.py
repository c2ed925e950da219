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
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import covey
from covey.cli import (
    commit,
    index,
    info,
    repair,
    show,
    verify,
    view,
    write,
)
from covey.cli.output import OptionNames, print_message
from covey.errors import CoveyError, SmallClassesWarning, closest, escape, list_names

INTERRUPTED = 130  # 128 + SIGINT, the convention of shells


COMMANDS = {
    "write": write,
    "commit": commit,
    "info": info,
    "show": show,
    "view": view,
    "verify": verify,
    "repair": repair,
    "index": index,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: Arguments of the program (default: ``sys.argv[1:]``).

    Returns:
        The exit status: 0 after success, 1 after an error or if `verify` found problems, 130 after
        Ctrl-C. The process exits with 2 if the arguments are invalid.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser(given)
    parser.check_names(given)
    options, rest = parser.parse_known_args(given)
    if rest:
        options.refuse(f"unexpected argument {rest[0]!r}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", SmallClassesWarning)
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
        print_message(f"error: {OptionNames(options.parser).message(error)}")
        return 1
    except MemoryError:
        print_message("error: not enough memory")
        return 1
    return status


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print_message(f"warning: {message}")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without control characters and credentials.

    Options cannot be abbreviated: an option that is added later would make the abbreviation
    ambiguous.
    """

    def __init__(self, *, given: Sequence[str], **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._given = given
        # As `check_names`: `-1,3` and `-3:` are values, not options.
        self._negative_number_matcher = re.compile(r"-\d")

    def error(self, message: str) -> NoReturn:
        from covey.urls import redact, shown

        for each in sorted(self._given, key=len, reverse=True):
            for text in (each, repr(each)[1:-1]):
                message = message.replace(text, shown(text))
        self.exit(2, f"{self.prog}: {escape(redact(message))}\n")

    def check_names(self, given: Sequence[str]) -> None:
        """Refuse unknown options and commands, before argparse names missing arguments."""
        commands = next((each for each in self._actions if each.dest == "command"), None)
        for position, each in enumerate(given):
            if each == "--":
                return
            if each[:1] == "-":
                name = each.partition("=")[0] if each[:2] == "--" else each[:2]
                # As in argparse: negative numbers and strings with spaces are values.
                is_option = name[-1].isalpha() and " " not in each.partition("=")[0]
                if is_option and name not in self._option_string_actions:
                    self._refuse("option", name, self._option_string_actions)
            elif commands is not None:
                parsers: Any = commands.choices
                if each not in parsers:
                    self._refuse("command", each, parsers)
                parsers[each].check_names(given[position + 1 :])
                return

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(each) for each in action.choices]
            raise argparse.ArgumentError(
                action, f"{value!r} must be one of {list_names(choices)}{_hint(value, choices)}"
            )

    def _refuse(self, kind: str, name: str, names: Iterable[str]) -> NoReturn:
        hint = _hint(name, names) or f"; `{self.prog} --help` lists the {kind}s"
        self.error(f"unknown {kind} {name}{hint}")


def _hint(name: object, names: Iterable[str]) -> str:
    similar = closest(name, names)
    return "" if similar is None else f"; did you mean {similar}?"


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Escape characters that the encoding of the output lacks, as JSON does."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_ESCAPING = "covey.escape"
codecs.register_error(_ESCAPING, _escape)


def make_parser(given: Sequence[str] = ()) -> _Parser:
    """Return the parser of the program.

    Args:
        given: Arguments to parse; credentials in them are not shown by errors.
    """
    parser = _Parser(
        given=given,
        prog="covey",
        description="Write, inspect, view, verify and index TFRecord datasets.",
    )
    parser.add_argument("--version", action="version", version=f"covey {covey.__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands"
    )
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
        each.set_defaults(run=command.run, refuse=each.error, parser=each)
    return parser
