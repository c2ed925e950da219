"""A loader: where somebody is in a plan, and the batches from there on."""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from covey._threads import cpu_count
from covey.errors import PlanError
from covey.loader import state as states
from covey.loader.batch import BatchFormat
from covey.loader.iterator import LoaderIterator, LoaderLock
from covey.loader.prefetch import (
    BatchBuilder,
    NativeProducer,
    Producer,
    ThreadedProducer,
    is_worker_of,
)
from covey.plan import BalancedPlan, Plan
from covey.plan.balanced import Weights
from covey.plan.base import check_int, check_step

# Examples that are looked for in files before the first batch is made: their shards are opened.
_STEPS_LOOKED_AHEAD = 4

# Batches that are made ahead, and the bytes of them.
_BATCHES_AHEAD = 16
_BYTES_AHEAD = 16 << 20


class Loader:
    """The batches of a plan; :meth:`covey.Dataset.batches` and its neighbours make it.

    A loop goes on where the last one stopped, to the end of the epoch. The loader knows how many
    batches were returned, whatever was made ahead::

        for epoch in range(10):
            for x, y in loader:
                ...

    Args:
        recipe: What a batch is made of.
        plan: Which examples it has.
        threads: How many make batches ahead; 0 makes each when it is asked for.
        prefetch: How many batches are made ahead.
        reuse_buffers: Whether a batch may be overwritten; a batch is overwritten when the
            next one is asked for.
        factory: Makes the same loader in another process.

    One loop can be shared by threads, each batch goes to one of them. A loader can be pickled; in a
    forked child it goes on by itself.
    """

    def __init__(
        self,
        recipe: BatchFormat,
        plan: Plan,
        *,
        threads: int | None = None,
        prefetch: int | None = None,
        reuse_buffers: bool = False,
        factory: Callable[[], Loader],
    ) -> None:
        self._recipe = recipe
        self._plan = plan
        self._threads = cpu_count() if threads is None else check_int("threads", threads, 0, 1024)
        self._prefetch = None if prefetch is None else check_int("prefetch", prefetch, 1, 2**20)
        self._reuse_buffers = reuse_buffers
        self._factory = factory
        self._batch = 0  # the next one, of all ranks together
        self._loop: weakref.ref[LoaderIterator] | None = None
        self._turn = LoaderLock()

    @property
    def plan(self) -> Plan:
        """Which examples batches have."""
        return self._plan

    @property
    def recipe(self) -> BatchFormat:
        """What batches are made of."""
        return self._recipe

    @property
    def reuse_buffers(self) -> bool:
        """Whether batches may be kept, or are overwritten."""
        return self._reuse_buffers

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

    def state_dict(self) -> dict[str, Any]:
        """Where it is, for :meth:`load_state_dict`: a JSON object, the same on all ranks.

        It is small, but for weights that were changed: each change is some bytes for every class.
        """
        with self._in_turn():
            return states.save(self._plan, self._batch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where another loader was, which had any number of threads, and of ranks.

        Raises:
            PlanError: If that was a loader of other batches.
        """
        self._move(*states.load(self._plan, state_dict))

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
                "a caller that waits for the batch has it"
            )
        with self._turn.lock:
            yield

    def _running(self) -> LoaderIterator | None:
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
                "remainder='fill'"
            )
        with self._in_turn():
            return self._begin(check_int("steps", steps, 0), None)

    def batch(self, step: int) -> Any:
        """The batch of a step, made now, wherever the loader is; it stays there.

        Raises:
            PlanError: If this rank has no batch in that step.
        """
        origin = self._plan.batch_at(check_step(step, self._plan))
        if self._plan.steps_left(origin) == 0:
            raise PlanError(f"rank {self._plan.rank} has no batch in step {step}: the epoch ends")
        return BatchBuilder(self._recipe, self._plan, origin)(0)

    def _begin(self, steps: int, end: int | None) -> LoaderIterator:
        self.close()
        there = max(0, self._plan.last_step - self.step)
        loop = LoaderIterator(self, self._turn, min(steps, there), end)
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
        making = BatchBuilder(self._recipe, self._plan, self._batch)
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
                    recycle=self._reuse_buffers,
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
                reuse_buffers=self._reuse_buffers,
                factory=self._factory,
            )
            other._batch = self._batch
            return other

    # Frameworks. They are downstream, and imported only by a caller that asks for one.

    def to_tf(self, *, element_spec: Any = None) -> Any:
        """The batches as a ``tf.data.Dataset``; see :func:`covey.adapters.tensorflow.to_tf`."""
        return _adapter("tensorflow").to_tf(self, element_spec=element_spec)

    def to_torch(self) -> Any:
        """The batches as an ``IterableDataset``; see :func:`covey.adapters.torch.to_torch`."""
        return _adapter("torch").to_torch(self)

    def to_jax(self, sharding: Any = None) -> Iterator[Any]:
        """The batches as arrays of JAX; see :func:`covey.adapters.jax.to_jax`."""
        batches: Iterator[Any] = _adapter("jax").to_jax(self, sharding)
        return batches

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._factory, self.state_dict())


def _adapter(framework: str) -> Any:
    return importlib.import_module(f"covey.adapters.{framework}")


def _restore(factory: Callable[[], Loader], state_dict: dict[str, Any]) -> Loader:
    loader = factory()
    loader.load_state_dict(state_dict)
    return loader
