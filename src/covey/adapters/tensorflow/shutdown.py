"""Functions of Python that TensorFlow's threads call, until the interpreter ends.

When it does, such a thread cannot run Python any more and never comes back; and TensorFlow, whose
iterators are freed last, would wait for it for ever. So before that, calls become errors, which
fill the buffers that the threads work for, and the end waits until nobody calls any more.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from covey.errors import ClosedError

Result = TypeVar("Result")

# How long the end waits for what is under way, and how long it must be quiet then.
_MOST_SECONDS = 10.0
_QUIET_SECONDS = 0.05


class _Calls:
    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._under_way = 0
        self._refused = 0
        self._is_over = False
        self._process = os.getpid()

    def begin(self) -> None:
        with self._condition:
            if self._is_over:
                self._refused += 1
                raise ClosedError("the interpreter ends")
            self._under_way += 1

    def end(self) -> None:
        with self._condition:
            self._under_way -= 1
            if self._is_over:
                self._condition.notify_all()

    def finish(self) -> None:
        """Refuse all calls from now on, and wait until there are none."""
        if self._process != os.getpid():  # the threads are the parent's
            return
        until = time.monotonic() + _MOST_SECONDS
        with self._condition:
            self._is_over = True
            self._condition.wait_for(lambda: self._under_way == 0, _MOST_SECONDS)
        refused = -1
        while refused != self._refused and time.monotonic() < until:
            refused = self._refused
            time.sleep(_QUIET_SECONDS)


_CALLS = _Calls()
atexit.register(_CALLS.finish)


def stop_at_exit(function: Callable[..., Result]) -> Callable[..., Result]:
    """The same function, for TensorFlow to call."""

    def call(*arguments: Any) -> Result:
        _CALLS.begin()
        try:
            return function(*arguments)
        finally:
            _CALLS.end()

    return call
