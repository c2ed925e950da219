"""What the command line says, and how."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from covey.errors import CoveyError, escape

if TYPE_CHECKING:
    from covey import Feature

# Of a terminal.
WIDTH = 80

# In messages for those who call functions: `mode='append'`, `pass label=`.
_ARGUMENT = re.compile(
    r"\b(split|label|kind|mode|key|name|workers|shards|memory|on_error|records_per_shard|max_pixels)="
    r"(?:'([\w-]+)'|(\d+)|(?![\w'\"(]))"
)


class RemediedError(CoveyError):
    """An error with what can be done about it, on lines of its own.

    Attributes:
        remedies: The lines.
    """

    def __init__(self, message: str, *remedies: str) -> None:
        super().__init__(message)
        self.remedies = remedies


def say(*lines: str) -> None:
    """Print lines of output. A line break inside of one is escaped, as other controls are."""
    print("\n".join(map(escape, lines)))


def tell(*lines: str) -> None:
    """Print a message to stderr: a first line, and those that belong to it."""
    first, *others = map(escape, lines)
    print("\n".join((f"covey: {first}", *others)), file=sys.stderr, flush=True)


def in_terms_of_options(message: str) -> str:
    """A message of a function, for somebody who has options instead of arguments.

    >>> in_terms_of_options("pass mode='overwrite' to replace it, or label=")
    'pass --mode overwrite to replace it, or --label'
    """

    def option(found: re.Match[str]) -> str:
        value = found[2] or found[3]
        name = f"--{found[1].replace('_', '-')}"
        return f"{name} {value}" if value else name

    message = message.replace("storage_options=", "--storage-option NAME=VALUE")
    message = message.replace("give it a default", "give it one with --default NAME=VALUE")
    return _ARGUMENT.sub(option, message)


def with_article(kind: str) -> str:
    """A kind of source, as one speaks of it.

    >>> with_article("image directory"), with_article("NPZ"), with_article("TFRecords")
    ('an image directory', 'an NPZ file', 'TFRecords')
    """
    if kind == "TFRecords":
        return kind
    noun = kind if " " in kind and kind != "JSON Lines" else f"{kind} file"
    return f"{'an' if kind[0] in 'aeio' or kind == 'NPZ' else 'a'} {noun}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: its first column is flush left, the others flush right.

    >>> say(*table(["split", "examples"], [["train", "90"], ["val", "1,000"]]))
      split  examples
      train        90
      val       1,000
    """
    escaped = [[escape(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *escaped, strict=True)]
    lines = []
    for row in (header, *escaped):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"  {'  '.join(cells)}")
    return lines


def shorten(name: str, width: int = 40) -> str:
    """A name, as it fits a line."""
    escaped = escape(name[: width + 1])
    return escaped if len(escaped) <= width else f"{escaped[: width - 3]}..."


def describe_kind(kind: Feature) -> str:
    """A feature in few words."""
    from covey import ClassLabel, Tensor

    if isinstance(kind, ClassLabel):
        return f"ClassLabel of {kind.num_classes:,} classes" if kind.num_classes else "ClassLabel"
    if isinstance(kind, Tensor):
        shape = f" {kind.shape}" if kind.shape else ""
        return f"{kind.dtype}{shape}".replace("None", "any")
    text = str(kind)
    return text if len(text) <= WIDTH - 20 else f"{text[: WIDTH - 23]}..."
