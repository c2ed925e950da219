"""Strings for messages and reprs: escaped, bounded, listed, and the most similar name."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence

MAX_SHOWN = 120
"""Maximum length of a value in a message."""
MAX_NAME = 40
"""Maximum length of a name in a table."""
MAX_OUTLINE_ROWS = 8
"""Maximum number of rows of an outline."""

# Limits of the search for a similar name: a dataset may have millions of classes.
_MAX_NAMES = 100_000
_MAX_CANDIDATES = 1_000
_SIMILAR = 0.65


def escape(text: str, *, keep: str = "") -> str:
    r"""Replace the characters that a terminal would act on by JSON escapes.

    These are the characters that `repr` escapes as well: control characters, line separators,
    bidirectional overrides, zero-width characters, lone surrogates and unassigned code points.
    The backslash itself stays, so that text without such characters is returned unchanged.

    Args:
        text: The string to escape.
        keep: Characters that are not escaped, such as the newlines of a table.

    >>> print(escape("owl\x1b[2J\u202e"))
    owl\u001b[2J\u202e
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else json.dumps(each)[1:-1] for each in text
    )


def shorten(name: str, width: int = MAX_NAME) -> str:
    """Return a name of at most `width` characters, without control characters.

    >>> shorten("Puffinus puffinus mauretanicus", 20)
    'Puffinus puffinus...'
    """
    escaped = escape(name[: width + 1])
    return escaped if len(escaped) <= width else f"{escaped[: width - 3]}..."


def list_names(names: Iterable[str], limit: int = 12) -> str:
    """Return names for a message, at most `limit` of them.

    >>> list_names("abcd", limit=2), list_names("ab")
    ("'a', 'b' and 2 more", "'a', 'b'")
    """
    rest = iter(names)
    listed = [shown_value(str(name), 60) for name in itertools.islice(rest, limit)]
    more = sum(1 for _ in rest)
    return f"{', '.join(listed)}{f' and {more:,} more' if more else ''}" or "none"


def closest(name: object, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to an invalid one; None if none is similar.

    Case is ignored. The search is limited to the first 100,000 names.

    >>> closest("specie", ["image", "species"]), closest("x", ["image", "species"])
    ('species', None)
    """
    import difflib

    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    if not isinstance(name, str) or not name or len(name) > MAX_SHOWN:
        return None
    # The ratio of strings of lengths m and n is at most 2 * min(m, n) / (m + n).
    low, high = _SIMILAR / (2 - _SIMILAR) * len(name), (2 - _SIMILAR) / _SIMILAR * len(name)
    similar = (
        each
        for each in itertools.islice(names, _MAX_NAMES)
        if isinstance(each, str) and low <= len(each) <= high
    )
    folded = {each.casefold(): each for each in itertools.islice(similar, _MAX_CANDIDATES)}
    found = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=_SIMILAR)
    return folded[found[0]] if found else None


def outline(title: str, rows: Iterable[tuple[str, str]], limit: int = MAX_OUTLINE_ROWS) -> str:
    """Return a title and indented names with values, at most `limit` of them, for ``repr()``.

    >>> print(outline("<Dataset: 3 examples>", [("image", "uint8 (8, 8)"), ("name", "str")]))
    <Dataset: 3 examples>
      image  uint8 (8, 8)
      name   str
    """
    rest = iter(rows)
    cells = [(shorten(name), shorten(value, 100)) for name, value in itertools.islice(rest, limit)]
    width = max((len(name) for name, _ in cells), default=0)
    lines = [title, *(f"  {name:{width}}  {value}".rstrip() for name, value in cells)]
    more = sum(1 for _ in rest)
    return "\n".join([*lines, f"  and {more:,} more"] if more else lines)


def shown_value(value: object, width: int = MAX_SHOWN) -> str:
    """Return the repr of a value, of at most `width` characters."""
    text = repr(value[:width] if isinstance(value, (str, bytes)) else value)
    is_cut = len(text) > width or (isinstance(value, (str, bytes)) and len(value) > width)
    return f"{text[: width - 3]}..." if is_cut else text


def count_of(count: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun.

    >>> count_of(1, "file"), count_of(2000, "file")
    ('1 file', '2,000 files')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], alignment: str | None = None
) -> list[str]:
    """Return the lines of a table.

    Args:
        header: Titles of the columns.
        rows: Cells of the rows; control characters are escaped.
        alignment: ``<`` or ``>`` for each column (default: the first left, the others right).

    >>> table(["split", "examples"], [["train", "90"], ["val", "1,000"]])
    ['  split  examples', '  train        90', '  val       1,000']
    """
    sides = alignment or "<" + ">" * (len(header) - 1)
    cells = [header, *([escape(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    formats = [f"  {{:{side}{width}}}" for side, width in zip(sides, widths, strict=True)]
    return ["".join(formats).format(*row).rstrip() for row in cells]
