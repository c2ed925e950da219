"""The batches of some steps, in order, made ahead: by native threads, or by Python's."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import ClosedError, FormatError
from covey.loader.examples import Direct
from covey.loader.recipe import Recipe
from covey.pipeline import DaemonThreads, run_ahead
from covey.plan import Plan


class Producer(Protocol):
    """Makes batches, one after the other."""

    def next(self) -> Any:
        """The next batch."""

    def interrupt(self) -> None:
        """Make nothing more, whatever is under way: :meth:`next` will not give anything."""

    def close(self) -> None:
        """Stop making them; waits for what is under way."""


class Making:
    """Makes the batch of a step by itself.

    Args:
        recipe: What it is made of.
        plan: Which examples it has.
        origin: The batch that is step 0.
    """

    def __init__(self, recipe: Recipe, plan: Plan, origin: int) -> None:
        self.recipe = recipe
        self._plan = plan.native
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
        ids, labels = self._plan.draw(step, 1, self.share)
        classes = None
        if labels is not None:
            classes = np.repeat(labels[0], ids.shape[1] // max(1, labels.shape[1]))
            self._check(ids[0], classes)
        return self.recipe.make(ids[0], classes, self._go_on)

    def _check(self, ids: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
        """Compare what an index says of a class with what it says of its records."""
        try:
            sound = np.array_equal(self.recipe.examples.numbers_of(ids), classes)
        except IndexError:
            sound = False
        if not sound:
            raise FormatError(
                f"the index has records in the classes {np.unique(classes)[:5]} that are not of "
                "them; make it anew with `covey index`"
            )

    def first(self, steps: int) -> NDArray[np.int64]:
        """The examples of the first steps."""
        return np.concatenate([self._plan.draw(step, 1, self.share)[0][0] for step in range(steps)])


# What threads still run when the interpreter ends would use what it takes away.
_RUNNING: weakref.WeakSet[NativeProducer | ThreadedProducer] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_RUNNING):
        each.close()


class NativeProducer:
    """Has the native core make batches, and makes those itself that it cannot.

    That is the last one of an epoch if it is shorter, and one with which something is amiss: then
    what is amiss is said in full.
    """

    def __init__(
        self,
        making: Making,
        direct: Direct,
        plan: Plan,
        *,
        steps: int,
        threads: int,
        prefetch: int,
        recycle: bool,
    ) -> None:
        self._making = making
        recipe = making.recipe
        names = tuple(recipe.features)
        add_labels = direct.label < 0 and direct.has_labels
        shapes = (*direct.columns, ((), np.dtype(np.int64))) if add_labels else direct.columns
        self._hand_over = _composer(recipe, names, direct.label, add_labels)
        self._ahead = _core.Ahead(
            direct.gather,
            direct.decoder,
            plan.native,
            making.share,
            steps,
            direct.check,
            direct.label,
            add_labels,
            direct.check_classes,
            direct.numbers,
            threads,
            prefetch,
            partial(_allocate, shapes),
            recycle,
        )
        self._step = 0
        _RUNNING.add(self)

    def next(self) -> Any:
        try:
            columns = self._ahead.next()
        except ValueError:
            raise ClosedError("the interpreter is ending, and with it the threads") from None
        step = self._step
        self._step = step + 1
        if columns is None:
            return self._making(step)
        return columns if self._hand_over is None else self._hand_over(columns)

    def interrupt(self) -> None:
        self._ahead.close()

    def close(self) -> None:
        self._ahead.close()


def _allocate(
    columns: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...], rows: int
) -> tuple[NDArray[Any], ...]:
    return tuple(np.empty((rows, *shape), dtype) for shape, dtype in columns)


def _composer(
    recipe: Recipe, names: tuple[str, ...], label: int, add_labels: bool
) -> Callable[[tuple[NDArray[Any], ...]], Any] | None:
    """What makes a batch of the native core's columns; None if they are one."""
    labelled = label >= 0 or add_labels
    if len(names) == 1 + (label >= 0) and labelled and not recipe.as_dict:
        is_pair = label == 1 or add_labels
        if is_pair and (recipe.wanted is None or isinstance(recipe.wanted, str)):
            return None
    features = recipe.features
    paths = [features.path_of(name) for name in names]

    def compose(columns: tuple[NDArray[Any], ...]) -> Any:
        nested: dict[str, Any] = {}
        for path, column in zip(paths, columns, strict=False):
            parent = nested
            for key in path[:-1]:
                parent = parent.setdefault(key, {})
            parent[path[-1]] = column
        y = columns[label] if label >= 0 else columns[-1] if add_labels else None
        return recipe.hand_over(nested, y)

    return compose


class ThreadedProducer:
    """Has Python's threads make batches, a whole one each.

    They are worth it where decoding leaves Python to others: images, compressed and remote shards.
    """

    def __init__(self, making: Making, *, steps: int, threads: int, prefetch: int) -> None:
        self._making = making
        self._threads = DaemonThreads(threads, "covey-loader") if threads else None
        tasks = (partial(making, step) for step in range(steps))
        self._batches = run_ahead(tasks, self._threads, max(prefetch - 1, 0))
        _RUNNING.add(self)

    def next(self) -> Any:
        return next(self._batches)

    def interrupt(self) -> None:
        self._making.stop()

    def close(self) -> None:
        self.interrupt()
        self._batches.close()
        if self._threads is not None:
            self._threads.shutdown()
