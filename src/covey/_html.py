"""HTML of datasets, loaders, features and results in notebooks: tables of escaped text.

The size is bounded: rows, and characters of a cell.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from covey.errors import shorten

if TYPE_CHECKING:
    from covey.schema import Feature

MAX_ROWS = 20
MAX_CHARACTERS = 80

_STYLE = "border-collapse:collapse;text-align:left"


def features_html(
    title: str, features: Mapping[str, Feature], rows: Sequence[tuple[str, str]] = ()
) -> str:
    """Return the names and types of features, and further names and values."""
    named = [(name, kind.summary) for name, kind in list(features.items())[:MAX_ROWS]]
    listed = table(["feature", "type"], named, len(features))
    return titled(title, listed + (table(["name", "value"], rows, len(rows)) if rows else ""))


def titled(title: str, body: str) -> str:
    """Return a title and HTML."""
    return f"<div><p><b>{text(title, 200)}</b></p>{body}</div>"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], count: int, *, escaped: bool = False
) -> str:
    """Return a table of at most :data:`MAX_ROWS` of `count` rows.

    Args:
        header: Titles of the columns.
        rows: Cells of the rows.
        count: Number of all rows.
        escaped: Whether the cells are HTML.
    """
    head = "".join(f"<th>{text(name)}</th>" for name in header)
    lines = [
        "".join(f"<td>{cell if escaped else text(cell)}</td>" for cell in row)
        for row in rows[:MAX_ROWS]
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = f"<p>and {count - len(lines):,} more</p>" if count > len(lines) else ""
    return (
        f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}'
    )


def text(value: object, width: int = MAX_CHARACTERS) -> str:
    """Return a value as escaped text of at most `width` characters."""
    return html.escape(shorten(str(value), width))
