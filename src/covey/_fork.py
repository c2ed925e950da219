"""Beginning again in a forked child, where the threads and connections of its parent are not."""

from __future__ import annotations

import os
import sys
import threading
import weakref

# What a child has of its parent and must not close: closing a connection of fsspec's takes it out
# of the event loop, which the two processes still share.
_INHERITED: list[object] = []


class ForkAware:
    """Something with a lock and connections, which a child gets without them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _AWARE.add(self)

    def _reset_after_fork(self) -> object:
        """Forget all connections; what is returned is kept from being closed."""
        return None


_AWARE: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def _after_fork() -> None:
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:  # the thread of its event loop did not come along
        asyn.reset_lock()
    for each in list(_AWARE):
        each._lock = threading.Lock()
        _INHERITED.append(each._reset_after_fork())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
