"""Calls of Python functions from threads of TensorFlow, until the interpreter exits.

A thread that enters Python during finalization never returns, and TensorFlow, whose iterators are
freed last, would wait for it for ever. Therefore calls raise an error as soon as the exit begins,
which fills the buffers of the threads, and the exit waits until no call is made.
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

# Time to wait at exit for running calls, and interval without a call that ends the wait.
EXIT_TIMEOUT_S = 10.0
QUIET_INTERVAL_S = 0.05


class _Calls:
    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._rejected = 0
        self._is_exiting = False
        self._process = os.getpid()

    def begin(self) -> None:
        with self._condition:
            if self._is_exiting:
                self._rejected += 1
                raise ClosedError("the interpreter is exiting")
            self._running += 1

    def end(self) -> None:
        with self._condition:
            self._running -= 1
            if self._is_exiting:
                self._condition.notify_all()

    def finish(self) -> None:
        """Reject all further calls, and wait until there are none."""
        if self._process != os.getpid():  # the threads belong to the parent process
            return
        until = time.monotonic() + EXIT_TIMEOUT_S
        with self._condition:
            self._is_exiting = True
            self._condition.wait_for(lambda: self._running == 0, EXIT_TIMEOUT_S)
        rejected = -1
        while rejected != self._rejected and time.monotonic() < until:
            rejected = self._rejected
            time.sleep(QUIET_INTERVAL_S)


_CALLS = _Calls()
atexit.register(_CALLS.finish)


def stop_at_exit(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that raises ClosedError as soon as the interpreter exits."""

    def call(*arguments: Any) -> Result:
        _CALLS.begin()
        try:
            return function(*arguments)
        finally:
            _CALLS.end()

    return call
