"""Parse, join and redact paths and URLs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from covey.errors import DatasetError, StorageError

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path or URL as an argument; also a scalar array or tensor of a string."""

# At least two letters: "C://data" is a path on a drive.
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_LOCAL = ("file", "local")
_HTTP = ("http", "https")

# The begin of another URL in a chain of fsspec, such as "zip://x::s3://bucket/all.zip".
_CHAINED = re.compile(r"::[A-Za-z][A-Za-z0-9+.\-]+:/")

# A URL within a message, also one of which pathlib has removed a slash.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:/+")
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:/[^\s'\"<>]*")

# The begin of the query of a URL other than HTTP; any other "?" is part of a pattern.
_QUERY = re.compile(r"[?#][\w.~%+\-\[\]]+=")
# A path of HTTP may end with parameters, such as ";token=".
_HTTP_QUERY = re.compile(r"[?#]|;[\w.~%+\-\[\]]+=")

# A URL of which pathlib has removed a slash.
_CUT_URL = re.compile(r"(^|::)[A-Za-z][A-Za-z0-9+.\-]+:/[^/]")

_HOST = re.compile(r"[^:]*(:\d+)?|\[[^\]]*\](:\d+)?")

# Storage options that identify the server, as opposed to credentials.
LOCATION_OPTIONS = frozenset(
    ("endpoint_url", "host", "port", "account_name", "project", "repo", "org", "sha", "fo")
)


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed URL. The files of one storage differ only in their paths."""

    protocol: str
    userinfo: str
    """The user name and password, with their ``@``."""
    path: str
    """The host or bucket, and the path in it."""
    query: str
    """The parameters of an HTTP path, the query and the fragment, with their ``;``, ``?`` or ``#``.
    They may contain credentials."""

    @classmethod
    def parse(cls, text: str) -> Url:
        """Parse a URL.

        Raises:
            StorageError: If it is not a URL, or its host is ambiguous.
        """
        match = _PROTOCOL.match(text)
        if _CHAINED.search(text) and not _HTTP_QUERY.search(text.partition("::")[0]):
            raise StorageError(
                "this is a chain of URLs; must be one URL",
                path=shown(text),
                remedy="extract archives, and omit caches such as simplecache::",
            )
        if match is None:
            raise StorageError("this is not a URL, such as s3://bucket/directory", path=shown(text))
        protocol = match[1].lower()
        found = _split(protocol, text[match.end() :])
        # fsspec would split a URL at "::", which an address in IPv6 may have.
        if found is None or "::" in found[0] + re.sub(r"^\[[^\]/]*\]", "", found[1]):
            raise StorageError(
                "the host of this URL is ambiguous",
                path=shown(text),
                remedy="percent-encode '@', ':', '/', '?' and '#' in the user name, the password, "
                "the path and the query, or pass the user name and password in storage_options=",
            )
        userinfo, path, query = found
        path = path.rstrip("/")
        parameters = re.split(r"[?#]", query, maxsplit=1)[0]
        if parameters and "/" in parameters + ("" if "/" in path else "/"):
            raise StorageError(
                "a parameter of this URL does not follow the last name of its path",
                path=shown(text),
                remedy="percent-encode ';' in the path and '/' in the parameter, or pass it in the "
                "query, after '?'",
            )
        if protocol == "memory":  # "memory:///x" and "memory://x" are the same there
            path = path.lstrip("/")
        return cls(protocol, userinfo, path, query)

    def __str__(self) -> str:
        return f"{self.protocol}://{self.userinfo}{self.path}{self.query}"

    @property
    def public(self) -> str:
        """The URL without user name, password and query, as a storage returns it."""
        return f"{self.protocol}://{self.path}"

    @property
    def is_http(self) -> bool:
        """Whether the protocol is HTTP: names are percent-encoded, and a query may follow."""
        return self.protocol in _HTTP

    @property
    def name(self) -> str:
        """The last part of the path, decoded."""
        from urllib.parse import unquote

        name = self.path.rpartition("/")[2]
        return unquote(name) if self.is_http else name

    @property
    def parent(self) -> Url:
        """The parent directory; the topmost directory is its own parent."""
        return replace(self, path=self.path.rpartition("/")[0])

    def join(self, name: str) -> Url:
        """Return the URL of a file or directory in this directory."""
        from urllib.parse import quote

        name = quote(name) if self.is_http else name
        return replace(self, path=f"{self.path}/{name}" if self.path else name)


def local_path(text: str) -> str | None:
    """Return the local path of a path or ``file://`` URL; None if it is remote."""
    match = _PROTOCOL.match(text)
    if match is None:
        return None if _CHAINED.search(text) else text
    return text[match.end() :] if match[1].lower() in _LOCAL else None


def is_remote(path: str) -> bool:
    """Return whether a path is a URL that requires fsspec.

    >>> is_remote("s3://bucket/birds"), is_remote("file:///data/birds"), is_remote("data/birds")
    (True, False, False)
    """
    return local_path(path) is None


def is_path(path: object) -> bool:
    """Return whether a value is one path: a string, bytes, a Path, or a scalar array of these."""
    return isinstance(_unwrapped(path), (str, bytes, os.PathLike))


def parse_path(path: object, option: str = "path") -> str:
    """Return a path or URL as a string.

    Args:
        path: A string, bytes, ``os.PathLike``, or a scalar array or tensor of a string.
        option: Name of the argument, for the error.

    Raises:
        DatasetError: If it is not a path.
        StorageError: If it is a URL of which pathlib has removed a slash.

    >>> parse_path(b"data/birds")
    'data/birds'
    """
    value = _unwrapped(path)
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise DatasetError(option=option, found=path, allowed="a str, bytes or os.PathLike")
    text = str(os.fsdecode(value))
    if isinstance(value, os.PathLike) and _CUT_URL.search(text):
        raise StorageError(
            "a Path cannot be a URL, because it loses a slash",
            path=shown(text),
            remedy="pass a str",
        )
    return text


def parse_paths(paths: object, option: str = "path") -> str | list[str]:
    """Return a path as a string, or several paths, of any iterable, as a list of strings.

    Raises:
        DatasetError, StorageError: As :func:`parse_path`.
    """
    value = _unwrapped(paths)
    if isinstance(value, (str, bytes, os.PathLike)) or not isinstance(value, Iterable):
        return parse_path(paths, option)
    return [parse_path(each, option) for each in value]


def _unwrapped(value: Any) -> Any:
    """Return the value of a tensor, as an array, or of a scalar array."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return value
    if callable(getattr(value, "numpy", None)):
        value = value.numpy()
    return value.item() if getattr(value, "shape", None) == () else value


def check_local(path: object, option: str = "path") -> str:
    """Return a path that must be local, as a string; `path` as for :func:`parse_path`.

    Raises:
        StorageError: If it is a URL.
    """
    text = parse_path(path, option)
    if is_remote(text):
        raise StorageError(
            "this is a URL; must be the path of a local file",
            path=shown(text),
            remedy="covey.open reads URLs",
        )
    return text


def shown(text: str) -> str:
    """Return a path or URL for messages: only scheme, host and path of a URL.

    >>> shown("https://me:secret@host/x.tfrecord?signature=secret")
    'https://host/x.tfrecord'
    """
    match = _SCHEME.search(text)
    if match is None:
        return text
    before, rest = text[: match.end()], text[match.end() :]
    if _CHAINED.search(rest):
        return f"{before}***"
    found = _split(match[0].partition(":")[0].lower(), rest)
    if found is not None:
        return f"{before}{found[1]}"
    # A password may contain an unquoted "/", "@" or "?". What follows the last "@" is not part of
    # it, but may be part of a query.
    secret, _, after = rest.rpartition("@")
    is_hidden = re.search("[?#]", secret)
    return f"{before}***" if is_hidden else before + _HTTP_QUERY.split(after, maxsplit=1)[0]


def redact(text: str) -> str:
    """Return a text whose URLs are converted by :func:`shown`."""
    return _IN_TEXT.sub(lambda found: shown(found[0]), text)


def _split(protocol: str, rest: str) -> tuple[str, str, str] | None:
    """Split what follows ``://`` into user info, path and query; None if that is ambiguous."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(host) :] and not _is_certain(host, rest[len(host)]):
        return None
    userinfo = host[: host.rfind("@") + 1]
    rest = rest[len(userinfo) :]
    found = (_HTTP_QUERY if protocol in _HTTP else _QUERY).search(rest)
    end = len(rest) if found is None else found.start()
    return userinfo, rest[:end], rest[end:]


def _is_certain(host: str, after: str) -> bool:
    """Return whether an ``@`` later in a URL cannot be the end of its password.

    Args:
        host: The host, with the user name and the password.
        after: The character that follows it.
    """
    userinfo, at, host = host.rpartition("@")
    if not at:
        return _HOST.fullmatch(host) is not None
    return after == "/" and "@" not in userinfo and bool(host) and bool(_HOST.fullmatch(host))
