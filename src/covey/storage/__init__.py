"""Storages: files on a local disk, or at any URL that fsspec supports.

:func:`open_storage` returns the storage of a path or URL; all of them have the same interface.
fsspec is imported when the first URL is opened.
"""

from covey.storage.local import (
    LocalStorage,
    Stat,
    Storage,
    open_storage,
    remove_stale_temporaries,
)
from covey.urls import is_remote

__all__ = [
    "LocalStorage",
    "Stat",
    "Storage",
    "is_remote",
    "open_storage",
    "remove_stale_temporaries",
]
