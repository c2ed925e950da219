"""Types of option values, and options that several commands have."""

from __future__ import annotations

import argparse
import json
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from covey.engines import Engine

Value = TypeVar("Value")

_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgt])(i?b)?|b)?", re.IGNORECASE)
_POWERS = "kmgt"


def size(text: str) -> int:
    """Parse a number of bytes. K, M, G, T, KiB, ... are powers of 1024; KB, ... are powers of 1000.

    >>> size("512M"), size("1.5 GiB"), size("64MB"), size("4096")
    (536870912, 1610612736, 64000000, 4096)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size; examples: 512M, 1.5G")
    unit = 1000 if (found[3] or "").lower() == "b" else 1024
    power = 0 if found[2] is None else _POWERS.index(found[2].lower()) + 1
    number = int(float(found[1]) * unit**power)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size; must be at least 1 byte")
    return number


def fraction(text: str) -> float:
    """Parse a fraction between 0 and 1.

    >>> fraction("0.1"), fraction("10%")
    (0.1, 0.1)
    """
    unit = 100 if text.endswith("%") else 1
    number = _number(text.removesuffix("%"))
    return _checked(text, number / unit, 0 < number < unit, "between 0 and 1, or 0% and 100%")


def count_or_fraction(text: str) -> int | float:
    """Parse an integer, or a percentage.

    >>> count_or_fraction("100"), count_or_fraction("10%")
    (100, 0.1)
    """
    return fraction(text) if text.endswith("%") else positive(text)


def positive(text: str) -> int:
    """Parse an integer >= 1."""
    is_valid = text.isascii() and text.isdigit() and int(text) >= 1
    return int(_checked(text, text, is_valid, "an integer >= 1"))


def count(text: str) -> int:
    """Parse an integer >= 0."""
    return int(_checked(text, text, text.isascii() and text.isdigit(), "an integer >= 0"))


def cpus(text: str) -> float:
    """Parse a number of CPUs, which may be a fraction of one.

    >>> cpus("2"), cpus("0.5")
    (2.0, 0.5)
    """
    number = _number(text)
    return _checked(text, number, 0 < number < math.inf, "a number > 0")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _checked(text: str, value: Value, is_valid: bool, allowed: str) -> Value:
    if not is_valid:
        raise argparse.ArgumentTypeError(f"{text!r} must be {allowed}")
    return value


def picture(text: str) -> str:
    """Parse the path of a picture to be written."""
    is_valid = text.lower().endswith((".png", ".jpg", ".jpeg"))
    return _checked(text, text, is_valid, "a path that ends with .png or .jpg")


def name_list(text: str) -> tuple[str, ...]:
    """Parse names that are separated by commas.

    >>> name_list("path, fine,coarse")
    ('path', 'fine', 'coarse')
    """
    found = tuple(name.strip() for name in text.split(","))
    return _checked(text, found, all(found), "names, separated by commas")


def default(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE``, where the value is JSON or a string.

    >>> default("eggs=2"), default("nest=[]"), default("colour=red")
    (('eggs', 2), ('nest', []), ('colour', 'red'))
    """
    name, equals, value = text.partition("=")
    _checked(text, name, bool(name and equals), "NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def feature_type(text: str) -> tuple[str, str]:
    """Parse ``NAME=TYPE``.

    >>> feature_type("time=float64")
    ('time', 'float64')
    """
    from covey.errors import FeatureError
    from covey.schema.columns import DTYPES, parse_dtype

    name, equals, dtype = text.rpartition("=")
    try:
        if name and equals:
            return name, parse_dtype(dtype)
    except FeatureError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} must be NAME=TYPE, with a TYPE of {', '.join(DTYPES)}"
    )


def storage_option(text: str) -> tuple[str, Any]:
    """Parse ``NAME=VALUE`` like :func:`default`. The value may be secret: errors do not show it."""
    if not text.partition("=")[0] or "=" not in text:
        raise argparse.ArgumentTypeError("must be NAME=VALUE")
    return default(text)


def kind(text: str) -> str:
    """Parse the name of a source format.

    >>> kind("image-directory")
    'image directory'
    """
    from covey.errors import SourceError
    from covey.sources.registry import find_kind

    try:
        return find_kind(text).name
    except SourceError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be {error.allowed}") from None


Rows = tuple[tuple[str, str, Any, str | None, str], ...]
"""Options: group, name, type, metavar, help. Options of a ``"group/..."`` exclude each other. A
type is bool for a flag, the valid values, the parser of a value, or the parser in a list: the
option may be repeated."""

# fmt: off
SPLIT: Rows = (
    ("", "--split", str, None, "split, or several: train+test (default: all)"),
)
STORAGE: Rows = (
    ("", "--storage-option", [storage_option], "NAME=VALUE",
     "option of fsspec for a URL, such as anon=true; may be repeated"),
)
PATH: Rows = (
    ("", "path", str, "PATH",
     "directory of a dataset; directory, file or quoted pattern of TFRecords; or URL"),
    *SPLIT, *STORAGE,
)
LABEL: Rows = (
    ("", "--label", str, "NAME",
     "label feature, or @file (default: the label of the index, or a feature with a common name)"),
)
PROGRESS: Rows = (
    ("", "--no-progress", bool, None, "hide the progress bar"),
    ("", "-q --quiet", bool, None, "print only errors and warnings"),
)
JSON: Rows = (("", "--json", bool, None, "print the result as a JSON object"),)
RUNNING: Rows = (
    ("", "--threads", positive, "N", "number of threads (default: all CPU cores)"),
    *PROGRESS, *JSON,
)
ENGINE: Rows = (
    ("running", "--engine", ("processes", "ray"), None,
     "where the work is done: processes of this machine, or a Ray cluster (default: threads of "
     "this process)"),
    ("running", "--max-retries", count, "N",
     "how often a task of the engine is run again after its worker was lost (default: 1 with "
     "processes, 3 with ray)"),
    ("running", "--num-cpus", cpus, "X", "CPUs of a task of --engine ray (default: 1)"),
)
# fmt: on


def add_options(parser: argparse.ArgumentParser, *rows: tuple[str, str, Any, Any, str]) -> None:
    """Add the rows of tables to a parser."""
    groups: dict[str, Any] = {"": parser}
    for group, names, type_of, metavar, text in rows:
        title = group.partition("/")[0]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if group not in groups:
            groups[group] = groups[title].add_mutually_exclusive_group()
        keywords: dict[str, Any] = {"type": type_of, "metavar": metavar}
        if type_of is bool:
            keywords = {"action": "store_true"}
        elif isinstance(type_of, list):
            action = "extend" if type_of == [name_list] else "append"
            keywords = {"type": type_of[0], "metavar": metavar, "action": action}
        elif isinstance(type_of, (tuple, range)):
            keywords = {"type": type(type_of[0]), "choices": type_of}
        groups[group].add_argument(*names.split(), help=text, **keywords)


def find_engine(options: argparse.Namespace) -> Engine | None:
    """Return the engine of the options :data:`ENGINE`; None for this process."""
    names = ("workers", "max_retries", "num_cpus")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    valid = {"processes": ("workers", "max_retries"), "ray": ("max_retries", "num_cpus")}
    of_command = ("workers",) if options.command == "write" else ()
    for name in given:
        if name not in (*valid.get(options.engine, ()), *of_command):
            engines = " or ".join(each for each in valid if name in valid[each])
            options.refuse(f"--{name.replace('_', '-')} needs --engine {engines}")
    if options.engine is None:
        return None
    from covey.engines import Processes, Ray

    if options.engine == "processes":
        return Processes(**given)
    given.pop("workers", None)
    return Ray(**given)


def shows_progress(options: argparse.Namespace) -> bool | None:
    """Return whether to show a progress bar; None if that depends on stderr."""
    return False if options.quiet or options.no_progress else None


def reading_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that all functions have which read a dataset."""
    return {
        "split": options.split,
        "storage_options": dict(options.storage_option or ()),
        "progress": shows_progress(options),
    }
