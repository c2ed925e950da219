"""Paths and URLs as texts: which are local, and how they are taken apart and joined."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from covey.errors import StorageError

# At least two letters: "C://data" is on a drive.
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+)://")
_LOCAL = ("file", "local")
_HTTP = ("http", "https")

# fsspec's own caches, which stand before the URL that they cache: "simplecache::s3://bucket/x".
_CACHES = ("simplecache", "filecache", "blockcache", "cached")


@dataclass(frozen=True, slots=True)
class Url:
    """A URL in parts, of which only the path differs among the files of one storage."""

    head: str
    """Caches that come before, each with its ``::``."""
    protocol: str
    path: str
    query: str
    """Of HTTP, with its ``?``: part of every file's URL, for it may be what gives access."""
    tail: str
    """What the file lies in, if that is a file itself: ``::s3://bucket/archive.zip``."""

    @classmethod
    def parse(cls, text: str) -> Url:
        """Take a URL apart."""
        parts = text.split("::")
        place = 0
        while place + 1 < len(parts) and parts[place].removesuffix("://") in _CACHES:
            place += 1
        match = _PROTOCOL.match(parts[place])
        if match is None:
            raise StorageError(f"{shown(text)}: it is no URL; one begins like s3://bucket/folder")
        protocol, path, query = match[1].lower(), parts[place][match.end() :], ""
        if protocol in _HTTP:
            path, mark, query = path.partition("?")
            query = mark + query
        path = path.rstrip("/")
        if protocol == "memory":  # "memory:///x" and "memory://x" are the same there
            path = path.lstrip("/")
        head = "".join(f"{part}::" for part in parts[:place])
        tail = "".join(f"::{part}" for part in parts[place + 1 :])
        return cls(head, protocol, path, query, tail)

    def __str__(self) -> str:
        return f"{self.head}{self.address}{self.tail}"

    @property
    def address(self) -> str:
        """The URL of the file itself, without what it is read through or lies in."""
        return f"{self.protocol}://{self.path}{self.query}"

    @property
    def is_http(self) -> bool:
        """Whether names have to be quoted, and a query may follow the path."""
        return self.protocol in _HTTP

    @property
    def name(self) -> str:
        """The last part of the path, as people write it."""
        name = self.path.rpartition("/")[2]
        return unquote(name) if self.is_http else name

    @property
    def parent(self) -> Url:
        """The folder that it is in; that of the topmost one is itself."""
        return replace(self, path=self.path.rpartition("/")[0])

    def join(self, name: str) -> Url:
        """A file or folder in this folder."""
        name = quote(name) if self.is_http else name
        return replace(self, path=f"{self.path}/{name}" if self.path else name)


def local_path(text: str) -> str | None:
    """The path that a path or ``file://`` URL stands for; None if it is not on a local disk."""
    *before, last = text.split("::")
    if before and all(part.removesuffix("://") in _CACHES for part in before):
        path = local_path(last) if _PROTOCOL.match(last) else None
        if path is not None:
            return path
    match = _PROTOCOL.match(text)
    if match is None:
        return None if before and any(_PROTOCOL.match(part) for part in (*before, last)) else text
    if match[1].lower() not in _LOCAL or before:
        return None
    path = text[match.end() :]
    return path[1:] if os.name == "nt" and re.match(r"/[A-Za-z]:", path) else path


def is_remote(path: str) -> bool:
    """Whether a path is a URL that fsspec is needed for.

    >>> is_remote("s3://bucket/birds"), is_remote("file:///data/birds"), is_remote("data/birds")
    (True, False, False)
    """
    return local_path(path) is None


def shown(url: str) -> str:
    """A URL as messages may have it: without passwords and signatures."""
    url = re.sub(r"(://[^/:@]*):[^/@]*@", r"\1:***@", url)
    return re.sub(r"(https?://[^?\s]*)\?[^\s:'\")]+", r"\1?...", url)
