"""Classification of driver errors, and the StorageError raised in their place.

The drivers of fsspec raise exceptions of their own libraries (botocore, aiohttp, google-auth),
which are not imported here. They are classified by HTTP status, then by type; class names are used
only for errors that have neither.
"""

from __future__ import annotations

import concurrent.futures
import enum
import errno
import http.client
import re
import ssl
from collections.abc import Iterable, Iterator

from covey.errors import (
    FileChangedError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.urls import Url, redact, shown


class ErrorKind(enum.Enum):
    """The reaction to an error."""

    MISSING = "the file does not exist"
    REFUSED = "access is denied"
    CHANGED = "the file changed after it was opened"
    RETRY = "the error may be transient"
    FATAL = "a retry is useless"


class TruncatedResponseError(ConnectionError):
    """A response does not have the requested number of bytes."""


_NOT_IMPLEMENTED = 501

# Of the statuses that are not listed, 5xx are transient and all others are ignored.
_STATUSES = {
    404: ErrorKind.MISSING,
    410: ErrorKind.MISSING,
    401: ErrorKind.REFUSED,
    403: ErrorKind.REFUSED,
    407: ErrorKind.REFUSED,
    412: ErrorKind.CHANGED,
    416: ErrorKind.CHANGED,  # the range is beyond the end of the file
    408: ErrorKind.RETRY,
    425: ErrorKind.RETRY,
    429: ErrorKind.RETRY,
    _NOT_IMPLEMENTED: ErrorKind.FATAL,
    505: ErrorKind.FATAL,
}

_TYPES: tuple[tuple[type[BaseException], ErrorKind], ...] = (
    (FileChangedError, ErrorKind.CHANGED),
    (FileNotFoundError, ErrorKind.MISSING),
    (PermissionError, ErrorKind.REFUSED),
    (StorageError, ErrorKind.FATAL),
    (FileExistsError, ErrorKind.FATAL),
    (IsADirectoryError, ErrorKind.FATAL),
    (NotADirectoryError, ErrorKind.FATAL),
    (ssl.SSLCertVerificationError, ErrorKind.FATAL),
    (ConnectionError, ErrorKind.RETRY),
    (TimeoutError, ErrorKind.RETRY),
    (concurrent.futures.TimeoutError, ErrorKind.RETRY),
    (EOFError, ErrorKind.RETRY),
    (http.client.IncompleteRead, ErrorKind.RETRY),
)

# Client libraries raise these before a response exists, and derive them from Exception.
_CLASS_NAMES = {
    ErrorKind.REFUSED: "Credential|Authentication|SSOToken|TokenRetrieval|ProfileNot|RefreshError",
    ErrorKind.RETRY: "ClientConnection|ClientPayload|HTTPClient|IncompleteRead|ResponseParser|SSH",
}

# None: some drivers raise an OSError without errno for any failure of the connection.
_TRANSIENT = {
    None,
    errno.EAGAIN,
    errno.EBUSY,
    errno.EIO,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
    getattr(errno, "EREMOTEIO", errno.EIO),
}

_CREDENTIALS = {
    "s3": "key and secret, anon for public data, AWS_ACCESS_KEY_ID, AWS_PROFILE",
    "gs": "token, GOOGLE_APPLICATION_CREDENTIALS",
    "http": "headers with Authorization",
    "az": "account_name and account_key, AZURE_STORAGE_CONNECTION_STRING",
}
_CREDENTIALS.update(s3a=_CREDENTIALS["s3"], gcs=_CREDENTIALS["gs"], https=_CREDENTIALS["http"])
_CREDENTIALS.update(abfs=_CREDENTIALS["az"])


def classify(error: BaseException) -> ErrorKind:
    """Return the kind of a driver error."""
    # The innermost cause is the most specific: fsspec's HTTP driver raises FileNotFoundError also
    # if the server is down.
    causes = [*_causes(error)][::-1]
    for cause in causes:
        status = _status(cause)
        if status in _STATUSES:
            return _STATUSES[status]
        if status is not None and status >= 500:
            return ErrorKind.RETRY
    for cause in causes:
        for base, kind in _TYPES:
            if isinstance(cause, base):
                return kind
        names = " ".join(base.__name__ for base in type(cause).__mro__)
        for kind, pattern in _CLASS_NAMES.items():
            if re.search(pattern, names):
                return kind
        if isinstance(cause, OSError):
            return ErrorKind.RETRY if cause.errno in _TRANSIENT else ErrorKind.FATAL
    return ErrorKind.FATAL


def to_storage_error(
    error: BaseException, url: str, action: str, attempts: int, secrets: Iterable[str] = ()
) -> StorageError:
    """Return the error to raise in place of a driver error.

    Its message contains that of the driver without secrets. Raise it outside of the ``except``
    clause: a traceback shows the context of an exception, and the driver error may contain secrets.

    Args:
        error: The driver error.
        url: The URL of the file, with credentials.
        action: The operation that failed, as a gerund: ``"reading"``.
        attempts: The number of attempts.
        secrets: Strings that the message must not contain.
    """
    kind, path = classify(error), shown(url)
    if isinstance(error, StorageError) and kind is not ErrorKind.CHANGED:
        return error
    if kind is ErrorKind.MISSING:
        return StorageNotFoundError("there is no such file or directory", path=path)
    if kind is ErrorKind.CHANGED:
        return FileChangedError(
            "the file changed after it was opened", path=path, remedy="open it again"
        )
    *_, first = _causes(error)
    reason = _describe(error if kind is ErrorKind.FATAL else first, secrets)
    if kind is ErrorKind.REFUSED:
        options = _CREDENTIALS.get(Url.parse(url).protocol, "the options of its driver")
        return StoragePermissionError(
            f"{action} is refused ({reason})",
            path=path,
            remedy=f"pass credentials in storage_options= or in the environment ({options}); some "
            "servers also refuse access to files that do not exist",
        )
    if kind is ErrorKind.RETRY:
        return StorageError(
            f"{action} failed {attempts} times; the last error is {reason}",
            path=path,
            remedy="check the connection and the server",
        )
    unsupported = any(_status(cause) == _NOT_IMPLEMENTED for cause in _causes(error))
    if unsupported or isinstance(error, NotImplementedError):
        return UnsupportedOperationError(
            f"{Url.parse(url).protocol}:// does not support {action}", path=path
        )
    return StorageError(f"{action} failed with {reason}", path=path)


class UnsupportedOperationError(StorageError, NotImplementedError):
    """A driver or server does not implement an operation."""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, from the attribute that its library uses."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = iter([response.get("ResponseMetadata", {}).get("HTTPStatusCode")])
    else:
        names = ("status", "status_code", "code")
        found = (getattr(owner, name, None) for owner in (error, response) for name in names)
    for value in found:
        if isinstance(value, (int, str)) and str(value).isdecimal() and 100 <= int(value) < 600:
            return int(value)
    return None


def _describe(error: BaseException, secrets: Iterable[str]) -> str:
    """Return the message of a driver error without secrets."""
    status = next((found for cause in _causes(error) if (found := _status(cause))), None)
    message = redact(f"{type(error).__name__}: {error}", secrets).strip(": ")
    message = " ".join(message.split())[:300]
    return message if status is None else f"HTTP status {status}, {message}"
