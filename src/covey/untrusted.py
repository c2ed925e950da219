"""Read metadata files that may be hostile.

Every small file of a dataset (``dataset_info.json``, ``features.json``, label files, the JSON of an
index, ``shard_info.json``) is read and parsed by these functions. They bound the time and the
memory that a file can take, and refuse paths that leave the directory of the file.
"""

from __future__ import annotations

import functools
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PureWindowsPath
from typing import Any, BinaryIO, NoReturn, ParamSpec, TypeVar

from covey.errors import (
    CoveyError,
    DatasetError,
    FormatError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.urls import redact, shown

Params = ParamSpec("Params")
Result = TypeVar("Result")

MAX_METADATA_BYTES = 256 << 20
"""Largest metadata file."""
MAX_VALUES = 4_000_000
"""Most values in a JSON file, or lines in a label file."""
MAX_DEPTH = 256
"""Deepest nesting of a JSON file."""
MAX_NAME_BYTES = 255
"""Longest part of a path, as in all common file systems."""
MAX_SHARDS = 100_000
"""Most shards in a dataset."""
MAX_FEATURES = 100_000
"""Most features in a schema."""

# Opening a fifo would wait for a writer.
_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

# A string of JSON; one that does not end matches too, so that the search takes linear time.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
}


# Files.


def storage_error(error: OSError, path: str | os.PathLike[str]) -> StorageError:
    """Return the CoveyError for an error of the operating system.

    Args:
        error: The error.
        path: The file or URL, if the error does not name one.
    """
    if isinstance(error, StorageError):
        return error
    name = shown(os.fsdecode(error.filename if error.filename is not None else path))
    name = name if len(name) <= 500 else f"{name[:497]}..."
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        found: StorageError = StorageNotFoundError("there is no such file", path=name)
    else:
        kind = StoragePermissionError if isinstance(error, PermissionError) else StorageError
        found = kind(f"{name}: {redact(str(error.strerror or error))}")
    found.errno = error.errno
    return found


@contextmanager
def os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of the operating system into CoveyErrors that name the file."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, path) from error


def reports_errors(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorate a public function whose first argument is a path, or several.

    What the operating system refuses, and memory that is not there, become CoveyErrors that name
    the path.
    """

    @functools.wraps(function)
    def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except (OSError, MemoryError) as error:
            if isinstance(error, CoveyError):
                raise
            path: Any = args[0] if args else kwargs.get("path")
            name = os.fsdecode(path) if isinstance(path, (str, os.PathLike)) else "the files"
            if isinstance(error, OSError):
                raise storage_error(error, name) from error
            raise DatasetError("there is not enough memory to read it", path=shown(name)) from error

    return wrapped


def check_regular(mode: int, path: str | os.PathLike[str]) -> None:
    """Raise StorageError unless a mode of ``stat`` is that of a regular file."""
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise StorageError(f"it is {kind}; must be a regular file", path=os.fspath(path))


def open_path(path: str | os.PathLike[str], opener: Any = None) -> BinaryIO:
    """Open a file of any kind for reading, without a buffer. A fifo waits for its writer.

    Raises:
        FileMissingError: If there is no such file.
        AccessRefusedError: If it may not be read.
        StorageError: If it cannot be opened.
    """
    if "\0" in os.fsdecode(path):
        raise StorageNotFoundError(f"{os.fsdecode(path)!r}: there is no such file")
    with os_errors(path):
        return open(path, "rb", buffering=0, opener=opener)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading, without a buffer. Never waits.

    Raises:
        StorageError: As for :func:`open_path`, and if it is a fifo, a device or a directory.
    """
    return open_path(path, open_regular)


def open_regular(path: str, flags: int) -> int:
    """Open a regular file, as an ``opener`` of :func:`open`; return its descriptor."""
    try:
        descriptor = os.open(path, flags | _FLAGS)
    except OSError:  # a socket cannot be opened, and a directory not on every system
        if os.path.exists(path):
            check_regular(os.stat(path).st_mode, path)
        raise
    try:
        check_regular(os.fstat(descriptor).st_mode, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: str | os.PathLike[str], limit: int = MAX_METADATA_BYTES) -> bytes:
    """Return the content of a small local file.

    Args:
        path: The file.
        limit: The most bytes that it may have.

    Raises:
        StorageError: As for :func:`open_file`, and if the file is larger.
    """
    with open_file(path) as file, os_errors(path):
        size = os.fstat(file.fileno()).st_size
        # A file that grows is read up to the limit; files in /proc have no size.
        pieces, left = [], limit + 1
        while size <= limit and left and (piece := file.read(min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    if size > limit or not left:
        raise StorageError(
            f"it has {max(size, limit + 1):,} bytes; must be at most {limit:,}",
            path=os.fspath(path),
        )
    return b"".join(pieces)


# JSON.


def parse_json(text: str | bytes, name: str) -> Any:
    """Parse a JSON file.

    Args:
        text: The content of the file.
        name: The file, for errors.

    Raises:
        FormatError: If it is not valid JSON, has too many values or is nested too deeply, or if an
            object has a key twice.
    """
    if len(text) > MAX_METADATA_BYTES:
        raise FormatError(
            f"it has {len(text):,} bytes; must be at most {MAX_METADATA_BYTES:,}", path=name
        )
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        # Before a value is allocated. Strings are removed only if that can change the result.
        if _count_marks(text) > MAX_VALUES and _count_marks(_STRING.sub("", text)) > MAX_VALUES:
            raise FormatError(f"it has over {MAX_VALUES:,} values; must have fewer", path=name)
        content = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"this is no JSON: {error}", path=name) from None
    _check_depth(content, name)
    return content


def _count_marks(text: str) -> int:
    """Return how often a character occurs that every value but the first follows."""
    return sum(text.count(mark) for mark in ",[{")


def _check_depth(content: Any, name: str) -> None:
    level = [content]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [
            each
            for parent in level
            if isinstance(parent, (dict, list))
            for each in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(each, (dict, list))
        ]
    raise FormatError(f"this is no JSON: it is nested over {MAX_DEPTH} levels deep", path=name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the key {twice[:60]!r} twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def parse_int64(value: Any) -> int | None:
    """Return an integer as protobuf's JSON has it, a number or a string; None for anything else.

    >>> parse_whole("12"), parse_whole(-1), parse_whole(1.5), parse_whole(True)
    (12, -1, None, None)
    """
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        return int(value) if value.removeprefix("-").isdigit() else None
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


# Paths.


def check_path(path: Any, what: str) -> None:
    """Make sure that a path stays inside the directory that it is relative to, on any system.

    Only the path is looked at, not the file system: a part of it may be a symbolic link.

    Args:
        path: The path, with slashes.
        what: What it is, for the error.

    Raises:
        FormatError: If it is absolute, or has an empty part, ``.``, ``..``, a backslash, a drive, a
            NUL character, a character that UTF-8 cannot encode, or a part that is too long.
    """
    for part in path.split("/") if isinstance(path, str) else (path,):
        check_name(part, what)


def check_name(name: Any, what: str) -> None:
    """Make sure that a name is one part of a path, as :func:`check_path` does for all of them."""
    valid = (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and not {"/", "\\", "\0"} & {*name}
        and not PureWindowsPath(name).drive
    )
    if valid:
        try:
            valid = len(name.encode()) <= MAX_NAME_BYTES
        except UnicodeError:
            valid = False
    if not valid:
        raise FormatError(
            f"{what} is {brief(name)}; must be a name of up to {MAX_NAME_BYTES} bytes that stays "
            "within its directory"
        )


def brief(value: Any) -> str:
    """Return a value for a message, however long or deep it is."""
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 64 else f"{text[:57]}..."
