"""The loader: iterates over the batches of a plan, and knows its position."""

from __future__ import annotations

import importlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from covey._text import count_of, outline
from covey.errors import PlanError, SmallClassesWarning
from covey.loader import state as states
from covey.loader.iterator import LoaderIterator, Position
from covey.loader.options import LoadOptions
from covey.loader.prefetch import Allocate, BatchBuilder, Format
from covey.plan import BalancedPlan, Plan
from covey.plan.balanced import Weights
from covey.plan.base import check_int, check_step

if TYPE_CHECKING:
    import tensorflow as tf

    from covey.adapters.jax import JaxBatches
    from covey.adapters.torch import BatchDataLoader
    from covey.view import View


class Loader:
    """Iterates over the batches of a plan; :meth:`covey.Dataset.batches` returns one.

    An iteration continues where the previous one stopped, and ends with the epoch. The position
    counts the batches that were returned, not those that were prefetched::

        for epoch in range(10):
            for x, y in loader:
                ...

    One iterator may be shared by threads; each batch goes to one of them. A loader can be pickled,
    and continues on its own in a forked child.

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
        self._position = Position(self._options.share(make_plan()))
        self._iterator: weakref.ref[LoaderIterator] | None = None
        self._allocate: Allocate | None = None

    @property
    def plan(self) -> Plan:
        """The plan: which examples a batch has."""
        return self._position.plan

    @property
    def format(self) -> Format:
        """Contents of a batch."""
        return self._format

    @property
    def options(self) -> LoadOptions:
        """Options of the loader."""
        return self._options

    @property
    def position(self) -> Position:
        """The plan and the index of the next batch; adapters advance it."""
        return self._position

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self.plan.steps_per_epoch

    def __repr__(self) -> str:
        return outline(self._title(), [("plan", repr(self.plan)), *self._options.changes()])

    def _title(self) -> str:
        steps = count_of(len(self), "step")
        return f"<covey.Loader: {steps} per epoch, the next is step {self.step:,}>"

    def _repr_html_(self) -> str:
        from covey._html import loader_html

        return loader_html(self, self._title().strip("<>"))

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Position.

    @property
    def step(self) -> int:
        """Number of steps before the next one, over all epochs."""
        return self.plan.step_at(self._position.batch)

    @property
    def epoch(self) -> int:
        """Number of complete epochs before the next step."""
        return self._position.batch // self.plan.batches_per_epoch

    def seek(self, step: int) -> None:
        """Continue with `step`, counted over all epochs."""
        self._move(self.plan, self.plan.batch_at(check_step(step, self.plan)))

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON object, which is the same on all ranks.

        It is small, unless class weights were changed: each change takes some bytes per class.
        """
        with self._position.locked():
            return states.save(self.plan, self._position.batch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue at the position of another loader, with any number of threads and ranks.

        Raises:
            PlanError: If it is not a valid state, or the state of other batches.
        """
        self._move(*states.load(self.plan, state_dict))

    def set_class_weights(self, class_weights: Weights | None) -> None:
        """Draw classes by other weights from the next step on, also in a running iteration.

        The state contains the change. All ranks must make it at the same step.

        Args:
            class_weights: As for :meth:`covey.Dataset.batches`; None for equal weights.
        """
        with self._position.locked():
            if not isinstance(self.plan, BalancedPlan):
                raise PlanError("only balanced batches have class weights")
            # The batch that is being built, whose hook may be the caller, has the old weights.
            iterator = self._running()
            is_busy = iterator is not None and iterator.is_busy
            batch = self._position.batch + (self.plan.batches_per_step if is_busy else 0)
            self._position.plan = self.plan.reweighted(class_weights, batch=batch)

    def set_rank(self, rank: int, world_size: int) -> None:
        """Take the part of another rank from the next step on, in the mode of the options."""
        options = replace(self._options, rank=rank, world_size=world_size)
        self._move(options.share(self.plan), self._position.batch)
        self._options = options

    def _move(self, plan: Plan, batch: int) -> None:
        with self._position.locked():
            self.close()
            self._position.plan, self._position.batch = plan, batch

    def _running(self) -> LoaderIterator | None:
        return None if self._iterator is None else self._iterator()

    # Batches.

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches up to the end of the epoch."""
        with self._position.locked():
            plan, batch = self.plan, self._position.batch
            end = None if plan.is_endless else plan.end_of_epoch(batch)
            return self._start(plan.steps_left(batch), end)

    def take(self, steps: int) -> Iterator[Any]:
        """Iterate over the next `steps` batches, across the ends of epochs."""
        if not self.plan.is_endless:
            raise PlanError(
                "the last batch of an epoch is incomplete",
                remedy="iterate over the loader, or pass remainder='fill'",
            )
        with self._position.locked():
            return self._start(check_int("steps", steps, 0), None)

    def batch(self, step: int) -> Any:
        """Build and return the batch of `step`; the position does not change.

        Raises:
            PlanError: If this rank has no batch in that step.
        """
        plan = self.plan
        origin = plan.batch_at(check_step(step, plan))
        if plan.steps_left(origin) == 0:
            raise PlanError(f"rank {plan.rank} has no batch in step {step}, the last of its epoch")
        return BatchBuilder(self._format, plan, origin)(0)

    def _start(self, steps: int, end: int | None) -> LoaderIterator:
        self.close()
        available = max(0, self.plan.last_step - self.step)
        iterator = LoaderIterator(
            self._format,
            self._position,
            self._options,
            min(steps, available),
            end,
            self._allocate,
        )
        self._iterator = weakref.ref(iterator)
        return iterator

    def close(self) -> None:
        """End the running iteration, if there is one, and stop its threads."""
        with self._position.locked():
            iterator = self._running()
            if iterator is not None:
                iterator.close()

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
            format: Contents of its batches (default: those of this loader).
            plan: Its plan (default: the plan of this loader).
            batch: Index of its next batch (default: that of this loader).
            allocate: Allocates the arrays that native threads write, in pinned memory for instance
                (default: that of this loader).
        """
        with self._position.locked():
            other = object.__new__(Loader)
            other.__dict__.update(self.__dict__)
            other._position = Position(
                self.plan if plan is None else plan,
                self._position.batch if batch is None else batch,
            )
            other._iterator = None
            if format is not None:
                other._format = format
            if allocate is not None:
                other._allocate = allocate
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
        examples = getattr(self._format, "examples", None)
        if examples is None:
            raise PlanError("the batches of raw records cannot be shown", remedy="use ds.view()")
        view: View = importlib.import_module("covey.view").view_dataset(
            examples, self, port=port, browser=browser, embeddings=embeddings
        )
        return view

    # Frameworks, each of which is imported on first use.

    def to_tf(self, *, element_spec: Any = None) -> tf.data.Dataset:
        """Return a ``tf.data.Dataset``; see :func:`covey.adapters.tensorflow.to_tf`."""
        dataset: tf.data.Dataset = _adapter("tensorflow").to_tf(self, element_spec=element_spec)
        return dataset

    def to_torch(
        self,
        *,
        device: Any = None,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: Any = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        **dataloader_options: Any,
    ) -> BatchDataLoader:
        """Return a ``torch.utils.data.DataLoader``; see :func:`covey.adapters.torch.to_torch`."""
        batches: BatchDataLoader = _adapter("torch").to_torch(
            self,
            device=device,
            layout=layout,
            dtype=dtype,
            mean=mean,
            std=std,
            **dataloader_options,
        )
        return batches

    def to_jax(
        self,
        sharding: Any = None,
        *,
        prefetch: int = 2,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: Any = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> JaxBatches:
        """Return an iterator of JAX arrays; see :func:`covey.adapters.jax.to_jax`."""
        batches: JaxBatches = _adapter("jax").to_jax(
            self, sharding, prefetch=prefetch, layout=layout, dtype=dtype, mean=mean, std=std
        )
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
