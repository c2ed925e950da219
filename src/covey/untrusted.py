"""Reading and parsing of metadata files, none of which is trusted.

Every small file of a dataset (``dataset_info.json``, ``features.json``, label files, the JSON of an
index, ``shard_info.json``) is read and parsed by these functions. They bound the time and the
memory that a file can take, and reject paths that leave the directory of the file.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn, ParamSpec, TypeVar

from covey.errors import (
    CoveyError,
    DatasetError,
    FormatError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
    checks_keywords,
)
from covey.urls import is_path, parse_path, redact, shown

Params = ParamSpec("Params")
Result = TypeVar("Result")

MAX_METADATA_BYTES = 256 << 20
"""Maximum size of a metadata file."""
MAX_VALUES = 4_000_000
"""Maximum number of values in a JSON file, and of lines in a label file."""
MAX_DEPTH = 256
"""Maximum nesting depth of a JSON file."""
MAX_NAME_BYTES = 255
"""Maximum length of a path component, as in all common file systems."""
MAX_SHARDS = 100_000
"""Maximum number of shards in a dataset."""
MAX_FEATURES = 100_000
"""Maximum number of features in a schema."""

# Separators, NUL, and surrogates, which UTF-8 cannot encode.
_INVALID_IN_NAMES = re.compile(r"[/\\\0\ud800-\udfff]")

# Opening a FIFO would wait for a writer.
_OPEN_FLAGS = os.O_NONBLOCK | os.O_NOCTTY

# A JSON string. An unterminated one matches too, so that the search takes linear time.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


# Files.


def storage_error(error: OSError, path: str | os.PathLike[str]) -> StorageError:
    """Return the StorageError for an error of the operating system.

    Args:
        error: The error.
        path: The file or URL, used if the error does not name one.
    """
    if isinstance(error, StorageError):
        return error
    name = shown(os.fsdecode(error.filename if error.filename is not None else path))
    name = name if len(name) <= 500 else f"{name[:497]}..."
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        found: StorageError = StorageNotFoundError("there is no such file", path=name)
    else:
        kind = StoragePermissionError if isinstance(error, PermissionError) else StorageError
        found = kind(redact(str(error.strerror or error)), path=name)
    found.errno = error.errno
    return found


@contextmanager
def os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Convert errors of the operating system to StorageErrors with the path."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, path) from error


def reports_errors(
    *also: str,
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Decorate a public function with an argument `path`: a path or a list of paths.

    OSError, MemoryError and UnicodeError are converted to CoveyErrors with the path. The error of
    an unknown argument suggests a similar one.

    Args:
        also: Names that the function accepts as ``**options``.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        position = [*inspect.signature(function).parameters].index("path")

        @checks_keywords(also)
        @functools.wraps(function)
        def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            try:
                return function(*args, **kwargs)
            except CoveyError:
                raise
            except (OSError, MemoryError, UnicodeError) as error:
                path: Any = [*args[position:], kwargs.get("path")][0]
                name = parse_path(path) if is_path(path) else "the files"
                if isinstance(error, OSError):
                    raise storage_error(error, name) from error
                reason = "there is not enough memory to read it"
                if isinstance(error, UnicodeError):
                    reason = f"a string is not valid Unicode: {error}"
                raise DatasetError(reason, path=shown(name)) from error

        return wrapped

    return decorate


@contextmanager
def parsing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise FormatError with the path if the code in the block fails on values of a file."""
    try:
        yield
    except CoveyError as error:
        error.path = os.fspath(path) if error.path is None else error.path
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"a value is not valid: {type(error).__name__}: {error}"
        raise FormatError(reason, path=path) from error


def check_regular(mode: int, path: str | os.PathLike[str]) -> None:
    """Raise StorageError unless ``mode``, as returned by ``stat``, says a regular file."""
    if not stat.S_ISREG(mode):
        raise StorageError("it is not a regular file", path=path)


def open_path(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file of any type for reading, without a buffer. A FIFO waits for its writer.

    Raises:
        StorageNotFoundError: If there is no such file.
        StoragePermissionError: If access is denied.
        StorageError: If it cannot be opened.
    """
    _check_nul(path)
    with os_errors(path):
        return open(path, "rb", buffering=0)


class RegularFile(io.FileIO):
    """A regular file, open for reading without a buffer. Opening it never blocks.

    Args:
        path: The file.

    Raises:
        StorageNotFoundError: If there is no such file.
        StoragePermissionError: If access is denied.
        StorageError: If it is a FIFO, a device, a socket or a directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        _check_nul(path)
        with os_errors(path):
            super().__init__(path, "rb", opener=_open_regular)

    def stat(self) -> os.stat_result:
        """Return the state of the open file; its path may refer to another file by now."""
        return os.fstat(self.fileno())

    def read_at(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes from ``offset``; fewer at the end of the file."""
        return read_at(self.fileno(), offset, size)


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Return up to ``size`` bytes of an open file from ``offset``, independent of its position."""
    pieces: list[bytes] = []
    while size > 0 and (piece := os.pread(descriptor, size, offset)):  # at most 2 GiB
        pieces.append(piece)
        offset += len(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_nul(path: str | os.PathLike[str]) -> None:
    if "\0" in os.fsdecode(path):
        raise StorageNotFoundError("there is no such file", path=repr(os.fsdecode(path)))


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file and return its descriptor: an ``opener`` of :func:`open`."""
    descriptor = os.open(path, flags | _OPEN_FLAGS)
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
        limit: The maximum size in bytes.

    Raises:
        StorageError: As for :class:`RegularFile`, and if the file is larger.
    """
    with RegularFile(path) as file, os_errors(path):
        size = file.stat().st_size
        if size > limit:
            raise StorageError(f"it has {size:,} bytes; must be at most {limit:,}", path=path)
        return file.read_at(0, size)


# JSON.


def parse_json(text: str | bytes, name: str, max_values: int = MAX_VALUES) -> Any:
    """Parse a JSON file.

    Args:
        text: The content of the file.
        name: The path of the file, for errors.
        max_values: The maximum number of values.

    Raises:
        FormatError: If it is not valid JSON, has too many values, is nested too deeply, or has an
            object with a duplicate key.
    """
    if len(text) > MAX_METADATA_BYTES:
        raise FormatError(
            f"it has {len(text):,} bytes; must be at most {MAX_METADATA_BYTES:,}", path=name
        )
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        # Checked before values are allocated. Strings are removed only if that can matter.
        if _count_marks(text) > max_values and _count_marks(_STRING.sub("", text)) > max_values:
            raise FormatError(f"it has more than {max_values:,} values", path=name)
        content = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"it is not valid JSON: {error}", path=name) from None
    _check_depth(content, name)
    return content


def _count_marks(text: str) -> int:
    """Return an upper bound of the number of values: each but the first follows one of these."""
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
    raise FormatError(
        f"it is not valid JSON: it is nested deeper than {MAX_DEPTH} levels", path=name
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a duplicate key")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def parse_int64(value: Any) -> int | None:
    """Return an integer of protobuf's JSON, which is a number or a string; None for other values.

    >>> parse_int64("12"), parse_int64(-1), parse_int64(1.5), parse_int64(True)
    (12, -1, None, None)
    """
    if isinstance(value, str) and len(value) <= 20 and value.isascii():
        return int(value) if value.removeprefix("-").isdigit() else None
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


# Paths.


def check_path(path: Any, what: str) -> None:
    """Check that a relative path stays inside its directory, on any operating system.

    Only the string is checked, not the file system: a component may be a symbolic link.

    Args:
        path: The path, separated by slashes.
        what: The description of the path in the error message.

    Raises:
        FormatError: If it is absolute, or has an empty component, ``.``, ``..``, a backslash, a
            drive, a NUL character, a character that UTF-8 cannot encode, or a component that is too
            long.
    """
    for part in path.split("/") if isinstance(path, str) else (path,):
        check_name(part, what)


def check_name(name: Any, what: str) -> None:
    """Check that a name is a valid path component, as :func:`check_path` does for each."""
    valid = (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and not _INVALID_IN_NAMES.search(name)
        and not (name[1:2] == ":" and name[0].isascii() and name[0].isalpha())  # a drive
        and len(name.encode(errors="replace")) <= MAX_NAME_BYTES
    )
    if not valid:
        raise FormatError(
            f"{what} is {brief(name)}; must be a name of at most {MAX_NAME_BYTES} bytes that stays "
            "within its directory"
        )


def brief(value: Any) -> str:
    """Return the abbreviated ``repr`` of a value, for a message."""
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:60] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 64 else f"{text[:57]}..."
