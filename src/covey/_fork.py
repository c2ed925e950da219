"""The process: its CPUs, and fork safety.

A child process has neither the threads nor the connections of its parent.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref

# Connections of the parent that a child must not close: closing a connection of fsspec removes it
# from the event loop, whose descriptors the two processes share.
_INHERITED: list[object] = []


def cpu_count() -> int:
    """Return the number of CPUs that this process may use, the default number of threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ForkAware:
    """An object whose lock and connections are reset in a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _AWARE.add(self)

    def _reset_after_fork(self) -> object:
        """Drop all connections; the returned object is kept alive, so that they are not closed."""
        return None


_AWARE: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def _after_fork() -> None:
    asyn = sys.modules.get("fsspec.asyn")
    if asyn is not None:  # the thread of its event loop does not exist in the child
        asyn.reset_lock()
    for each in list(_AWARE):
        each._lock = threading.Lock()
        _INHERITED.append(each._reset_after_fork())


os.register_at_fork(after_in_child=_after_fork)
