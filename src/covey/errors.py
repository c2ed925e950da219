"""Text for terminals: strings that come from files are escaped before they are printed.

Everything that covey raises on purpose.

::

    CoveyError
    ├── ClosedError            something closed was used
    ├── FormatError            bytes that are not what they should be
    │   ├── CorruptRecordError     a TFRecord frame, or the compression around it, is damaged
    │   └── ExampleError           a record is no tf.train.Example, or does not fit its features
    ├── FeatureError           a schema, or a value that is to be written, is wrong
    │   └── DuplicateKeyError      two examples have the same key
    ├── DatasetError           a dataset cannot be read or written as asked
    │   ├── DatasetExistsError     there is one already
    │   └── CommittedError         it is written, but not all of it is in its place yet
    ├── PlanError              batches cannot be drawn as asked
    ├── SourceError            a source cannot be read, or an item of it
    └── StorageError           a file, here or behind a URL, cannot be read or written
        ├── FileMissingError       there is no such file
        ├── AccessRefusedError     it may not be read or written with these credentials
        └── FileChangedError       it has changed after it was opened, or while it was read
"""

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


class CoveyError(Exception):
    """The root of all errors that covey raises on purpose."""

    def __str__(self) -> str:
        # Messages have names from files in them, and are printed.
        return escape(super().__str__(), keep="\n")


class ClosedError(CoveyError, ValueError):
    """A reader or writer was used after it was closed."""


class FormatError(CoveyError, ValueError):
    """Bytes are not what they should be."""


class CorruptRecordError(FormatError):
    """A TFRecord frame, or the compression around it, is damaged.

    Attributes:
        name: The file.
        record: The number of the record in it, from 0.
        offset: The byte at which its frame begins (of the decompressed data, if compressed).
        reason: What is wrong with it, without where.
    """

    def __init__(
        self, message: str, *, name: str, record: int, offset: int, reason: str = ""
    ) -> None:
        super().__init__(message)
        self.name = name
        self.record = record
        self.offset = offset
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), str(self), self.__dict__)


class ExampleError(FormatError):
    """A record is no tf.train.Example, or does not fit the features it is read with.

    Attributes:
        name: The file, or ``"<memory>"``.
        record: The number of the record in it, from 0.
        feature: The feature, if one is to blame.
    """

    def __init__(self, message: str, *, name: str, record: int, feature: str | None) -> None:
        super().__init__(message)
        self.name = name
        self.record = record
        self.feature = feature

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), str(self), self.__dict__)


class FeatureError(CoveyError, ValueError):
    """A schema, or a value that is to be written, is wrong."""


class SourceError(CoveyError, ValueError):
    """A source cannot be read, or an item of it.

    Attributes:
        name: The file or folder.
        line: The line in it, from 1, if lines are what it has.
    """

    def __init__(self, message: str, *, name: str, line: int | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.line = line

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), str(self), self.__dict__)


class DuplicateKeyError(FeatureError):
    """Two examples have the same key.

    Attributes:
        key: The key.
        examples: The numbers of both examples in their source, from 0.
    """

    def __init__(self, message: str, *, key: object, examples: tuple[int, int]) -> None:
        super().__init__(message)
        self.key = key
        self.examples = examples

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), str(self), self.__dict__)


class DatasetError(CoveyError, ValueError):
    """A dataset cannot be read or written as asked."""


class DatasetExistsError(DatasetError, FileExistsError):
    """There is already a dataset, or a split of it, where one is to be written."""


class CommittedError(DatasetError):
    """A split is written, but its files are not all in their places: the next write sees to it.

    Whoever writes the same examples again has them twice.
    """


class PlanError(CoveyError, ValueError):
    """Batches cannot be drawn as asked."""


class StorageError(CoveyError, OSError):
    """A file, here or behind a URL, cannot be read or written."""


class StorageNotFoundError(StorageError, FileNotFoundError):
    """There is no such file."""


class StoragePermissionError(StorageError, PermissionError):
    """A file may not be read or written with these credentials, or without any."""


class FileChangedError(StorageError):
    """A file was truncated, overwritten or replaced after it was opened, or while it was read.

    Attributes:
        path: The file, if it is known.
    """

    def __init__(self, message: str = "", *, path: str | None = None) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), str(self), self.__dict__)


class SkippedRecordsWarning(UserWarning):
    """Damaged records were left out, as ``on_error="skip"`` asked."""

    def __str__(self) -> str:
        return escape(super().__str__(), keep="\n")


class SmallClassesWarning(UserWarning):
    """Some classes have fewer examples than a batch is to have of each."""

    def __str__(self) -> str:
        return escape(super().__str__(), keep="\n")


def _restore(kind: type[CoveyError], message: str, attributes: dict[str, object]) -> CoveyError:
    """Rebuild an error in another process; its keyword-only arguments need the help."""
    error = kind.__new__(kind)
    error.args = (message,)
    error.__dict__.update(attributes)
    return error
