"""The position of a loader, and the iterator that advances it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from covey._fork import ForkAware
from covey.errors import ClosedError, PlanError
from covey.loader.options import LoadOptions
from covey.loader.prefetch import (
    Allocate,
    Format,
    Producer,
    current_thread,
    detach,
    start_producer,
)
from covey.plan import Plan


class Position(ForkAware):
    """The plan of a loader and the index of its next batch, for one thread at a time.

    The lock is reentrant, because a signal handler may run in the thread that holds it. It is
    released in a forked child.

    Args:
        plan: The plan.
        batch: Index of the next batch, over all ranks.
    """

    def __init__(self, plan: Plan, batch: int = 0) -> None:
        super().__init__()
        self.plan = plan
        self.batch = batch
        self.lock = threading.RLock()
        """Held by :meth:`locked`."""

    def _reset_after_fork(self) -> object:
        self.lock = threading.RLock()
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return Position, (self.plan, self.batch)

    def locked(self) -> contextlib.AbstractContextManager[bool]:
        """Return the lock, to be held in a ``with`` statement.

        Raises:
            PlanError: In a thread that builds a batch: the thread that waits for the batch holds
                the lock.
        """
        if current_thread.owner is self:
            raise PlanError(
                "a hook used its own loader in a prefetching thread, which would wait for itself"
            )
        return self.lock


class LoaderIterator(ForkAware):
    """One iteration over the batches of a loader, whose position it advances.

    Args:
        format: Contents of a batch.
        position: Position of the loader.
        options: Threads and prefetching.
        steps: Number of batches.
        end: Position after the last batch, if it is not the batch that follows it.
        allocate: Allocates the arrays of batches.
    """

    _producer: Producer | None = None

    def __init__(
        self,
        format: Format,
        position: Position,
        options: LoadOptions,
        steps: int,
        end: int | None,
        allocate: Allocate | None,
    ) -> None:
        super().__init__()
        self._format = format
        self._position = position
        self._options = options
        self._left = steps
        self._end = end
        self._allocate = allocate
        self._plan = position.plan
        self._closed = False
        self.is_busy = False

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        position = self._position
        # As `position.locked()`, in fewer calls: native batches need no other Python code.
        with position.lock if current_thread.owner is not position else position.locked():
            if self._left == 0:
                if not self._closed and self._end is not None:
                    position.batch = self._end
                self.close()
                raise StopIteration
            if self.is_busy:  # a signal handler or a hook in the same thread
                raise PlanError("the iterator is already building a batch in this thread")
            if self._closed:
                self._check_open()
            self.is_busy = True
            try:
                if self._producer is None or self._plan is not position.plan:
                    self._start_producer()
                assert self._producer is not None
                batch = self._producer.next()
                if self._closed:
                    self._check_open()
                following = position.batch + self._plan.batches_per_step
                position.batch = following if self._end is None else min(following, self._end)
                self._left -= 1
                return batch
            except BaseException:
                self._stop_producer()  # the next call starts another one
                self._check_open()
                raise
            finally:
                self.is_busy = False

    def _start_producer(self) -> None:
        """Start a producer of the present plan, which changes with the class weights."""
        position = self._position
        self._stop_producer()
        self._plan = position.plan
        self._producer = start_producer(
            self._format,
            self._plan,
            position.batch,
            steps=self._left,
            options=self._options,
            owner=position,
            allocate=self._allocate,
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "the iterator is closed: the loader was iterated again, moved, or closed"
            )

    def _stop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _reset_after_fork(self) -> object:
        # The threads of the producer belong to the parent process.
        self.is_busy = False
        producer, self._producer = self._producer, None
        if producer is not None:
            detach(producer)
        return producer

    def close(self) -> None:
        """End the iteration, and stop its threads."""
        with self._position.locked():
            self._closed = True
            if not self.is_busy:
                self._stop_producer()
            elif self._producer is not None:  # called while this thread waits for a batch
                self._producer.interrupt()

    def __del__(self) -> None:
        self._stop_producer()
