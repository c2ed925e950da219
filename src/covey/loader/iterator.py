"""One loop over a loader: what it returns, and who may move the loader meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from covey._fork import ForkAware
from covey.errors import ClosedError, PlanError
from covey.loader.prefetch import Producer, let_go

if TYPE_CHECKING:
    from covey.loader.loader import Loader


class LoaderLock(ForkAware):
    """Whose turn it is to move a loader: one thread's at a time.

    A signal handler may come back in the same one. In a forked child nobody has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def _reset_after_fork(self) -> object:
        self.lock = threading.RLock()
        return None


class LoaderIterator(ForkAware):
    """One loop over a loader, which it moves on."""

    def __init__(self, loader: Loader, turn: LoaderLock, steps: int, end: int | None) -> None:
        super().__init__()
        self._loader = loader
        self._turn = turn
        self._left = steps
        self._end = end  # where the loader is afterwards, if that is not where the last batch was
        self._plan = loader._plan
        self._producer: Producer | None = None
        self._closed = False
        self.is_busy = False

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        with self._turn.lock:
            if self._left == 0:
                if not self._closed and self._end is not None:
                    self._loader._batch = self._end
                self.close()
                raise StopIteration
            if self.is_busy:  # a signal handler, or a hook, has come back in the same thread
                raise PlanError("this loop is at a batch already, in this very thread")
            self._check_open()
            self.is_busy = True
            try:
                batch = self._make()
                after = self._loader._batch + self._plan.batches_per_step
                self._loader._batch = after if self._end is None else min(after, self._end)
                self._left -= 1
                return batch
            except BaseException:
                self._drop()  # what comes next is begun again
                self._check_open()
                raise
            finally:
                self.is_busy = False

    def _make(self) -> Any:
        loader = self._loader
        if self._plan is not loader._plan:  # it has other weights
            self._drop()
            self._plan = loader._plan
        if self._producer is None:
            self._producer = loader._produce(self._left)
        try:
            batch = self._producer.next()
        except StopIteration as error:  # of a hook: it must not look like the end of the loop
            raise RuntimeError("a hook raised StopIteration") from error
        self._check_open()
        return batch

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(
                "this loop was ended: another one over the same loader was begun, or the loader "
                "was moved or closed"
            )

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _reset_after_fork(self) -> object:
        # The threads are the parent's; what comes next is made by others.
        self.is_busy = False
        producer, self._producer = self._producer, None
        if producer is not None:
            let_go(producer)
        return producer

    def close(self) -> None:
        """End the loop, and its threads."""
        with self._turn.lock:
            self._closed = True
            if not self.is_busy:
                self._drop()
            elif self._producer is not None:  # of this thread: it ends when that comes back
                self._producer.interrupt()

    def __del__(self) -> None:
        if hasattr(self, "is_busy"):
            self._drop()
