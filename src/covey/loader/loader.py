"""The loader: iterates over the batches of a plan, and knows its position."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from covey._text import count_of, outline
from covey.errors import ClosedError, PlanError, SmallClassesWarning, check_int
from covey.loader.batch import BatchFormat, Format
from covey.loader.options import LoadOptions
from covey.loader.prefetch import Allocate, BatchBuilder, Producer, start_producer
from covey.plan import BalancedPlan, Plan
from covey.plan import state as states
from covey.plan.balanced import Weights, check_step
from covey.schema import Features

if TYPE_CHECKING:
    import tensorflow as tf
    from typing_extensions import Unpack

    from covey.adapters.jax import JaxBatches, JaxKeywords
    from covey.adapters.torch import BatchDataLoader, TorchKeywords
    from covey.view import View


class Loader:
    """Iterates over the batches of a plan; :meth:`covey.Dataset.batches` returns one.

    An iteration continues where the previous one stopped, and ends with the epoch. The position
    counts the batches that were returned, not those that were prefetched::

        for epoch in range(10):
            for x, y in loader:
                ...

    A loader has one iteration at a time: iterating again, or moving it, ends the one before. It can
    be pickled, and continues on its own in a forked child.

    Args:
        format: Contents of a batch.
        make_plan: Function that returns the plan of all ranks, also in another process.
        options: Rank, threads and prefetching.
    """

    def __init__(
        self, format: Format, make_plan: Callable[[], Plan], options: LoadOptions | None = None
    ) -> None:
        self._format = format
        self._make_plan = make_plan
        self._options = LoadOptions() if options is None else options
        self._plan = self._options.share(make_plan())
        self._batch = 0  # the position: index of the next batch, over all ranks
        self._iteration = object()  # identity of the running iteration
        self._producer: Producer | None = None
        self._is_requested = False  # whether the running iteration waits for a batch
        self._allocate: Allocate | None = None

    @property
    def plan(self) -> Plan:
        """The plan: which examples a batch has."""
        return self._plan

    @property
    def format(self) -> Format:
        """Contents of a batch."""
        return self._format

    @property
    def options(self) -> LoadOptions:
        """Options of the loader."""
        return self._options

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self.plan.steps_per_epoch

    def __repr__(self) -> str:
        return outline(self._title(), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [("plan", repr(self.plan)), *self._options.changes()]

    def _title(self) -> str:
        steps = count_of(len(self), "step")
        return f"<covey.Loader: {steps} per epoch, the next is step {self.step:,}>"

    def _repr_html_(self) -> str:
        form, features = self._format, Features({})
        if isinstance(form, BatchFormat):
            features = form.examples.features.select(form.names)
        from covey._html import features_html

        return features_html(self._title().strip("<>"), features, self._rows())

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, key: Any) -> NoReturn:
        """Raise PlanError: ``torch.utils.data.DataLoader(loader)`` would index the loader."""
        raise PlanError(
            "a loader is iterated, not indexed",
            remedy="use loader.to_torch() in place of torch.utils.data.DataLoader(loader), and "
            "loader.batch(step) for the batch of a step",
        )

    # Position.

    @property
    def step(self) -> int:
        """Number of steps before the next one, over all epochs."""
        return self._plan.step_at(self._batch)

    @property
    def epoch(self) -> int:
        """Number of complete epochs before the next step."""
        return self._batch // self._plan.batches_per_epoch

    def seek(self, step: int) -> None:
        """Continue with `step`, counted over all epochs."""
        self.move(self._plan, self._plan.batch_at(check_step(step, self._plan)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON object, which is the same on all ranks.

        It is small, unless class weights were changed: each change takes some bytes per class.
        """
        return states.save(self._plan, self._batch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue at the position of another loader, with any number of threads and ranks.

        Raises:
            PlanError: If it is not a valid state, or the state of other batches.
        """
        self.move(*states.load(self._plan, state_dict))

    def set_class_weights(self, class_weights: Weights | None) -> None:
        """Draw classes by other weights from the next step on, also in a running iteration.

        The state contains the change. All ranks must make it at the same step, in the thread that
        iterates.

        Args:
            class_weights: As for :meth:`covey.Dataset.batches`; None for equal weights.
        """
        if not isinstance(self._plan, BalancedPlan):
            raise PlanError("only balanced batches have class weights")
        # The batch that is being built has the old weights, if a signal handler calls this.
        batch = self._batch + (self._plan.batches_per_step if self._is_waiting else 0)
        self._plan = self._plan.reweighted(class_weights, batch=batch)

    def set_rank(self, rank: int, world_size: int) -> None:
        """Take the part of another rank from the next step on, in the mode of the options."""
        options = replace(self._options, rank=rank, world_size=world_size)
        self.move(options.share(self._plan), self._batch)
        self._options = options

    def move(self, plan: Plan, batch: int) -> None:
        """Move to a batch of a plan, also to one between two steps after a change of ranks."""
        self.close()
        self._plan, self._batch = plan, batch

    # Batches.

    def __iter__(self) -> Generator[Any, None, None]:
        """Iterate over the batches up to the end of the epoch."""
        plan, batch = self._plan, self._batch
        end = None if plan.is_endless else plan.end_of_epoch(batch)
        return self._start(plan.steps_left(batch), end)

    def take(self, steps: int) -> Generator[Any, None, None]:
        """Iterate over the next `steps` batches, across the ends of epochs."""
        if not self._plan.is_endless:
            raise PlanError(
                "the last step of an epoch is incomplete",
                remedy="iterate over the loader, or pass remainder='fill'",
            )
        return self._start(check_int("steps", steps, 0), None)

    def batch(self, step: int) -> Any:
        """Build and return the batch of `step`; the position does not change.

        Raises:
            PlanError: If this rank has no batch in that step.
        """
        plan = self._plan
        origin = plan.batch_at(check_step(step, plan))
        if plan.steps_left(origin) == 0:
            raise PlanError(f"rank {plan.rank} has no batch in step {step}, the last of its epoch")
        return BatchBuilder(self._format, plan, origin)(0)

    def _start(self, steps: int, end: int | None) -> Generator[Any, None, None]:
        """Begin an iteration, which ends the one before; its threads start with its first batch.

        Args:
            steps: Number of batches.
            end: Position after the last batch, if it is not the batch that follows it.
        """
        self.close()
        available = max(0, self._plan.last_step - self.step)
        return self._iterate(self._iteration, min(steps, available), end)

    def _iterate(
        self, iteration: object, steps: int, end: int | None
    ) -> Generator[Any, None, None]:
        plan, producer = self._plan, None
        try:
            for left in range(steps, 0, -1):
                self._check_running(iteration)
                # The plan changes with the class weights.
                if producer is None or producer.is_inherited or plan is not self._plan:
                    plan = self._plan
                    self._stop()
                    producer = self._producer = start_producer(
                        self._format,
                        plan,
                        self._batch,
                        steps=left,
                        options=self._options,
                        allocate=self._allocate,
                    )
                # Not stored in a variable: the memory of a batch is reused if the caller drops it.
                yield self._next(iteration, producer, plan.batches_per_step, end)
            if end is not None and self._iteration is iteration:
                self._batch = end
        finally:
            if producer is not None and producer is self._producer:
                self._stop()

    def _next(self, iteration: object, producer: Producer, batches: int, end: int | None) -> Any:
        """Return the next batch, and advance the position."""
        self._is_requested = True
        try:
            batch = producer.next()
        finally:
            self._is_requested = False
            self._check_running(iteration)
        following = self._batch + batches
        self._batch = following if end is None else min(following, end)
        return batch

    def _check_running(self, iteration: object) -> None:
        """Raise ClosedError unless `iteration` is the running one."""
        if self._iteration is not iteration:
            raise ClosedError(
                "the iterator is closed: the loader was iterated again, moved, or closed"
            )

    def _stop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    @property
    def _is_waiting(self) -> bool:
        """Whether the running iteration, of this process, waits for a batch."""
        running = self._producer
        return self._is_requested and running is not None and not running.is_inherited

    def close(self) -> None:
        """End the running iteration, if there is one, and stop its threads."""
        self._iteration = object()
        if self._is_waiting and self._producer is not None:
            self._producer.interrupt()  # a signal handler does not wait: the iteration does
        else:
            self._stop()

    def copy(
        self,
        *,
        format: Format | None = None,
        plan: Plan | None = None,
        batch: int | None = None,
        allocate: Allocate | None = None,
    ) -> Loader:
        """Return a loader of the same batches with a position of its own.

        Args:
            format: Contents of its batches (default: as this loader).
            plan: Its plan (default: the plan of this loader).
            batch: Index of its next batch (default: that of this loader).
            allocate: Allocates the arrays that native threads write, in pinned memory for instance
                (default: that of this loader).
        """
        other = object.__new__(Loader)
        other.__dict__.update(self.__dict__)
        other._iteration, other._producer, other._is_requested = object(), None, False
        given = {"_format": format, "_plan": plan, "_batch": batch, "_allocate": allocate}
        other.__dict__.update({name: each for name, each in given.items() if each is not None})
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        options, plan = self._options, self.plan
        if plan.world_size > 1:  # another process has the rank of this one
            options = replace(options, rank=plan.rank, world_size=plan.world_size)
        return _restore, (self._format, self._make_plan, options, self.state_dict())

    def view(self, *, port: int = 0, browser: bool | None = None, embeddings: Any = None) -> View:
        """Show the batches of this loader, and its dataset, in the browser.

        The batches have the plan, the options and the hooks of the loader, whose position does not
        change.

        Args:
            port, browser, embeddings: As for :meth:`covey.Dataset.view`.

        Returns:
            The running server; it ends with ``close()``, or with the process.
        """
        if not isinstance(self._format, BatchFormat):
            raise PlanError("the batches of raw records cannot be shown", remedy="use ds.view()")
        view: View = importlib.import_module("covey.view").view_dataset(
            self._format.examples, self, port=port, browser=browser, embeddings=embeddings
        )
        return view

    # Frameworks, each of which is imported on first use.

    def to_tf(self, *, element_spec: Any = None) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset``; see :func:`covey.adapters.tensorflow.to_tf`.

        Args:
            element_spec: Type of a batch.
        """
        dataset: tf.data.Dataset = _adapter("tensorflow").to_tf(self, element_spec=element_spec)
        return dataset

    def to_torch(self, **options: Unpack[TorchKeywords]) -> BatchDataLoader:
        """Return a ``torch.utils.data.DataLoader``; see :func:`covey.adapters.torch.to_torch`.

        Args:
            options: `device`, `layout`, `dtype`, `mean` and `std`, and options of the DataLoader.
        """
        batches: BatchDataLoader = _adapter("torch").to_torch(self, **options)
        return batches

    def to_jax(self, sharding: Any = None, **options: Unpack[JaxKeywords]) -> JaxBatches:
        """Return an iterator of JAX arrays; see :func:`covey.adapters.jax.to_jax`.

        Args:
            sharding: How each array is sharded.
            options: `prefetch`, `layout`, `dtype`, `mean` and `std`.
        """
        batches: JaxBatches = _adapter("jax").to_jax(self, sharding, **options)
        return batches


def _adapter(framework: str) -> Any:
    return importlib.import_module(f"covey.adapters.{framework}")


def _restore(
    format: Format, make_plan: Callable[[], Plan], options: LoadOptions, state: dict[str, Any]
) -> Loader:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmallClassesWarning)  # the first loader has warned
        loader = Loader(format, make_plan, options)
    loader.load_state_dict(state)
    return loader
