"""A thread that copies batches to a device before they are requested."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from covey._fork import ForkAware
from covey.adapters.torch.device import DeviceCopier

# Number of batches on the device that were not requested yet.
_DEPTH = 3

# Time to wait at exit, and when an abandoned iteration is collected, for the batch in work.
STOP_TIMEOUT_S = 10.0


class _Item(NamedTuple):
    kind: Literal["batch", "error", "end"]
    value: Any = None


class _Queue:
    """A bounded queue between one producer and one consumer, which either side can close."""

    def __init__(self, depth: int) -> None:
        self._condition = threading.Condition()
        self._items: deque[_Item] = deque()
        self._depth = depth
        self.is_closed = False

    def put(self, item: _Item) -> bool:
        """Add an item, and return whether the queue is open; wait while it is full."""
        with self._condition:
            while len(self._items) >= self._depth and not self.is_closed:
                self._condition.wait()
            if self.is_closed:
                return False
            self._items.append(item)
            self._condition.notify_all()
            return True

    def get(self) -> _Item:
        """Remove and return the first item; wait while there is none. The end is not removed."""
        with self._condition:
            while not self._items and not self.is_closed:
                self._condition.wait()
            if self.is_closed or self._items[0].kind == "end":
                return _Item("end")
            item = self._items.popleft()
            self._condition.notify_all()
            return item

    def close(self) -> None:
        """Drop all items, and wake both sides."""
        with self._condition:
            self.is_closed = True
            self._items.clear()
            self._condition.notify_all()


class DevicePrefetcher(ForkAware, Iterator[Any]):
    """Copies the batches of an iterator to a device, in order, in a thread.

    The first batch is copied by the calling thread, so that PyTorch starts its workers there. An
    error is raised in place of the batch that it belongs to, and the next batch follows.

    Args:
        batches: The batches on the CPU. The thread advances it from the second batch on.
        copier: Copies a batch.
        depth: Maximum number of batches that are copied before they are requested.
    """

    def __init__(self, batches: Iterator[Any], copier: DeviceCopier, depth: int = _DEPTH) -> None:
        super().__init__()
        self._batches: Iterator[Any] = batches
        self._copier = copier
        self._queue = _Queue(depth)
        self._thread: threading.Thread | None = None
        self.is_inherited = False
        """Whether the thread belongs to the parent process."""

    def __next__(self) -> Any:
        if self._thread is None:
            return self._first()
        item = self._queue.get()
        if item.kind == "batch":
            return self._copier.receive(item.value)
        if item.kind == "error":
            try:
                raise item.value
            finally:
                del item  # the error refers to this frame, which must not refer to the error
        raise StopIteration

    def _first(self) -> Any:
        if self._queue.is_closed:
            raise StopIteration
        try:
            batch = self._copier.receive(self._copier.send(next(self._batches)))
        except StopIteration:
            self._queue.close()
            raise
        except Exception:
            self._start()
            raise
        self._start()
        return batch

    def _start(self) -> None:
        self._thread = threading.Thread(
            # Without a reference to this object, whose end stops the thread.
            target=_copy_all,
            args=(self._batches, self._copier, self._queue),
            name="covey-device",
            daemon=True,
        )
        _RUNNING.add(self)
        self._thread.start()

    def close(self, timeout: float | None = None) -> None:
        """Stop the thread, and wait for it.

        Args:
            timeout: Maximum time to wait in seconds (default: until the batch in work is complete).
        """
        thread = self._thread
        self._queue.close()
        _RUNNING.discard(self)
        # The garbage collector may call it in the thread itself.
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _reset_after_fork(self) -> object:
        inherited = self._batches, self._copier, self._queue, self._thread
        self._batches, self._queue, self._thread = iter(()), _Queue(1), None
        self._queue.close()
        self.is_inherited = True
        _RUNNING.discard(self)
        return inherited

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is not None:
            self.close(STOP_TIMEOUT_S)


# A thread that runs at exit would use modules that the interpreter has torn down.
_RUNNING: weakref.WeakSet[DevicePrefetcher] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    running = list(_RUNNING)
    for each in running:
        each._queue.close()
    for each in running:
        with contextlib.suppress(Exception):  # the others must be closed nevertheless
            each.close(STOP_TIMEOUT_S)


def _copy_all(batches: Iterator[Any], copier: DeviceCopier, queue: _Queue) -> None:
    """Copy batches until the iterator ends or the queue is closed."""
    try:
        is_open = True
        while is_open:
            item = _copy(batches, copier)
            is_open = queue.put(item) and item.kind != "end"
            del item
    finally:
        # Native threads write into the memory of a batch as soon as it is dropped.
        copier.wait()


def _copy(batches: Iterator[Any], copier: DeviceCopier) -> _Item:
    try:
        batch = next(batches)
    except StopIteration:
        return _Item("end")
    except BaseException as error:
        return _Item("error", error)
    try:
        return _Item("batch", copier.send(batch))
    except BaseException as error:
        return _Item("error", error)
