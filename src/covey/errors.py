"""Exceptions and warnings.

::

    CoveyError
    ├── ClosedError                a closed object was used
    ├── FormatError                data is not in the expected format
    │   ├── CorruptRecordError         a TFRecord frame or its compression is corrupt
    │   └── ExampleError               a record is not a tf.train.Example of the expected features
    ├── FeatureError               a schema, or a value to be written, is invalid
    │   └── DuplicateKeyError          two examples have the same key
    ├── DatasetError               a dataset cannot be read or written as requested
    │   ├── DatasetExistsError         the dataset or split exists
    │   ├── UnknownClassError          a class id or class name does not exist
    │   └── CommittedError             the data is committed, but a later step failed
    ├── PlanError                  batches cannot be drawn as requested
    ├── MetricError                embeddings cannot be compared
    ├── SourceError                a source, or an item of it, cannot be read
    └── StorageError               a file or URL cannot be read or written
        ├── StorageNotFoundError       it does not exist
        ├── StoragePermissionError     access is denied
        └── FileChangedError           it changed after it was opened

Every error has the fields of :class:`CoveyError`; ``str()`` composes the message from them. Control
flow uses types and fields, never the message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

# Longer values are abbreviated in messages.
_MAX_SHOWN = 120


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


class _Unset:
    """Type of :data:`UNSET`."""

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"


UNSET: Any = _Unset()
"""Default of ``found``: None is a value that can be found."""


class CoveyError(Exception):
    """Base class of the errors that covey raises.

    Args:
        reason: The problem, as a clause without a location: ``"the checksum does not match"``.
        path: File, directory or URL.
        line: Line in the file, from 1.
        record: Record in the file, from 0.
        example: Example in the source of a write, from 0.
        offset: Byte offset in the file.
        step: Step of the batch, over all epochs.
        row: Row in the batch of all ranks, from 0.
        feature: Name of the feature.
        option: Name of the argument.
        found: Invalid value of the argument or field.
        allowed: Description of the valid values: ``"an integer >= 1"``.
        remedy: What the caller can do, as a clause.

    >>> str(PlanError(option="threads", found=-1, allowed="an integer >= 0"))
    'threads is -1; must be an integer >= 0'
    >>> str(FormatError("the checksum does not match", path="a.tfrecord", record=3, offset=96))
    'a.tfrecord: record 3 at byte 96: the checksum does not match'
    """

    def __init__(
        self,
        reason: str = "",
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        record: int | None = None,
        example: int | None = None,
        offset: int | None = None,
        step: int | None = None,
        row: int | None = None,
        feature: str | None = None,
        option: str | None = None,
        found: Any = UNSET,
        allowed: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.line = line
        self.record = record
        self.example = example
        self.offset = offset
        self.step = step
        self.row = row
        self.feature = feature
        self.option = option
        self.found = found
        self.allowed = allowed
        self.remedy = remedy

    def message(self, option_name: Callable[[str], str] = str) -> str:
        """Return the message.

        Args:
            option_name: Maps the name of an argument to the name shown: the command line shows
                ``--memory-limit`` for ``memory_limit``.
        """
        where = []
        if self.path is not None:
            where.append(self.path if self.line is None else f"{self.path}:{self.line}")
        if self.record is not None:
            at = "" if self.offset is None else f" at byte {self.offset}"
            where.append(f"record {self.record}{at}")
        elif self.offset is not None:
            where.append(f"byte {self.offset}")
        if self.example is not None:
            where.append(f"example {self.example}")
        if self.step is not None:
            where.append(f"step {self.step}")
        if self.row is not None:
            where.append(f"row {self.row}")
        if self.feature is not None:
            where.append(f"feature {self.feature!r}")
        what = []
        if self.option is not None and self.found is not UNSET:
            what.append(f"{option_name(self.option)} is {_shown(self.found)}")
        elif self.option is not None:
            where.append(option_name(self.option))
        if self.allowed:
            what.append(f"must be {self.allowed}")
        what += [each for each in (self.reason, self.remedy) if each]
        # Names from files are part of messages, and messages are printed.
        return escape(": ".join([*where, "; ".join(what)]), keep="\n")

    def __str__(self) -> str:
        return self.message()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


class ClosedError(CoveyError, ValueError):
    """A closed reader, writer, dataset or loader was used."""


class FormatError(CoveyError, ValueError):
    """Data is not in the expected format."""


class CorruptRecordError(FormatError):
    """A TFRecord frame, or the compression around it, is corrupt.

    ``offset`` is that of the frame, in the decompressed data if the file is compressed.
    """


class ExampleError(FormatError):
    """A record is not a tf.train.Example, or does not match the features it is decoded with."""


class FeatureError(CoveyError, ValueError):
    """A schema, or a value to be written, is invalid."""


class DuplicateKeyError(FeatureError):
    """Two examples have the same key.

    Attributes:
        key: The key.
        examples: Positions of both examples in the source, from 0.
    """

    def __init__(
        self, reason: str = "", *, key: object, examples: tuple[int, int], **fields: Any
    ) -> None:
        super().__init__(reason, **fields)
        self.key = key
        self.examples = examples


class SourceError(CoveyError, ValueError):
    """A source, or an item of it, cannot be read."""


class DatasetError(CoveyError, ValueError):
    """A dataset cannot be read or written as requested."""


class DatasetExistsError(DatasetError, FileExistsError):
    """The dataset or split to be written exists."""


class UnknownClassError(DatasetError, KeyError):
    """A class id or class name does not exist."""


class CommittedError(DatasetError):
    """A write is committed, but a later step failed; the next write or repair completes it.

    Writing the same examples again would store them twice.
    """


class PlanError(CoveyError, ValueError):
    """Batches cannot be drawn as requested."""


class MetricError(CoveyError, ValueError):
    """Embeddings cannot be compared, or their labels are not valid."""


class StorageError(CoveyError, OSError):
    """A local or remote file cannot be read or written."""


class StorageNotFoundError(StorageError, FileNotFoundError):
    """A file does not exist."""


class StoragePermissionError(StorageError, PermissionError):
    """Access to a file is denied with the given credentials, or without any."""


class FileChangedError(StorageError):
    """A file was truncated, overwritten or replaced after it was opened."""


class SkippedRecordsWarning(UserWarning):
    """Corrupt records were skipped, as ``on_error="skip"`` requests."""

    def __str__(self) -> str:
        return escape(super().__str__(), keep="\n")


class SmallClassesWarning(UserWarning):
    """Some classes have fewer examples than a batch takes of each class."""

    def __str__(self) -> str:
        return escape(super().__str__(), keep="\n")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _restore(
    kind: type[CoveyError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> CoveyError:
    """Rebuild an unpickled error without its constructor, whose arguments differ by class."""
    # DatasetExistsError finds ValueError.__new__ first, which cannot create an OSError.
    new = OSError.__new__ if issubclass(kind, OSError) else kind.__new__
    error = new(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error
