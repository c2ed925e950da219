"""Storages: files on a local disk, or at any URL that fsspec supports.

:func:`open_storage` returns the storage of a path or URL; all of them have the same interface.
fsspec is imported when the first URL is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from covey.storage.base import Stat, Storage
from covey.storage.local import LocalStorage, remove_stale_temporaries
from covey.urls import AnyPath, is_remote, parse_path

__all__ = [
    "LocalStorage",
    "Stat",
    "Storage",
    "is_remote",
    "open_storage",
    "remove_stale_temporaries",
]


def open_storage(
    path: AnyPath,
    options: Mapping[str, Any] | None = None,
    *,
    cache_bytes: int | None = None,
) -> Storage:
    """Return the storage of a path or URL.

    Args:
        path: The path or URL of any file or directory in it, which need not exist.
        options: fsspec's storage options, for URLs.
        cache_bytes: Size limit of the cache on disk (default: ``$COVEY_CACHE_BYTES``, or 16 GiB).

    Raises:
        StorageError: If the protocol of a URL is unknown, or fsspec or its driver is not installed.

    >>> storage = open_storage("data")
    >>> storage.write("data/greeting.txt", b"hello")
    >>> [storage.name(path) for path in storage.list("data")]
    ['greeting.txt']
    """
    location = parse_path(path)
    if not is_remote(location):
        return LocalStorage()
    from covey.storage.remote import RemoteStorage

    return RemoteStorage(location, options, cache_bytes)
