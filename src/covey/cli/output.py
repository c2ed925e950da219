"""Output of the command line: lines, tables, JSON, messages, reports."""

from __future__ import annotations

import copy
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from covey.errors import CoveyError, DatasetError, escape
from covey.errors import shorten as shorten

if TYPE_CHECKING:
    from covey import Feature

TERMINAL_WIDTH = 80

# Arguments whose option does not have the same name.
_OPTIONS = {
    "defaults": "--default",
    "storage_options": "--storage-option",
}

# Arguments in the remedies of errors: `mode='append'`, `shards=2`, `pass label=`. The names of
# storage options, such as `key=`, are the same on the command line.
_ARGUMENT = re.compile(
    r"\b(split|label|kind|mode|on_error|workers|shards|records_per_shard|shard_bytes|compression"
    r"|memory_limit|max_pixels|storage_options)=(?:'([\w-]+)'|(\d+)|(?![\w'\"(]))"
)


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


def option_name(argument: str) -> str:
    """Return the option of an argument of Python.

    >>> option_name("memory_limit"), option_name("hold_out.by")
    ('--memory-limit', '--hold-out-by')
    """
    return _OPTIONS.get(argument) or f"--{argument.replace('_', '-').replace('.', '-')}"


def with_option_names(remedy: str) -> str:
    """Return the remedy of an error, with options in place of arguments.

    >>> with_option_names("pass mode='overwrite' to replace it, or label=")
    'pass --mode overwrite to replace it, or --label'
    """

    def option(found: re.Match[str]) -> str:
        value = found[2] or found[3]
        name = option_name(found[1])
        return f"{name} {value}" if value else name

    return _ARGUMENT.sub(option, remedy)


def error_message(error: BaseException) -> str:
    """Return the message of an error, with the names of options."""
    if not isinstance(error, CoveyError):
        return str(error)
    shown = copy.copy(error)
    shown.remedy = with_option_names(error.remedy)
    return shown.message(option_name)


def class_cells(counts: Sequence[int]) -> list[str]:
    """Return the cells of a table for the number of classes and the examples of each.

    >>> class_cells([3, 5, 4]), class_cells([])
    (['3', '3 to 5'], ['-', '-'])
    """
    if not counts:
        return ["-", "-"]
    few, many = min(counts), max(counts)
    return [f"{len(counts):,}", f"{few:,}" if few == many else f"{few:,} to {many:,}"]


def describe_feature(feature: Feature) -> str:
    """Return a short description of a feature."""
    from covey import ClassLabel, Image, Tensor

    if isinstance(feature, ClassLabel):
        count = feature.num_classes
        return f"ClassLabel of {count:,} classes" if count else "ClassLabel"
    if isinstance(feature, Tensor):
        shape = f" {feature.shape}" if feature.shape else ""
        return f"{feature.dtype}{shape}".replace("None", "any")
    if isinstance(feature, Image):
        rotated = ", rotated according to EXIF" if feature.exif_orientation else ""
        return f"Image {feature.shape} of {feature.dtype}{rotated}".replace("None", "any")
    return shorten(str(feature), TERMINAL_WIDTH - 20)
