"""What people write on a command line, as values: sizes, shares, numbers.

What the commands have in common that read a dataset.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from covey.errors import escape

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_POWERS = "kmgt"


def size(text: str) -> int:
    """A number of bytes. K, M, G and T are powers of 1024, as are KiB and so on; KB is 1000.

    >>> size("512M"), size("1.5 GiB"), size("64MB"), size("4096")
    (536870912, 1610612736, 64000000, 4096)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 512M, 1.5G or 64MiB")
    unit = 1000 if (found[3] or "").lower() == "b" else 1024
    power = 0 if found[2] is None else _POWERS.index(found[2].lower()) + 1
    number = int(float(found[1]) * unit**power)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is less than a byte")
    return number


def fraction(text: str) -> float:
    """A share that is neither nothing nor all.

    >>> fraction("0.1"), fraction("10%")
    (0.1, 0.1)
    """
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a share of the whole; write a number between 0 and 1, or 10%"
        )
    return share


def count_or_share(text: str) -> int | float:
    """How many of something: a number, or a share with a percent sign.

    >>> count_or_share("100"), count_or_share("10%")
    (100, 0.1)
    """
    if text.endswith("%"):
        return fraction(text)
    return positive(text)


def positive(text: str) -> int:
    """A integer from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer, 1 or more")
    return int(text)


def default(text: str) -> tuple[str, Any]:
    """A name and a value, which is JSON or else a string.

    >>> default("eggs=2"), default("nest=[]"), default("colour=red")
    (('eggs', 2), ('nest', []), ('colour', 'red'))
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def storage_option(text: str) -> tuple[str, Any]:
    """A name and a value, like :func:`default`; the value may be a secret and is not repeated."""
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError("it must be NAME=VALUE")
    return default(text)


def kind(text: str) -> str:
    """A kind of source that is known.

    >>> kind("image-directory")
    'image directory'
    """
    from covey.sources import KINDS

    plain = text.lower().replace("-", " ").replace("_", " ")
    for name in KINDS:
        if name.lower() == plain:
            return name
    raise argparse.ArgumentTypeError(f"{text!r} is not a known kind; they are {', '.join(KINDS)}")


def add_path(parser: argparse.ArgumentParser) -> None:
    """What is read, and where."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="the directory of a dataset; a directory, a file or a quoted pattern of TFRecords; or a URL",
    )
    parser.add_argument("--split", help="only this one, or several: train+test (default: all)")
    parser.add_argument(
        "--storage-option",
        metavar="NAME=VALUE",
        type=storage_option,
        action="append",
        default=[],
        help="what fsspec needs for a URL, such as anon=true; may be repeated",
    )


def add_running(parser: argparse.ArgumentParser) -> None:
    """How it runs."""
    parser.add_argument(
        "--threads", metavar="N", type=positive, help="how many work (default: all CPU cores)"
    )
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")
    add_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="say only what is wrong")


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is printed."""
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON object")


def shows(options: argparse.Namespace) -> bool | None:
    """Whether to show progress; None leaves it to where the output goes."""
    return False if options.quiet or options.no_progress else None


def storage_options(options: argparse.Namespace) -> dict[str, Any] | None:
    """What fsspec is told."""
    return dict(options.storage_option) or None


def print_json(content: Any) -> None:
    """Print one JSON object."""
    # The escapes of JSON itself, for the control characters that it leaves as they are.
    print(escape(json.dumps(content, indent=1, ensure_ascii=False), keep="\n"))
