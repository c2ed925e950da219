"""HTML of the report: the page, tables, and strings of the dataset, which are escaped."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib import metadata, resources
from typing import Any

from covey._text import shorten


def document(title: str, body: str) -> str:
    """Return a page with a policy that allows no script, no request, and one style sheet."""
    style = resources.files("covey.view.report").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    return f"""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="covey {html.escape(metadata.version("covey"))}">
<title>{html.escape(shorten(title, 200))}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def text(value: object, width: int = 120) -> str:
    """Return a string of the dataset, whose direction does not change that of its surroundings."""
    return f"<bdi>{html.escape(shorten(str(value), width))}</bdi>"


def table(
    caption: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Iterable[int] = (),
) -> str:
    """Return a table.

    Args:
        caption: Its title; empty for none.
        header: Titles of the columns.
        rows: Cells, as HTML.
        numbers: Positions of the columns of numbers.
    """
    right = set(numbers)

    def cell(position: int, content: str, tag: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        number = ' class="number"' if position in right else ""
        return f"<{tag}{scope}{number}>{content}</{tag}>"

    head = "".join(cell(position, each, "th") for position, each in enumerate(header))
    body = "".join(
        f"<tr>{''.join(cell(position, each, 'td') for position, each in enumerate(row))}</tr>"
        for row in rows
    )
    title = f"<caption>{caption}</caption>" if caption else ""
    # A region that scrolls must be reachable by keyboard.
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{html.escape(header[0])}">'
        f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def number_text(value: Any) -> str:
    """Return a number with separators of thousands; fractions have six digits.

    >>> number_text(12345), number_text(0.1234567), number_text(None)
    ('12,345', '0.123457', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.6g}"
    return f"{int(value):,}" if abs(float(value)) < 1e15 else f"{float(value):.6g}"
