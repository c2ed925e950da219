"""What an error of some driver means, and how to say it.

Drivers (s3fs, gcsfs, aiohttp, ...) have errors of their own, which are told by status, type and
name, for none of them can be imported here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import enum
import errno
import http.client
from collections.abc import Iterable, Iterator

from covey.errors import (
    FileChangedError,
    StorageError,
    StorageNotFoundError,
    StoragePermissionError,
)
from covey.urls import Url, redact, shown


class ErrorKind(enum.Enum):
    """What is to be done about an error."""

    MISSING = "there is no such file"
    REFUSED = "the credentials do not do"
    CHANGED = "the file is another now"
    RETRY = "it may be gone next time"
    FATAL = "nothing helps"


_NOT_IMPLEMENTED = 501


class TruncatedResponseError(ConnectionError):
    """An answer has fewer or more bytes than were asked for."""


_STATUSES = {
    404: ErrorKind.MISSING,
    410: ErrorKind.MISSING,
    401: ErrorKind.REFUSED,
    403: ErrorKind.REFUSED,
    407: ErrorKind.REFUSED,
    412: ErrorKind.CHANGED,
    416: ErrorKind.CHANGED,  # what was asked for is past its end
    408: ErrorKind.RETRY,
    425: ErrorKind.RETRY,
    429: ErrorKind.RETRY,
    _NOT_IMPLEMENTED: ErrorKind.FATAL,
    505: ErrorKind.FATAL,
}

_NAMES = {
    ErrorKind.REFUSED: {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "TokenRetrievalError",
        "SSOTokenLoadError",
        "UnauthorizedSSOTokenError",
        "ProfileNotFound",
        "DefaultCredentialsError",
        "RefreshError",
        "ClientAuthenticationError",
        "AuthenticationException",
    },
    ErrorKind.FATAL: {"ClientConnectorCertificateError", "SSLCertVerificationError"},
    ErrorKind.RETRY: {
        "ClientConnectionError",
        "ClientPayloadError",
        "HTTPClientError",
        "IncompleteReadError",
        "ResponseParserError",
        "FSTimeoutError",
        "ProtocolError",
        "SSHException",
    },
}

_TYPES: tuple[tuple[type[BaseException], ErrorKind], ...] = (
    (FileChangedError, ErrorKind.CHANGED),
    (FileNotFoundError, ErrorKind.MISSING),
    (PermissionError, ErrorKind.REFUSED),
    (StorageError, ErrorKind.FATAL),
    (FileExistsError, ErrorKind.FATAL),
    (IsADirectoryError, ErrorKind.FATAL),
    (NotADirectoryError, ErrorKind.FATAL),
    (ConnectionError, ErrorKind.RETRY),
    (TimeoutError, ErrorKind.RETRY),
    (asyncio.TimeoutError, ErrorKind.RETRY),
    (concurrent.futures.TimeoutError, ErrorKind.RETRY),
    (EOFError, ErrorKind.RETRY),
    (http.client.IncompleteRead, ErrorKind.RETRY),
)

# None: some drivers raise a bare OSError for whatever has gone wrong on the way.
_PASSING = {
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
    "s3": "key=, secret=, or anon=True for public data; AWS_ACCESS_KEY_ID, AWS_PROFILE",
    "gs": "token=; GOOGLE_APPLICATION_CREDENTIALS",
    "http": 'headers={"Authorization": ...}',
    "az": "account_name=, account_key=; AZURE_STORAGE_CONNECTION_STRING",
}
_CREDENTIALS.update(s3a=_CREDENTIALS["s3"], gcs=_CREDENTIALS["gs"], https=_CREDENTIALS["http"])
_CREDENTIALS.update(abfs=_CREDENTIALS["az"])


def classify(error: BaseException) -> ErrorKind:
    """What is to be done about an error of a driver."""
    # The first cause tells most: HTTP calls a file missing, too, whose server is down.
    causes = [*_causes(error)][::-1]
    for each in causes:
        status = _status(each)
        if status is not None and status in _STATUSES:
            return _STATUSES[status]
        if status is not None and 500 <= status < 600:
            return ErrorKind.RETRY
    for each in causes:
        names = {kind.__name__ for kind in type(each).__mro__}
        for verdict, known in _NAMES.items():
            if names & known:
                return verdict
        for kind, verdict in _TYPES:
            if isinstance(each, kind):
                return verdict
        if isinstance(each, OSError):
            return ErrorKind.RETRY if each.errno in _PASSING else ErrorKind.FATAL
    return ErrorKind.FATAL


def explain(
    error: BaseException, url: str, doing: str, tries: int, secrets: Iterable[str] = ()
) -> StorageError:
    """The error to raise in place of a driver's.

    It has the text of the driver without secrets, and does not lead to the driver's error: raise it
    where that is not handled, so that no traceback shows it.

    Args:
        error: The driver's.
        url: Of the file, with its credentials.
        doing: What failed.
        tries: How often it was tried.
        secrets: Strings that are not shown.
    """
    verdict, name = classify(error), shown(url)
    # What HTTP calls a missing file may be one that could not be asked for.
    *_, first = _causes(error)
    reason = _reason(error if verdict is ErrorKind.FATAL else first, secrets)
    if isinstance(error, StorageError) and verdict is not ErrorKind.CHANGED:
        return error  # it has been explained where it came from
    if verdict is ErrorKind.MISSING:
        return StorageNotFoundError("there is no such file or directory", path=name)
    if verdict is ErrorKind.CHANGED:
        return FileChangedError(
            "it has changed since it was opened, so its bytes would not fit together; "
            "open it again",
            path=name,
        )
    if verdict is ErrorKind.REFUSED:
        known = _CREDENTIALS.get(Url.parse(url).protocol, "those of its driver")
        return StoragePermissionError(
            f"{doing} is refused ({reason}); give credentials with storage_options= or in "
            f"the environment ({known}). Some servers refuse in the same way what is not "
            "there",
            path=name,
        )
    if verdict is ErrorKind.RETRY:
        return StorageError(
            f"{doing} failed {tries} times, at last with {reason}; check the connection "
            "and the server, and try again",
            path=name,
        )
    unsupported = any(_status(each) == _NOT_IMPLEMENTED for each in _causes(error))
    if unsupported or isinstance(error, NotImplementedError):
        protocol = Url.parse(url).protocol
        explained = StorageError(f"{doing} is nothing that {protocol}:// can do", path=name)
        explained.__cause__ = NotImplementedError()  # callers look for it
        return explained
    return StorageError(f"{doing} failed with {reason}", path=name)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that led to it."""
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        each = each.__cause__


def _status(error: BaseException) -> int | None:
    """The HTTP status that an error carries, wherever its library puts it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        found = [response.get("ResponseMetadata", {}).get("HTTPStatusCode")]
    else:
        found = [_first(each, "status", "status_code", "code") for each in (error, response)]
    for value in found:
        if isinstance(value, (int, str)) and str(value).isdecimal() and 100 <= int(value) < 600:
            return int(value)
    return None


def _first(holder: object, *names: str) -> object:
    """The first attribute that there is."""
    return next((getattr(holder, name) for name in names if name in dir(holder)), None)


def _reason(error: BaseException, secrets: Iterable[str]) -> str:
    """A driver's words, with nothing in them that should not be in a log."""
    status = next((found for each in _causes(error) if (found := _status(each))), None)
    words = redact(f"{type(error).__name__}: {error}", secrets).strip(": ")
    words = " ".join(words.split())[:300]
    return words if status is None else f"HTTP status {status}, {words}"
