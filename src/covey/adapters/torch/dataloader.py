"""A ``DataLoader`` over the batches of a loader.

The main process draws the steps, and each worker builds the batch of the step that it receives: a
batch is a function of its step, so that processes share nothing else::

    StepSampler (main process)  --BatchRequest-->  StepDataset (any process)  --tensors-->  caller

With ``device=``, a thread of the main process copies the tensors to the device on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from covey.adapters import convert
from covey.adapters.step_reader import StepReader
from covey.adapters.torch.device import DeviceCopier, DeviceOptions, pinned_empty
from covey.adapters.torch.prefetch import STOP_TIMEOUT_S, DevicePrefetcher
from covey.adapters.torch.samplers import EpochIterator, EpochSampler, EpochSteps, find_rank
from covey.adapters.torch.tensors import send, tensor
from covey.errors import PlanError
from covey.loader import Loader
from covey.loader import state as states
from covey.loader.prefetch import BatchBuilder
from covey.plan import Plan


class BatchRequest(NamedTuple):
    """What a worker needs to build a batch."""

    batch: int
    """Index of the first batch of the step, over all ranks."""
    rank: int
    world_size: int
    weights: Sequence[Any]
    """Changes of class weights, as in a state."""


class StepDataset(Dataset[Any]):
    """Map-style dataset: ``dataset[step]`` is the batch of a step, as tensors.

    In the main process, consecutive steps are prefetched by the threads of the loader. A worker
    builds each batch in its only thread.

    Args:
        loader: The loader; its position does not change.
        is_pinned: Whether native threads of the main process write into pinned memory.
    """

    def __init__(self, loader: Loader, *, is_pinned: bool = False) -> None:
        self._loader = loader.copy(allocate=pinned_empty if is_pinned else None)
        self._is_pinned = is_pinned
        self._weights: Sequence[Any] = states.save_weights(loader.plan)
        self._reader: StepReader | None = None

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return len(self._loader)

    def __getitem__(self, step: int | BatchRequest) -> Any:
        request = self._prepare(step)
        if get_worker_info() is not None:
            batch, to_tensor = self._build(request), send
        else:
            if self._reader is None:
                self._reader = StepReader(self._loader)
            batch, to_tensor = self._reader.read(request.batch), tensor
        return convert(batch, to_tensor)

    def _build(self, request: BatchRequest) -> Any:
        return BatchBuilder(self._loader.format, self._loader.plan, request.batch)(0)

    def _prepare(self, step: int | BatchRequest) -> BatchRequest:
        """Take the rank and the class weights of a request."""
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
        return step

    def close(self) -> None:
        """Stop prefetching."""
        if self._reader is not None:
            self._reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StepDataset, is_pinned=self._is_pinned), (self._loader,)


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
        self.rest: EpochSteps | None = None
        """Steps of the next iteration, if it continues another one."""
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
        if not self._loader.options.has_rank:
            found = find_rank()
            if found != (self.plan.rank, self.plan.world_size):
                self._loader.set_rank(*found)
        self.rank, self.num_replicas = self.plan.rank, self.plan.world_size


def weights_error() -> PlanError:
    """Return the error of class weights that changed too late."""
    return PlanError(
        "class weights changed while workers build batches with the previous ones",
        remedy="change them between epochs, or use num_workers=0",
    )


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
            raise weights_error()
        request = super().__next__()
        self._plan, sampler.epoch_steps = sampler.plan, self._epoch
        return request

    def _begin(self) -> EpochSteps:
        rest, self._sampler.rest = self._sampler.rest, None
        if rest is None:
            return super()._begin()
        self._epoch = rest
        return rest

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

    device_options: DeviceOptions | None = None
    """The device that batches are copied to; None leaves them where they are."""

    def __iter__(self) -> Any:
        """Iterate over the next epoch, which begins with the first batch that is requested."""
        if not isinstance(self.sampler, StepSampler) or not isinstance(self.dataset, StepDataset):
            return super().__iter__()  # rebuilt by a wrapper with another sampler
        if self.device_options is None:
            return CountingIterator(super().__iter__, self.sampler, self.dataset)
        has_workers = self.num_workers > 0
        return DeviceIterator(self._prefetch, self.sampler, self.dataset, has_workers=has_workers)

    def _prefetch(self) -> DevicePrefetcher:
        assert self.device_options is not None
        copier = DeviceCopier(self.device_options)
        return DevicePrefetcher(super().__iter__(), copier)

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
        self._start = start
        self._has_begun = False
        self._sampler = sampler
        self._dataset = dataset
        self._batches: Iterator[Any] = iter(())
        self._epoch: EpochSteps | None = None
        self._steps = 0

    def __next__(self) -> Any:
        try:
            batch = next(self._batches) if self._has_begun else self._first()
        except StopIteration:
            self._sampler.cursor.end()
            self._epoch = None
            raise
        except Exception:  # the next batch is that of the next step
            self._advance()
            raise
        self._advance()
        return batch

    def _first(self) -> Any:
        self._has_begun = True
        # The steps of this iteration are drawn first here, by the main process in any case.
        self._sampler.is_counted = True
        try:
            self._batches = self._start()
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


class DeviceIterator(CountingIterator):
    """One iteration over batches that a thread copies to a device.

    The thread requests steps before the caller does. If they are no longer the right ones, because
    class weights were changed, an exception interrupted the iteration, or the process was forked,
    another thread begins with the step that follows those that were returned.

    Args:
        start: Function that returns a :class:`DevicePrefetcher`.
        sampler: The sampler, whose position is advanced.
        dataset: The dataset, which stops prefetching if the iteration is abandoned.
        has_workers: Whether worker processes build batches.
    """

    _batches: DevicePrefetcher

    def __init__(
        self,
        start: Callable[[], DevicePrefetcher],
        sampler: StepSampler,
        dataset: StepDataset,
        *,
        has_workers: bool,
    ) -> None:
        super().__init__(start, sampler, dataset)
        self._has_workers = has_workers
        self._plan: Plan | None = None
        self._is_interrupted = False

    def __next__(self) -> Any:
        if self._is_outdated():
            if self._has_workers and self._plan is not self._sampler.plan:
                raise weights_error()
            self._restart()
        try:
            return super().__next__()
        except Exception:
            raise
        except BaseException:  # a batch may have been removed from the queue
            self._is_interrupted = True
            raise

    def _first(self) -> Any:
        self._plan = self._sampler.plan
        try:
            return super()._first()
        finally:
            self._plan = self._sampler.plan  # the rank is known now

    def _is_outdated(self) -> bool:
        """Return whether the next batch in the queue is not the next one of the position."""
        if not self._has_begun or self._epoch is None:
            return False
        is_changed = self._plan is not self._sampler.plan
        return is_changed or self._is_interrupted or self._batches.is_inherited

    def _restart(self) -> None:
        assert self._epoch is not None
        self._batches.close()
        first = self._epoch.batch_after(self._steps, self._sampler.plan)
        self._sampler.rest = EpochSteps(first, max(0, self._epoch.steps - self._steps))
        self._steps, self._has_begun, self._is_interrupted = 0, False, False

    def __del__(self) -> None:
        if isinstance(getattr(self, "_batches", None), DevicePrefetcher):
            self._batches.close(STOP_TIMEOUT_S)  # before the dataset, which the thread uses
        super().__del__()


def make_dataloader(
    loader: Loader,
    options: DeviceOptions | None = None,
    **dataloader_options: Any,
) -> BatchDataLoader:
    """Return the ``DataLoader`` of a loader.

    Args:
        loader: The loader.
        options: The device that batches are copied to (default: none).
        dataloader_options: Other options of the ``DataLoader``.
    """
    is_pinned = options is not None and options.is_cuda
    dataset = StepDataset(loader, is_pinned=is_pinned)
    if is_pinned and dataloader_options.get("num_workers", 0) > 0:
        dataloader_options.setdefault("pin_memory", True)
    # One request per batch, not batch_size=None: wrappers that rebuild a DataLoader from its
    # batch_sampler keep it.
    batches = BatchDataLoader(
        dataset,
        batch_size=1,
        sampler=StepSampler(loader, dataset),
        collate_fn=_only,
        **dataloader_options,
    )
    batches.device_options = options
    return batches


def _only(batches: list[Any]) -> Any:
    """Return the only item of a list."""
    (batch,) = batches
    return batch
