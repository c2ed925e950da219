"""Output of the command line: lines, tables, JSON, messages, reports."""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from covey.errors import CoveyError, DatasetError, escape
from covey.errors import shorten as shorten

TERMINAL_WIDTH = 80

# Arguments whose option does not have the same name.
_OPTIONS = {
    "defaults": "default",
    "hold_out": "hold_out_fraction",
    "storage_options": "storage_option",
    "types": "type",
}

# An argument of Python in a remedy: mode='append', label=. Commands are between backticks.
_ARGUMENT = re.compile(r"`[^`]*`|([a-z][a-z_.]*)=")


def print_lines(*lines: str) -> None:
    """Print lines of output. Control characters in a line are escaped, line breaks too."""
    for line in lines:
        print(escape(line))


def print_message(*lines: str) -> None:
    """Print a message to stderr."""
    first, *others = map(escape, lines)
    print("\n".join((f"covey: {first}", *others)), file=sys.stderr, flush=True)


def check_report(path: str | None) -> None:
    """Raise DatasetError if a report cannot be written to a file."""
    if path is None:
        return
    directory = os.path.dirname(path) or "."
    if not os.access(directory, os.W_OK) or os.path.isdir(path):
        raise DatasetError("the report cannot be written", path=path, option="report")


def write_report(path: str | None, rows: list[dict[str, Any]]) -> None:
    """Write a report as JSON Lines, if a path is given."""
    if path is None:
        return
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(escape(json.dumps(row, ensure_ascii=False)) + "\n")


def print_json(content: Any) -> None:
    """Print a JSON object. Control characters that JSON allows are escaped."""
    print(escape(json.dumps(content, indent=1, ensure_ascii=False), keep="\n"))


class OptionNames:
    """The options of a command, by the names of the arguments in Python.

    Args:
        parser: Parser of the command.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._actions = {action.dest: action for action in parser._actions}

    def name(self, argument: str) -> str:
        """Return the option of an argument; the argument itself if the command has no option."""
        action = self._find(argument)
        return argument if action is None else _label(action)

    def message(self, error: BaseException) -> str:
        """Return the message of an error, with options in place of arguments.

        A remedy that names arguments is written for Python; the options are shown in its place.
        """
        if not isinstance(error, CoveyError):
            return str(error)
        shown = copy.copy(error)
        names = [name for name in _ARGUMENT.findall(error.remedy) if name]
        if names:
            found = [action for name in names if (action := self._find(name)) is not None]
            own = None if error.option is None else self._find(error.option)
            options = [_label(each) for each in found if each.option_strings and each is not own]
            shown.remedy = f"see {', '.join(dict.fromkeys(options))}" if options else ""
        return shown.message(self.name)

    def _find(self, argument: str) -> argparse.Action | None:
        return self._actions.get(_OPTIONS.get(argument, argument).replace(".", "_"))


def _label(action: argparse.Action) -> str:
    """Return the long option, or the metavar of a positional argument."""
    return action.option_strings[-1] if action.option_strings else str(action.metavar)


SPLIT_HEADER = ("split", "examples", "classes", "per class", "shards", "size")


def split_cells(
    name: str, records: int, counts: Sequence[int], shards: Sequence[object], size: int
) -> list[str]:
    """Return the cells of a split, below :data:`SPLIT_HEADER`.

    >>> split_cells("train", 12, [3, 5, 4], ["a", "b"], 2000)
    ['train', '12', '3', '3 to 5', '2', '2.0 kB']
    >>> split_cells("train", 12, [], ["a"], 2000)[2:4]
    ['-', '-']
    """
    from covey._progress import format_bytes

    few, many = min(counts, default=0), max(counts, default=0)
    each = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    classes = [f"{len(counts):,}", each] if counts else ["-", "-"]
    return [name, f"{records:,}", *classes, f"{len(shards):,}", format_bytes(size)]
