"""The batches of some steps, in order, made ahead: by native threads, or by Python's."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey._threads import DaemonThreads
from covey.errors import ClosedError
from covey.loader.batch import BatchFormat, NativeSource, check_classes
from covey.plan import Plan


class Producer(Protocol):
    """Makes batches, one after the other."""

    def next(self) -> Any:
        """The next batch."""

    def interrupt(self) -> None:
        """Make nothing more, whatever is under way: :meth:`next` will not give anything."""

    def close(self) -> None:
        """The same, and wait for what is under way."""


class BatchBuilder:
    """Makes the batch of a step by itself.

    Args:
        recipe: What it is made of.
        plan: Which examples it has.
        origin: The batch that is step 0.
    """

    def __init__(self, recipe: BatchFormat, plan: Plan, origin: int) -> None:
        self.recipe = recipe
        self.plan = plan.native
        self.share = plan.share(origin)
        self._stopped = False

    def stop(self) -> None:
        """Give up what is being made, and all that comes."""
        self._stopped = True

    def _go_on(self) -> None:
        if self._stopped:
            raise ClosedError("nobody waits for this batch any more")

    def __call__(self, step: int) -> Any:
        self._go_on()
        ids, labels = self.plan.draw(step, 1, self.share)
        classes = None
        if labels is not None:
            classes = np.repeat(labels[0], ids.shape[1] // max(1, labels.shape[1]))
            check_classes(self.recipe.examples, ids[0], classes)
        return self.recipe.make(ids[0], classes, self._go_on)

    def first(self, steps: int) -> NDArray[np.int64]:
        """The examples of the first steps."""
        return np.concatenate([self.plan.draw(step, 1, self.share)[0][0] for step in range(steps)])


# Whose batches a thread makes.
_here = threading.local()


def is_worker_of(owner: object) -> bool:
    """Whether this thread makes batches for somebody, who waits for them."""
    return getattr(_here, "owner", None) is owner


# What threads still run when the interpreter ends would use what it takes away.
_RUNNING: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    running = list(_RUNNING)
    for each in running:
        each.interrupt()
    for each in running:
        with contextlib.suppress(Exception):  # then the others still are to be closed
            each.close()


def let_go(producer: Producer) -> None:
    """Forget a producer whose threads are those of another process."""
    _RUNNING.discard(producer)


class NativeProducer:
    """Has the native core make batches, and makes those itself that it cannot.

    That is the last one of an epoch if it is shorter, and one with which something is amiss: then
    what is amiss is said in full.
    """

    def __init__(
        self,
        making: BatchBuilder,
        source: NativeSource,
        *,
        steps: int,
        threads: int,
        prefetch: int,
        recycle: bool,
    ) -> None:
        self._making = making
        add_labels = source.label < 0 and source.has_labels
        shapes = (*source.columns, ((), np.dtype(np.int64))) if add_labels else source.columns
        self._hand_over = _composer(making.recipe, source.label, add_labels)
        self._closed = False
        self._step = 0
        self._prefetcher = _core.Prefetcher(
            source.gather,
            source.decoder,
            making.plan,
            making.share,
            steps=steps,
            check=source.check,
            label=source.label,
            add_labels=add_labels,
            check_classes=source.has_labels,
            record_ids=source.numbers,
            threads=threads,
            depth=prefetch,
            allocate=partial(_allocate, shapes),
            reuse_buffers=recycle,
        )
        _RUNNING.add(self)

    def next(self) -> Any:
        try:
            columns = self._prefetcher.next()
        except ValueError:
            if self._closed:
                raise ClosedError("these batches were closed, or the interpreter ends") from None
            raise
        step = self._step
        self._step = step + 1
        if columns is None:
            return self._making(step)
        return columns if self._hand_over is None else self._hand_over(columns)

    def interrupt(self) -> None:
        self._closed = True
        self._prefetcher.close()

    close = interrupt


def _allocate(
    columns: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...], rows: int
) -> tuple[NDArray[Any], ...]:
    # Arrays that own their memory: a view of a view counts for the owner, and that is how the
    # native core sees that somebody still has it.
    return tuple(np.empty((rows, *shape), dtype) for shape, dtype in columns)


def _composer(
    recipe: BatchFormat, label: int, add_labels: bool
) -> Callable[[tuple[NDArray[Any], ...]], Any] | None:
    """What makes a batch of the native core's columns; None if they are one."""
    names = tuple(recipe.features)
    is_pair = (len(names) == 2 and label == 1) or (len(names) == 1 and add_labels)
    if is_pair and not recipe.as_dict and isinstance(recipe.wanted, (str, type(None))):
        return None

    def compose(columns: tuple[NDArray[Any], ...]) -> Any:
        nested = recipe.features.nest(dict(zip(names, columns, strict=False)))
        y = columns[label] if label >= 0 else columns[-1] if add_labels else None
        return recipe.emit(nested, y)

    return compose


class ThreadedProducer:
    """Has Python's threads make batches, a whole one each.

    They are worth it where decoding leaves Python to others: images, compressed and remote shards.
    """

    def __init__(
        self, making: BatchBuilder, *, steps: int, threads: int, prefetch: int, owner: object
    ) -> None:
        self._making = making
        self._owner = owner
        self._steps = steps
        self._prefetch = prefetch
        self._begun = 0
        self._waiting: deque[Future[Any]] = deque()
        self._threads = DaemonThreads(threads, "covey-loader") if threads else None
        _RUNNING.add(self)

    def next(self) -> Any:
        if self._threads is None:
            self._begun += 1
            return self._making(self._begun - 1)
        self._begin(1)
        first = self._waiting.popleft()
        # As many are made as were asked for, while a caller that has this one is at work.
        self._begin(self._prefetch)
        try:
            return first.result()
        finally:
            del first  # an error has this frame, which must not have the error

    def _begin(self, count: int) -> None:
        assert self._threads is not None
        while len(self._waiting) < count and self._begun < self._steps:
            self._waiting.append(self._threads.submit(self._make, self._begun))
            self._begun += 1

    def _make(self, step: int) -> Any:
        _here.owner = self._owner
        return self._making(step)

    def interrupt(self) -> None:
        self._making.stop()
        for each in list(self._waiting):
            each.cancel()

    def close(self) -> None:
        self.interrupt()
        if self._threads is not None:
            self._threads.shutdown()
