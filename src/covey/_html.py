"""HTML of datasets, loaders, features and results in notebooks: tables of escaped text.

The size is bounded: rows, and characters of a cell.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from covey.errors import shorten

if TYPE_CHECKING:
    from covey.results import Info
    from covey.schema import Features

MAX_ROWS = 20
MAX_CHARACTERS = 80

_STYLE = "border-collapse:collapse;text-align:left"


def features_html(title: str, features: Features, rows: Sequence[tuple[str, str]] = ()) -> str:
    """Return the names and types of features, and further names and values."""
    return titled(title, _features_table(features, rows))


def info_html(info: Info) -> str:
    """Return the splits and the features of a dataset."""
    from covey._progress import format_bytes

    header = ["split", "examples", "classes", "shards", "size", "index"]
    rows = [
        [
            each.name,
            "" if each.records is None else f"{each.records:,}",
            "" if each.classes is None else f"{len(each.classes):,} of {each.label}",
            f"{each.shards:,}",
            format_bytes(each.bytes),
            each.index,
        ]
        for each in info.splits
    ]
    features = "" if info.features is None else _features_table(info.features)
    return titled(f"{info.path}: {info.kind}", table(header, rows, len(rows)) + features)


def _features_table(features: Features, rows: Sequence[tuple[str, str]] = ()) -> str:
    named = [(name, kind.summary) for name, kind in list(features.items())[:MAX_ROWS]]
    listed = table(["feature", "type"], named, len(features))
    return listed + (table(["option", "value"], rows, len(rows)) if rows else "")


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
