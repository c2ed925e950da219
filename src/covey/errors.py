"""Exceptions and warnings.

::

    CoveyError
    ├── ClosedError                a closed object was used
    ├── FormatError                data is not in the expected format
    │   ├── CorruptRecordError         a TFRecord frame or its compression is corrupt
    │   └── ExampleError               a record is not a tf.train.Example of the expected features
    ├── FeatureError               a schema, or a value to be written, is invalid
    │   ├── DuplicateKeyError          two examples have the same key
    │   └── ImageSizeError             images of a batch have different sizes
    ├── DatasetError               a dataset cannot be read or written as requested
    │   ├── DatasetExistsError         the dataset or split exists
    │   ├── UnknownClassError          a class id or class name does not exist
    │   └── CommittedError             the data is committed, but a later step failed
    ├── PlanError                  batches cannot be drawn as requested
    ├── MetricError                embeddings cannot be compared
    ├── SourceError                a source, or an item of it, cannot be read
    ├── TaskError                  a worker of an engine ended before its task did
    └── StorageError               a file or URL cannot be read or written
        ├── StorageNotFoundError       it does not exist
        ├── StoragePermissionError     access is denied
        └── FileChangedError           it changed after it was opened

Every error has the fields of :class:`CoveyError`; ``str()`` composes the message from them. Control
flow uses types and fields, never the message.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, ParamSpec, TypeVar

from covey._text import closest as closest
from covey._text import escape as escape
from covey._text import list_names as list_names
from covey._text import shorten as shorten
from covey._text import shown_value as shown_value

Params = ParamSpec("Params")
Result = TypeVar("Result")


def checks_keywords(
    also: Iterable[str] = (), hints: Mapping[str, str] | None = None
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Decorate a function: the error of an unknown keyword argument suggests a similar one.

    Args:
        also: Names that the function accepts as ``**options``.
        hints: What to do instead, by the names of arguments that functions of others have.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        names = [*inspect.signature(function).parameters, *also]

        @functools.wraps(function)
        def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            for name in kwargs:
                if name not in names:
                    similar = closest(name, names)
                    hint = "" if similar is None else f"; did you mean {similar!r}?"
                    hint = f"; {hints[name]}" if hints and name in hints else hint
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}"
                    )
            return function(*args, **kwargs)

        return checked

    return decorate


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
        task: Task of an engine that failed, and its node: ``"piece 3 of 7 on node birch"``.
        offset: Byte offset in the file.
        step: Step of the batch, over all epochs.
        row: Row in the batch of all ranks, from 0.
        feature: Name of the feature.
        option: Name of the argument.
        found: Invalid value of the argument or field.
        allowed: Description of the valid values: ``"an integer >= 1"``.
        choices: Valid values, if they are names. They are the default of `allowed`, and the message
            suggests the most similar to `found`.
        remedy: What the caller can do, as a clause. An argument is written as ``mode='append'`` or
            ``label=``.

    >>> str(PlanError(option="threads", found=-1, allowed="an integer >= 0"))
    'threads is -1; must be an integer >= 0'
    >>> str(PlanError(option="mode", found="spilt", choices=("split", "independent")))
    "mode is 'spilt'; must be one of 'split', 'independent'; did you mean 'split'?"
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
        task: str | None = None,
        offset: int | None = None,
        step: int | None = None,
        row: int | None = None,
        feature: str | None = None,
        option: str | None = None,
        found: Any = UNSET,
        allowed: str | None = None,
        choices: Iterable[str] = (),
        remedy: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.line = line
        self.record = record
        self.example = example
        self.task = task
        self.offset = offset
        self.step = step
        self.row = row
        self.feature = feature
        self.option = option
        self.found = found
        # A mapping or a table of classes is not copied.
        self._choices = choices
        self._suggestion: str | None = None
        if allowed is None:
            allowed = f"one of {list_names(choices)}" if choices and option is not None else ""
        self.allowed = allowed
        self.remedy = remedy

    @property
    def suggestion(self) -> str | None:
        """The valid name that is most similar to ``found``; None if none is similar.

        It is searched on first use: errors that are handled are not formatted.
        """
        choices, self._choices = self._choices, ()
        if choices:
            self._suggestion = closest(self.found, choices)
        return self._suggestion

    def message(self, option_name: Callable[[str], str] = str) -> str:
        """Return the message.

        Args:
            option_name: Maps the name of an argument to the name shown: the command line shows
                ``--memory-limit`` for ``memory_limit``.
        """
        where = []
        if self.path is not None:
            where.append(self.path if self.line is None else f"{self.path}:{self.line}")
        if self.task is not None:
            where.append(self.task)
        place = [("record", self.record), ("byte", self.offset)]
        found = [f"{name} {number}" for name, number in place if number is not None]
        where += [" at ".join(found)] if found else []
        place = [("example", self.example), ("step", self.step), ("row", self.row)]
        where += [f"{name} {number}" for name, number in place if number is not None]
        if self.feature is not None:
            where.append(f"feature {self.feature!r}")
        what = []
        if self.option is not None and self.found is not UNSET:
            what.append(f"{option_name(self.option)} is {shown_value(self.found)}")
        elif self.option is not None:
            where.append(option_name(self.option))
        if self.allowed:
            what.append(f"must be {self.allowed}")
        what += [each for each in (self.reason, self.remedy) if each]
        if self.suggestion is not None:
            what.append(f"did you mean {shown_value(self.suggestion)}?")
        # Names from files are part of messages, and messages are printed.
        return escape(": ".join([*where, "; ".join(what)]), keep="\n")

    def __str__(self) -> str:
        return self.message()

    def __reduce__(self) -> tuple[Any, ...]:
        _ = self.suggestion  # the choices are not pickled
        return _restore, (type(self), self.args, self.__dict__)


class ClosedError(CoveyError, ValueError):
    """A closed reader, writer, dataset or loader was used."""


class FormatError(CoveyError, ValueError):
    """Data is not in the expected format."""


class CorruptRecordError(FormatError):
    """A TFRecord frame, or the compression around it, is corrupt.

    ``offset`` points to the frame, in the decompressed data if the file is compressed.
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


class ImageSizeError(FeatureError):
    """Images of a batch have different sizes, which is not an error of one record."""


class SourceError(CoveyError, ValueError):
    """A source, or an item of it, cannot be read."""


class TaskError(CoveyError, RuntimeError):
    """A worker of an engine was killed or lost, or ran out of memory, more often than allowed."""


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


def check(
    option: str,
    value: Any,
    ok: object,
    allowed: str | Sequence[str],
    *,
    error: type[CoveyError] = DatasetError,
    reason: str = "",
    **fields: Any,
) -> None:
    """Raise an error unless an argument is valid.

    Args:
        option: Name of the argument.
        value: Its value.
        ok: Whether it is valid.
        allowed: Description of the valid values, or the valid names.
        error: Type of the error.
        reason, fields: As for :class:`CoveyError`.

    >>> check("threads", 2, 2 >= 0, "an integer >= 0")
    >>> check("mode", "spilt", False, ("split", "independent"), error=PlanError)
    Traceback (most recent call last):
        ...
    covey.errors.PlanError: mode is 'spilt'; must be one of 'split', 'independent'; did you mean \
'split'?
    """
    if not ok:
        names = {"allowed": allowed} if isinstance(allowed, str) else {"choices": allowed}
        raise error(reason, option=option, found=value, **names, **fields)


def check_int(
    name: str,
    value: Any,
    minimum: int,
    maximum: int | None = None,
    *,
    error: type[CoveyError] | None = None,
) -> int:
    """Return an argument as an integer.

    Args:
        name: Name of the argument.
        value: Its value; any type with ``__index__`` except bool.
        minimum: Smallest valid value.
        maximum: Largest valid value, if there is one.
        error: Type of the error (default: PlanError).

    Raises:
        CoveyError: If it is not an integer, or not within the bounds.
    """
    try:
        number = index(value)
    except TypeError:
        number = minimum - 1
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
    if is_bool or number < minimum or (maximum is not None and number > maximum):
        bounds = f">= {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise (error or PlanError)(option=name, found=value, allowed=f"an integer {bounds}")
    return number


def cpu_count() -> int:
    """Return the number of CPUs that this process may use, the default number of threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def import_extra(
    module: str, purpose: str, package: str = "", *, error: type[CoveyError] = DatasetError
) -> Any:
    """Import a module that is not a requirement of covey.

    Args:
        module: Name of the module.
        purpose: What requires it: ``"to_pandas()"``.
        package: What to install (default: the module).
        error: Type of the error if it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as caught:  # OSError: a library of the system is missing
        remedy = f"run: pip install {package or module}"
        raise error(f"{purpose} requires {module}: {caught}", remedy=remedy) from None


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
