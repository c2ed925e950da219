"""A ``DataLoader`` over the batches of a loader.

The main process draws the steps, and each worker builds the batch of the step that it receives: a
batch is a function of its step, so that processes share nothing else::

    StepSampler (main process)  --BatchRequest-->  StepDataset (any process)  --tensors-->  caller
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from covey.adapters import convert
from covey.adapters.step_reader import StepReader
from covey.adapters.torch.samplers import EpochIterator, EpochSampler, EpochSteps, find_rank
from covey.adapters.torch.tensors import send, tensor
from covey.errors import PlanError
from covey.loader import Loader
from covey.loader import state as states
from covey.loader.prefetch import BatchBuilder
from covey.plan import Plan

# Options of a DataLoader that the batches of a loader determine.
_DETERMINED = ("batch_size", "batch_sampler", "collate_fn", "dataset", "drop_last", "sampler",
               "shuffle")  # fmt: skip


class BatchRequest(NamedTuple):
    """What a worker needs to build a batch."""

    batch: int
    """Index of the first batch of the step, over all ranks."""
    rank: int
    world_size: int
    weights: Sequence[Any]
    """Changes of class weights, as in a state."""


def to_torch(loader: Loader, **dataloader_options: Any) -> BatchDataLoader:
    """Return a ``DataLoader`` over the batches of a loader.

    Each iteration is the next epoch, beginning at the position of the loader, which advances with
    the batches that are returned. If neither `rank` nor `world_size` was given to the loader, it
    takes the part of this process as soon as ``torch.distributed`` is initialised, here or by a
    trainer; with accelerate, ``Accelerator.prepare`` divides the batches instead.

    Args:
        loader: The loader. Its `reuse_buffers` must be False.
        dataloader_options: ``num_workers``, ``pin_memory``, ``prefetch_factor``,
            ``persistent_workers`` and others of ``torch.utils.data.DataLoader``.

    Raises:
        PlanError: If buffers are reused, or an option is determined by the batches.

    >>> import covey
    >>> birds = ({"size": n, "species": n % 3} for n in range(30))
    >>> _ = covey.write(birds, "birds", split="train", label="species", progress=False)
    >>> next(iter(to_torch(covey.open("birds").batches(2, 2, seed=1))))
    (tensor([11,  5,  7, 28]), tensor([2, 2, 1, 1]))
    """
    if loader.options.reuse_buffers:
        raise PlanError(
            "a tensor would share the memory of a batch that is overwritten",
            option="reuse_buffers",
            found=True,
            allowed="False",
        )
    for option in _DETERMINED:
        if option in dataloader_options:
            raise PlanError(
                "the batches of the loader determine it",
                option=option,
                found=dataloader_options[option],
                allowed="omitted",
            )
    dataset = StepDataset(loader)
    # One request per batch, not batch_size=None: wrappers that rebuild a DataLoader from its
    # batch_sampler keep it.
    return BatchDataLoader(
        dataset,
        batch_size=1,
        sampler=StepSampler(loader, dataset),
        collate_fn=_only,
        **dataloader_options,
    )


def _only(batches: list[Any]) -> Any:
    """Return the only item of a list."""
    (batch,) = batches
    return batch


class StepDataset(Dataset[Any]):
    """Map-style dataset: ``dataset[step]`` is the batch of a step, as tensors.

    In the main process, consecutive steps are prefetched by the threads of the loader. A worker
    builds each batch in its only thread.

    Args:
        loader: The loader; its position does not change.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader.copy()
        self._weights: Sequence[Any] = states.save_weights(loader.plan)
        self._reader: StepReader | None = None

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return len(self._loader)

    def __getitem__(self, step: int | BatchRequest) -> Any:
        plan = self._loader.plan
        if not isinstance(step, BatchRequest):
            step = BatchRequest(plan.batch_at(step), plan.rank, plan.world_size, self._weights)
        if (step.rank, step.world_size) != (plan.rank, plan.world_size):
            self._loader.set_rank(step.rank, step.world_size)
            self._reader = None
        if step.weights != self._weights:
            plan = states.load_weights(self._loader.plan, list(step.weights))
            self._loader, self._reader = self._loader.copy(plan=plan), None
            self._weights = step.weights
        if get_worker_info() is not None:
            build = BatchBuilder(self._loader.format, self._loader.plan, step.batch)
            return convert(build(0), send)
        if self._reader is None:
            self._reader = StepReader(self._loader)
        return convert(self._reader.read(step.batch), tensor)

    def close(self) -> None:
        """Stop prefetching."""
        if self._reader is not None:
            self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return StepDataset, (self._loader,)


class StepSampler(EpochSampler[BatchRequest], DistributedSampler[BatchRequest]):
    """Draws the steps of a loader, one epoch per iteration, and holds the position.

    It is a ``DistributedSampler`` because the steps are those of one rank already: trainers that
    wrap samplers for several processes leave it as it is.

    Args:
        loader: The loader, whose position it advances.
        dataset: The dataset that it draws from.
    """

    def __init__(self, loader: Loader, dataset: StepDataset) -> None:
        plan = loader.plan
        DistributedSampler.__init__(self, dataset, plan.world_size, plan.rank, shuffle=False)
        EpochSampler.__init__(self, loader.position)
        self._loader = loader
        self._dataset = dataset
        self._weights: tuple[Plan, list[Any]] = (plan, states.save_weights(plan))
        self.epoch_steps: EpochSteps | None = None
        """Steps of the iteration that began last."""
        self.is_counted = False
        """Whether a :class:`BatchDataLoader` counts the batches that are returned. Otherwise the
        position counts the steps that are drawn."""
        self._update_rank()

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        self._update_rank()
        return super().__len__()

    def __iter__(self) -> StepIterator:
        return StepIterator(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepSampler, (self._loader, self._dataset)

    def items(self, batch: int) -> list[BatchRequest]:
        plan = self.plan
        if plan is not self._weights[0]:
            self._weights = plan, states.save_weights(plan)
        return [BatchRequest(batch, plan.rank, plan.world_size, self._weights[1])]

    def start(self) -> None:
        """End a running iteration over the loader itself, and begin one over this sampler."""
        self._loader.close()
        self._update_rank()

    def _update_rank(self) -> None:
        """Take the part of this process as soon as ``torch.distributed`` is initialised."""
        options = self._loader.options
        if options.rank is None and options.world_size is None:
            rank, world_size = find_rank()
            if world_size > 1:
                self._loader.set_rank(rank, world_size)
        self.rank, self.num_replicas = self.plan.rank, self.plan.world_size


class StepIterator(EpochIterator[BatchRequest]):
    """One iteration over a :class:`StepSampler`."""

    _sampler: StepSampler

    def __init__(self, sampler: StepSampler) -> None:
        super().__init__(sampler)
        self._is_counted = sampler.is_counted
        self._plan: Plan | None = None

    def __next__(self) -> BatchRequest:
        sampler = self._sampler
        if self._epoch is None:
            sampler.start()
        elif sampler.plan is not self._plan and self._is_in_flight():
            raise PlanError(
                "class weights changed while workers build batches with the previous ones",
                remedy="change them between epochs, or use num_workers=0",
            )
        request = super().__next__()
        self._plan, sampler.epoch_steps = sampler.plan, self._epoch
        return request

    def _is_in_flight(self) -> bool:
        assert self._epoch is not None
        after = self._epoch.batch_after(self._drawn, self._sampler.plan)
        return self._is_counted and self._sampler.cursor.batch != after

    def _advance(self, epoch: EpochSteps) -> None:
        if not self._is_counted:
            super()._advance(epoch)

    def _end(self) -> None:
        if not self._is_counted:
            super()._end()


class BatchDataLoader(DataLoader[Any]):
    """A ``DataLoader`` with the position of a loader; :func:`to_torch` returns one.

    The position counts the batches that the caller has received, whatever workers have prefetched.
    ``dataset`` and ``sampler`` can be used with another class:
    ``StatefulDataLoader(batches.dataset, sampler=batches.sampler, batch_size=None)``.
    """

    def __iter__(self) -> Any:
        """Iterate over the next epoch, which begins with the first batch that is requested."""
        if isinstance(self.sampler, StepSampler) and isinstance(self.dataset, StepDataset):
            return CountingIterator(super().__iter__, self.sampler, self.dataset)
        return super().__iter__()  # rebuilt by a wrapper with another sampler

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with `epoch`, or at the position that was loaded within it."""
        self._steps.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a JSON object, which the loader accepts as well."""
        return self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of another loader, with any number of workers and ranks.

        Raises:
            PlanError: If it is not a valid state, or the state of other batches.
        """
        self._steps.load_state_dict(state)

    @property
    def _steps(self) -> StepSampler:
        assert isinstance(self.sampler, StepSampler), "the sampler was replaced"
        return self.sampler


class CountingIterator(Iterator[Any]):
    """One iteration over a :class:`BatchDataLoader`, which advances the position.

    Args:
        start: Function that returns the iterator of PyTorch.
        sampler: The sampler, whose position is advanced.
        dataset: The dataset, which stops prefetching if the iteration is abandoned.
    """

    def __init__(
        self, start: Callable[[], Iterator[Any]], sampler: StepSampler, dataset: StepDataset
    ) -> None:
        self._start: Callable[[], Iterator[Any]] | None = start
        self._sampler = sampler
        self._dataset = dataset
        self._batches: Iterator[Any] = iter(())
        self._epoch: EpochSteps | None = None
        self._steps = 0

    def __next__(self) -> Any:
        try:
            batch = next(self._batches) if self._start is None else self._first(self._start)
        except StopIteration:
            self._sampler.cursor.end()
            self._epoch = None
            raise
        except Exception:  # the next batch is that of the next step
            self._advance()
            raise
        self._advance()
        return batch

    def _first(self, start: Callable[[], Iterator[Any]]) -> Any:
        self._start = None
        # The steps of this iteration are drawn first here, by the main process in any case.
        self._sampler.is_counted = True
        try:
            self._batches = start()
            return next(self._batches)
        finally:
            self._sampler.is_counted = False
            self._epoch = self._sampler.epoch_steps

    def _advance(self) -> None:
        self._steps += 1
        if self._epoch is not None:
            self._sampler.cursor.advance(self._epoch, min(self._steps, self._epoch.steps))

    def __del__(self) -> None:
        if getattr(self, "_epoch", None) is not None:
            self._dataset.close()
