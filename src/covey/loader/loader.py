"""A loader: where somebody is in a plan, and the batches from there on."""

from __future__ import annotations

import contextlib
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from covey.errors import ClosedError, PlanError
from covey.loader import state as states
from covey.loader.producing import (
    Making,
    NativeProducer,
    Producer,
    ThreadedProducer,
    is_worker_of,
    let_go,
)
from covey.loader.recipe import Recipe
from covey.pipeline import cores
from covey.plan import BalancedPlan, Plan
from covey.plan.balanced import Weights
from covey.plan.base import check_step, whole
from covey.storage.forks import ForkAware

Buffers = Literal["fresh", "recycled"]

# Examples that are looked for in files before the first batch is made: their shards are opened.
_STEPS_LOOKED_AHEAD = 4

# Batches that are made ahead, and the bytes of them.
_BATCHES_AHEAD = 16
_BYTES_AHEAD = 16 << 20


class Loader:
    """The batches of a plan; :meth:`covey.Dataset.batches` and its neighbours make it.

    A loop goes on where the last one stopped, to the end of the epoch. The loader knows how many
    batches were handed over, whatever was made ahead::

        for epoch in range(10):
            for x, y in loader:
                ...

    Args:
        recipe: What a batch is made of.
        plan: Which examples it has.
        threads: How many make batches ahead; 0 makes each when it is asked for.
        prefetch: How many batches are made ahead.
        buffers: ``"fresh"``: batches may be kept. ``"recycled"``: a batch is overwritten when the
            next one is asked for.
        again: Makes the same loader in another process.

    One loop can be shared by threads, each batch goes to one of them. A loader can be pickled; in a
    forked child it goes on by itself.
    """

    def __init__(
        self,
        recipe: Recipe,
        plan: Plan,
        *,
        threads: int | None = None,
        prefetch: int | None = None,
        buffers: Buffers = "fresh",
        again: Callable[[], Loader],
    ) -> None:
        self._recipe = recipe
        self._plan = plan
        self._threads = cores() if threads is None else whole("threads", threads, 0, 1024)
        self._prefetch = None if prefetch is None else whole("prefetch", prefetch, 1, 2**20)
        if buffers not in ("fresh", "recycled"):
            raise PlanError(f"buffers is {buffers!r}, must be 'fresh' or 'recycled'")
        self._buffers: Buffers = buffers
        self._again = again
        self._batch = 0  # the next one, of all ranks together
        self._loop: weakref.ref[Loop] | None = None
        self._turn = _Turn()

    @property
    def plan(self) -> Plan:
        """Which examples batches have."""
        return self._plan

    @property
    def buffers(self) -> Buffers:
        """Whether batches may be kept, or are overwritten."""
        return self._buffers

    def __len__(self) -> int:
        """The steps of an epoch."""
        return self._plan.steps_per_epoch

    def __repr__(self) -> str:
        return f"<covey.Loader at step {self.step:,} of {self._plan!r}>"

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where it is.

    @property
    def step(self) -> int:
        """How many steps there were."""
        return self._plan.step_at(self._batch)

    @property
    def epoch(self) -> int:
        """How many epochs there were."""
        return self._batch // self._plan.batches_per_epoch

    def seek(self, step: int) -> None:
        """Go to a step; it is the next one."""
        self._move(self._plan, self._plan.batch_at(check_step(step, self._plan)))

    def state(self) -> dict[str, Any]:
        """Where it is, for :meth:`load_state`: a JSON object, the same on all ranks.

        It is small, but for weights that were changed: each change is some bytes for every class.
        """
        with self._in_turn():
            return states.save(self._plan, self._batch)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go to where another loader was, which had any number of threads, and of ranks.

        Raises:
            PlanError: If that was a loader of other batches.
        """
        self._move(*states.load(self._plan, state))

    def set_class_weights(self, class_weights: Weights | None) -> None:
        """Draw classes by other weights from the next step on, also in a loop that runs.

        The state remembers it. Of several ranks, all must do the same at the same step.

        Args:
            class_weights: As for :meth:`covey.Dataset.batches`; None for equally many of all.
        """
        with self._in_turn():
            if not isinstance(self._plan, BalancedPlan):
                raise PlanError("these batches are not drawn by classes, which could have weights")
            # What a loop is at, whose hook this may be, is of the old ones.
            loop = self._running()
            is_busy = loop is not None and loop.is_busy
            batch = self._batch + (self._plan.batches_per_step if is_busy else 0)
            self._plan = self._plan.reweighted(class_weights, batch=batch)

    def _move(self, plan: Plan, batch: int) -> None:
        with self._in_turn():
            self.close()
            self._plan, self._batch = plan, batch

    @contextlib.contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Nobody else moves the loader meanwhile."""
        if is_worker_of(self._turn):
            raise PlanError(
                "a hook of a loader, in one of its threads, cannot move, close or ask this loader: "
                "whoever waits for the batch has it"
            )
        with self._turn.lock:
            yield

    def _running(self) -> Loop | None:
        return None if self._loop is None else self._loop()

    # Batches.

    def __iter__(self) -> Iterator[Any]:
        """The batches up to the end of the epoch."""
        with self._in_turn():
            left = self._plan.steps_left(self._batch)
            end = None if self._plan.is_endless else self._plan.end_of_epoch(self._batch)
            return self._begin(left, end)

    def take(self, steps: int) -> Iterator[Any]:
        """The next batches, so many, however long an epoch is."""
        if not self._plan.is_endless:
            raise PlanError(
                "epochs of these batches end with what is left; loop over the loader, or pass "
                "last='fill'"
            )
        with self._in_turn():
            return self._begin(whole("steps", steps, 0), None)

    def __getitem__(self, step: int) -> Any:
        """The batch of a step, made now, wherever the loader is; it stays there.

        Raises:
            PlanError: If this rank has no batch in that step.
        """
        origin = self._plan.batch_at(check_step(step, self._plan))
        if self._plan.steps_left(origin) == 0:
            raise PlanError(f"rank {self._plan.rank} has no batch in step {step}: the epoch ends")
        return Making(self._recipe, self._plan, origin)(0)

    def _begin(self, steps: int, end: int | None) -> Loop:
        self.close()
        there = max(0, self._plan.last_step - self.step)
        loop = Loop(self, self._turn, min(steps, there), end)
        self._loop = weakref.ref(loop)
        return loop

    def close(self) -> None:
        """End the loop that runs, if there is one, and its threads."""
        with self._in_turn():
            loop = self._running()
            if loop is not None:
                loop.close()

    def _produce(self, steps: int) -> Producer:
        """What makes the next batches."""
        making = Making(self._recipe, self._plan, self._batch)
        threads = min(self._threads, steps)
        if self._recipe.is_plain:
            looked = min(steps, _STEPS_LOOKED_AHEAD)
            first = making.first(looked)
            source = self._recipe.examples.native_source(self._recipe.features, first)
            if source is not None:
                return NativeProducer(
                    making,
                    source,
                    steps=steps,
                    threads=threads,
                    prefetch=min(steps, self._ahead(source.row_bytes * len(first) // looked)),
                    recycle=self._buffers == "recycled",
                )
        prefetch = 2 * threads if self._prefetch is None else self._prefetch
        return ThreadedProducer(
            making, steps=steps, threads=threads, prefetch=prefetch, owner=self._turn
        )

    def _ahead(self, batch_bytes: int) -> int:
        """How many batches are made ahead: of small ones more, as they are soon used up."""
        if self._prefetch is not None:
            return self._prefetch
        few = self._threads + 1
        return max(few, min(_BATCHES_AHEAD, _BYTES_AHEAD // max(1, batch_bytes)))

    def copy(self) -> Loader:
        """Another loader of the same batches, at the same step."""
        with self._in_turn():
            other = Loader(
                self._recipe,
                self._plan,
                threads=self._threads,
                prefetch=self._prefetch,
                buffers=self._buffers,
                again=self._again,
            )
            other._batch = self._batch
            return other

    # Frameworks. They are downstream, and imported only by whoever asks for one.

    def to_tf(self) -> Any:
        """The batches as a ``tf.data.Dataset``; see :func:`covey.adapters.tensorflow.to_tf`."""
        return _adapter("tensorflow").to_tf(self)

    def to_torch(self) -> Any:
        """The batches as an ``IterableDataset``; see :func:`covey.adapters.torch.to_torch`."""
        return _adapter("torch").to_torch(self)

    def to_jax(self, sharding: Any = None) -> Iterator[Any]:
        """The batches as arrays of JAX; see :func:`covey.adapters.jax.to_jax`."""
        batches: Iterator[Any] = _adapter("jax").to_jax(self, sharding)
        return batches

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._again, self.state())


def _adapter(framework: str) -> Any:
    return importlib.import_module(f"covey.adapters.{framework}")


def _restore(again: Callable[[], Loader], state: dict[str, Any]) -> Loader:
    loader = again()
    loader.load_state(state)
    return loader


class _Turn(ForkAware):
    """Whose turn it is to move a loader: one thread's at a time.

    A signal handler may come back in the same one. In a forked child nobody has it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()

    def _let_go(self) -> object:
        self.lock = threading.RLock()
        return None


class Loop(ForkAware):
    """One loop over a loader, which it moves on."""

    def __init__(self, loader: Loader, turn: _Turn, steps: int, end: int | None) -> None:
        super().__init__()
        self._loader = loader
        self._turn = turn
        self._left = steps
        self._end = end  # where the loader is afterwards, if that is not where the last batch was
        self._plan = loader._plan
        self._producer: Producer | None = None
        self._closed = False
        self.is_busy = False

    def __iter__(self) -> Loop:
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
                self._drop()  # what comes next is begun anew
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

    def _let_go(self) -> object:
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
