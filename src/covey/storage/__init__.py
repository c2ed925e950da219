"""Where files are: on a local disk, or behind any URL that fsspec knows.

A storage is opened with :func:`open_storage`. All of them do the same; what is behind a URL is
fetched when it is needed, in blocks that are kept on a local disk. fsspec is imported when a URL is
really used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from covey.storage.base import LocalBlocks, Stat, Storage
from covey.storage.cache import cache_directory, cache_limit
from covey.storage.local import FileBlocks, LocalStorage, remove_stale_temporaries
from covey.urls import check_slashes, is_remote

if TYPE_CHECKING:
    from covey.storage.range_cache import RemoteBlocks

__all__ = [
    "LocalBlocks",
    "LocalStorage",
    "Stat",
    "Storage",
    "cache_directory",
    "cache_limit",
    "fetch_many",
    "is_remote",
    "open_storage",
    "remove_stale_temporaries",
]


def open_storage(
    path: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    *,
    cache_bytes: int | None = None,
) -> Storage:
    """The storage that a path or URL lies in.

    Args:
        path: Of any file or directory in it, which need not be there.
        options: fsspec's storage options, for URLs.
        cache_bytes: How much of what is remote may be kept on disk; ``$COVEY_CACHE_BYTES`` or 16
            GiB if it is not given.

    Raises:
        StorageError: If it is a URL whose protocol is unknown, or fsspec or its driver is not
            installed.

    >>> storage = open_storage("data")
    >>> storage.write("data/greeting.txt", b"hello")
    >>> [storage.name(path) for path in storage.list("data")]
    ['greeting.txt']
    """
    text = check_slashes(path)
    if not is_remote(text):
        return LocalStorage()
    from covey.storage.remote import RemoteStorage

    return RemoteStorage(text, options, cache_bytes)


def fetch_many(
    blocks_and_ranges: Sequence[tuple[LocalBlocks, NDArray[np.int64], NDArray[np.int64]]],
) -> None:
    """Wait until ranges of many files are all there, as ``ensure`` does for those of one."""
    remote = [each for each in blocks_and_ranges if not isinstance(each[0], FileBlocks)]
    if remote:
        from covey.storage.range_cache import fetch

        fetch(cast("list[tuple[RemoteBlocks, NDArray[np.int64], NDArray[np.int64]]]", remote))
