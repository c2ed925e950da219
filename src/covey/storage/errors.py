"""Retries of requests, and the StorageErrors raised in place of driver errors.

Drivers raise exceptions of their own libraries (botocore, aiohttp, google-auth), which are not
imported here. They are classified by HTTP status, then by type; class names are used only for
errors that have neither. Messages show the URL without credentials, the type of the exception and
its status, never its text, which may contain credentials.
"""

from __future__ import annotations

import http.client
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from covey.errors import (
    FileChangedError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.urls import Url, shown

Result = TypeVar("Result")

MAX_ATTEMPTS = 5
BACKOFF_BASE_S = 0.5
_MAX_BACKOFF_S = 20.0
_MAX_CAUSES = 20

# Forked processes share the state of any other generator, and would retry at the same moment.
_RANDOM = random.SystemRandom()


class TruncatedResponseError(ConnectionError):
    """A response does not have the requested bytes."""


class UnsupportedOperationError(StorageError, NotImplementedError):
    """A driver or server does not implement an operation."""


# The error to raise; None for errors that may be transient. Other 5xx are transient as well.
_STATUSES: dict[int, type[StorageError] | None] = {
    **dict.fromkeys((401, 403, 407), StoragePermissionError),
    **dict.fromkeys((404, 410), StorageNotFoundError),
    **dict.fromkeys((412, 416), FileChangedError),  # 416: the range is beyond the end of the file
    **dict.fromkeys((408, 425, 429), None),
    501: UnsupportedOperationError,
    505: StorageError,
}
_TYPES: dict[type[BaseException], type[StorageError] | None] = {
    FileChangedError: FileChangedError,
    FileNotFoundError: StorageNotFoundError,
    PermissionError: StoragePermissionError,
    NotImplementedError: UnsupportedOperationError,
    **dict.fromkeys((StorageError, FileExistsError, IsADirectoryError), StorageError),
    **dict.fromkeys((NotADirectoryError, ssl.SSLCertVerificationError), StorageError),
    **dict.fromkeys((ConnectionError, TimeoutError, EOFError, http.client.IncompleteRead), None),
}
# Client libraries raise these before a response exists, and derive them from Exception.
_REFUSALS = re.compile("Credential|Authentication|SSOToken|TokenRetrieval|ProfileNot|RefreshError")
_LOST_CONNECTIONS = re.compile("ClientConnection|ClientPayload|HTTPClient|ResponseParser|SSH")
_CREDENTIALS = (
    "pass credentials in storage_options= or in the environment (headers with Authorization; "
    "AWS_ACCESS_KEY_ID, AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, "
    "AZURE_STORAGE_CONNECTION_STRING); some servers also refuse access to files that do not exist"
)


def retry(call: Callable[[], Result], url: str, action: str) -> Result:
    """Return the result of a call of a driver; repeat it after transient errors.

    Args:
        call: The call.
        url: The URL of the file, for the error.
        action: The operation, for the error, as a gerund: ``"reading"``.

    Raises:
        StorageError: If an error is not transient, or the attempts are exhausted.
    """
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return call()
        except Exception as caught:
            error = caught
        if classify(error) is not None or attempt == MAX_ATTEMPTS:
            break
        longest = min(BACKOFF_BASE_S * 2**attempt, _MAX_BACKOFF_S)
        time.sleep(_RANDOM.uniform(longest / 4, longest / 2))
    # Not in the except clause: a traceback would show the driver error.
    raise to_storage_error(error, url, action)


def classify(error: BaseException) -> type[StorageError] | None:
    """Return the type of the error to raise for a driver error; None if it may be transient."""
    # The innermost cause is the most specific: fsspec's HTTP driver raises FileNotFoundError also
    # if the server is down.
    causes = [*_causes(error)][::-1]
    for status in map(_status, causes):
        if status in _STATUSES:
            return _STATUSES[status]
        if status is not None and status >= 500:
            return None
    for cause in causes:
        for base, found in _TYPES.items():
            if isinstance(cause, base):
                return found
        names = " ".join(base.__name__ for base in type(cause).__mro__)
        if _REFUSALS.search(names):
            return StoragePermissionError
        if _LOST_CONNECTIONS.search(names) or isinstance(cause, OSError):
            return None
    return StorageError


def to_storage_error(error: BaseException, url: str, action: str) -> StorageError:
    """Return the error to raise in place of a driver error.

    Raise it outside of the ``except`` clause: a traceback shows the context of an exception.

    Args:
        error: The driver error.
        url: The URL of the file.
        action: The operation that failed, as a gerund: ``"reading"``.
    """
    kind, path, protocol = classify(error), shown(url), Url.parse(url).protocol
    if kind is FileChangedError:
        reason = "the file changed after it was opened"
        return kind(reason, path=path, remedy="open it again")
    if isinstance(error, StorageError):
        error.path = error.path or path
        return error
    if kind is StorageNotFoundError:
        return kind("there is no such file or directory", path=path)
    if kind is UnsupportedOperationError:
        return kind(f"{protocol}:// does not support {action}", path=path)
    causes = [*_causes(error)]
    found = type(causes[-1]).__name__
    status = next(filter(None, map(_status, causes)), None)
    if status is not None:
        found = f"HTTP status {status}, {found}"
    if kind is None:
        reason = f"{action} failed {MAX_ATTEMPTS} times; the last error is {found}"
        return StorageError(reason, path=path, remedy="check the connection and the server")
    if kind is StoragePermissionError:
        return kind(f"{action} is refused ({found})", path=path, remedy=_CREDENTIALS)
    return StorageError(f"{action} failed with {found}", path=path)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is not None:
            yield cause
            cause = cause.__cause__


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error, from the attribute that its library uses."""
    response = getattr(error, "response", None)
    names = ("status", "status_code", "code")
    found: Iterator[object] = (
        getattr(owner, name, None) for owner in (error, response) for name in names
    )
    if isinstance(response, dict):
        found = iter([response.get("ResponseMetadata", {}).get("HTTPStatusCode")])
    for value in found:  # lazily: aiohttp warns about code
        if isinstance(value, (int, str)) and str(value).isdecimal() and 100 <= int(value) < 600:
            return int(value)
    return None
