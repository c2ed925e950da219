"""Text for terminals: strings that come from files are escaped before they are printed."""

from __future__ import annotations

import json


def escape(text: str, *, keep: str = "") -> str:
    r"""Replace the characters that a terminal would act on by JSON escapes.

    These are the characters that `repr` escapes as well: control characters, line separators,
    bidirectional overrides, zero-width characters, lone surrogates and unassigned code points.
    The backslash itself stays, so that text without such characters is returned as it is.

    Args:
        text: The text.
        keep: Characters that are not escaped, such as the newlines of a table.

    >>> print(escape("owl\x1b[2J\u202e"))
    owl\u001b[2J\u202e
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else json.dumps(each)[1:-1] for each in text
    )
