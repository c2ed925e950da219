"""PyTorch: a ``DataLoader`` over the batches of a loader, and samplers for other datasets.

The main process draws the steps, and each worker builds the batch of the step that it receives: a
batch is a function of its step, so that processes share nothing else::

    StepSampler (main process)  --BatchRequest-->  StepDataset (any process)  --tensors-->  caller

Without workers, the threads of the loader build the batches, and nothing is sent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError(
        "covey.adapters.torch requires PyTorch; install it with `pip install 'covey[torch]'`",
        name="torch",
    ) from error

from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

from covey.adapters import convert
from covey.adapters.image_format import ImageFormat, ImageKeywords, Layout
from covey.adapters.torch_device import (
    DeviceCopier,
    copied_ahead,
    find_device,
    pinned_empty,
    streams_of,
)
from covey.adapters.torch_samplers import (
    BalancedBatchSampler,
    EpochSampler,
    MPerClassError,
    MPerClassSampler,
    PlanBatchSampler,
    find_rank,
)
from covey.arrays import RaggedArray, StringArray
from covey.errors import PlanError, check
from covey.loader import Loader
from covey.loader.prefetch import BatchBuilder
from covey.plan import Plan
from covey.plan import state as states

__all__ = [
    "BalancedBatchSampler",
    "BatchDataLoader",
    "MPerClassError",
    "MPerClassSampler",
    "PlanBatchSampler",
    "StepDataset",
    "StepSampler",
    "tensor",
    "to_torch",
]

_check = partial(check, error=PlanError)

# Options of a DataLoader that the batches of a loader determine.
_DETERMINED = ("batch_size", "batch_sampler", "collate_fn", "dataset", "drop_last", "sampler",
               "shuffle")  # fmt: skip


class TorchKeywords(ImageKeywords, total=False):
    """Keyword arguments of :func:`to_torch`."""

    device: Any
    num_workers: int
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool


def to_torch(
    loader: Loader,
    *,
    device: Any = None,
    layout: Layout = "NHWC",
    dtype: Any = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    **dataloader_options: Any,
) -> BatchDataLoader:
    """Return a ``DataLoader`` over the batches of a loader.

    Each iteration is the next epoch, beginning at the position of the loader, which advances with
    the batches that are returned. If neither `rank` nor `world_size` was given to the loader, it
    takes the part of this process as soon as ``torch.distributed`` is initialised, here or by a
    trainer, or in a worker of Ray Train; with accelerate, ``Accelerator.prepare`` divides the
    batches instead.

    With `device`, two batches are copied to it before they are requested. Copies to a GPU are made
    from pinned memory, on a stream of their own; the current stream waits for a batch when it is
    returned. `layout`, `dtype`, `mean` and `std` require `device`, and apply to the tensors of a
    batch that have four dimensions (rows, height, width, channels) and are of uint8, uint16 or
    floats; other tensors are only copied.

    Args:
        loader: The loader. Its `reuse_buffers` must be False.
        device: Any device of PyTorch: ``"cuda"``, ``"cuda:1"``, ``"mps"``, ``"xpu"``, ``"cpu"`` or
            a ``torch.device`` (default: tensors share the memory of the arrays of a batch).
            Without an index it is the current device when an iteration begins. ``"cpu"`` does the
            same as a GPU, without streams.
        layout: Order of the dimensions of images: ``"NHWC"``, or ``"NCHW"``, which is a view in the
            memory format ``torch.channels_last``.
        dtype: Floating point type of images, such as ``torch.float16``. Integers are scaled to
            [0, 1], as by ``torchvision.transforms.v2.ToDtype(dtype, scale=True)``.
        mean: Mean of each channel, as for ``torchvision.transforms.v2.Normalize``: the result is
            ``(x / 255 - mean) / std`` (65535 for uint16), computed in float32. It
            differs from torchvision by less than ``2**-22 * (1 + abs(mean)) / std``.
        std: Standard deviation of each channel.
        dataloader_options: ``num_workers``, ``pin_memory``, ``prefetch_factor``,
            ``persistent_workers`` and others of ``torch.utils.data.DataLoader``.

    Raises:
        PlanError: If buffers are reused, or an option is invalid or determined by the batches.

    >>> import covey
    >>> birds = ({"size": n, "species": n % 3} for n in range(30))
    >>> _ = covey.write(birds, "birds", split="train", label="species", progress=False)
    >>> next(iter(to_torch(covey.open("birds").batches(2, 2, seed=1))))
    (tensor([11,  5,  7, 28]), tensor([2, 2, 1, 1]))
    """
    options = loader.options
    reason = "a tensor would share the memory of a batch that is overwritten"
    _check("reuse_buffers", True, not options.reuse_buffers, "False", reason=reason)
    for option, found in dataloader_options.items():
        reason = "the batches of the loader determine it"
        _check(option, found, option not in _DETERMINED, "omitted", reason=reason)
    given = {"layout": layout, "dtype": dtype, "mean": mean, "std": std}
    remedy = "pass device='cpu', or another device="
    for option, found in given.items() if device is None else ():
        is_default = found is None or (option == "layout" and found == "NHWC")
        _check(option, found, is_default, "omitted without device=", remedy=remedy)
    images = ImageFormat(layout, dtype, mean, std)
    if device is not None:
        device = find_device(device)
    workers = dataloader_options.get("num_workers", 0)
    if workers > 0:
        if not (options.transform or options.batch_transform or options.augmenter):
            warnings.warn(
                f"num_workers={workers} without a hook in Python: each batch is sent to this "
                "process, which takes up to 14 times as long as to build it with the threads of "
                "the loader; omit num_workers",
                stacklevel=3,
            )
        if device is not None and streams_of(device) is not None:
            dataloader_options.setdefault("pin_memory", True)
    dataset = StepDataset(loader)
    # One request per batch, not batch_size=None: wrappers that rebuild a DataLoader from its
    # batch_sampler keep it.
    batches = BatchDataLoader(
        dataset,
        batch_size=1,
        sampler=StepSampler(loader, dataset),
        collate_fn=_only,
        **dataloader_options,
    )
    batches.device, batches.images = device, images
    return batches


def _only(batches: list[Any]) -> Any:
    """Return the only item of a list."""
    (batch,) = batches
    return batch


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
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader.copy()
        self._weights: Sequence[Any] = states.save_weights(loader.plan)
        self._batches: Iterator[Any] = iter(())
        self._next = -1  # the batch that `_batches` yields next

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return len(self._loader)

    def __getitem__(self, step: int | BatchRequest) -> Any:
        plan = self._loader.plan
        if not isinstance(step, BatchRequest):
            step = BatchRequest(plan.batch_at(step), plan.rank, plan.world_size, self._weights)
        if (step.rank, step.world_size) != (plan.rank, plan.world_size):
            self._loader.set_rank(step.rank, step.world_size)
            self._next = -1
        if step.weights != self._weights:
            plan = states.load_weights(self._loader.plan, list(step.weights))
            self._loader, self._weights, self._next = self._loader.copy(plan=plan), step.weights, -1
        if get_worker_info() is None:
            return _tensors(self._read(step.batch))
        build = BatchBuilder(self._loader.format, self._loader.plan, step.batch)
        return convert(build(0), send)

    def _read(self, batch: int) -> Any:
        if batch == self._next:
            self._next += self._loader.plan.batches_per_step
            for built in self._batches:  # not if the epoch has ended
                return built
        self._batches = iter(self._loader.copy(batch=batch))
        self._next = batch + self._loader.plan.batches_per_step
        return next(self._batches)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepDataset, (self._loader,)


class StepSampler(EpochSampler[BatchRequest], DistributedSampler[BatchRequest]):
    """Draws the steps of a loader, one epoch per iteration; the loader has the position.

    It is a ``DistributedSampler`` because the steps are those of one rank already: trainers that
    wrap samplers for several processes leave it as it is.

    Args:
        loader: The loader, whose position it advances.
        dataset: The dataset that it draws from.
    """

    def __init__(self, loader: Loader, dataset: StepDataset) -> None:
        plan = loader.plan
        DistributedSampler.__init__(self, dataset, plan.world_size, plan.rank, shuffle=False)
        EpochSampler.__init__(self, loader)
        self._loader = loader
        self._dataset = dataset
        self._weights: tuple[Plan | None, list[Any]] = (None, [])
        self._update_rank()

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        self._update_rank()
        return super().__len__()

    def __reduce__(self) -> tuple[Any, ...]:
        return StepSampler, (self._loader, self._dataset)

    def begin(self) -> range:
        self._loader.close()
        self._update_rank()
        return super().begin()

    def items(self, batch: int) -> list[BatchRequest]:
        plan = self.plan
        if plan is not self._weights[0]:
            self._weights = plan, states.save_weights(plan)
        return [BatchRequest(batch, plan.rank, plan.world_size, self._weights[1])]

    def read(self, batch: int, *, pinned: bool = False) -> Iterator[Any]:
        """Return an iterator over the batches from `batch` on, as tensors.

        Args:
            batch: Index of the first batch.
            pinned: Whether native threads write into pinned memory.
        """
        loader = self._loader.copy(batch=batch, allocate=pinned_empty if pinned else None)
        return map(_tensors, loader)

    def _update_rank(self) -> None:
        """Take the part of this process as soon as ``torch.distributed`` is initialised."""
        if not self._loader.options.has_rank:
            found = find_rank()
            if found != (self.plan.rank, self.plan.world_size):
                self._loader.set_rank(*found)
        self.rank, self.num_replicas = self.plan.rank, self.plan.world_size


class BatchDataLoader(DataLoader[Any]):
    """A ``DataLoader`` with the position of a loader; :func:`to_torch` returns one.

    The position counts the batches that the caller has received, whatever workers have prefetched.
    ``dataset`` and ``sampler`` can be used with another class:
    ``StatefulDataLoader(batches.dataset, sampler=batches.sampler, batch_size=None)``.
    """

    device: torch.device | None = None
    """The device that batches are copied to; None leaves them where they are."""
    images: ImageFormat
    """Conversion of images on the device."""

    def __iter__(self) -> Any:
        """Iterate over the next epoch, which begins with the first batch that is requested."""
        # A wrapper may have rebuilt it with another sampler.
        return self._iterate() if isinstance(self.sampler, StepSampler) else super().__iter__()

    def _iterate(self) -> Iterator[Any]:
        sampler = self._steps
        steps = sampler.begin()
        plan, batches = sampler.plan, self._start(steps.start)
        for batch in steps:
            if sampler.plan is not plan:
                if self.num_workers > 0:
                    raise PlanError(
                        "class weights changed while workers build batches with the previous ones",
                        remedy="change them between epochs, or use num_workers=0",
                    )
                plan = sampler.plan
                if not self.pin_memory:
                    batches = self._start(batch)
            try:
                built = next(batches)
            except BaseException:
                sampler.reach(batch, 0)  # workers may have drawn further steps
                raise
            sampler.reach(batch, 1)
            yield built
            del built
        next(batches, None)  # ends the workers
        sampler.end()

    def _start(self, batch: int) -> Iterator[Any]:
        """Return the batches from `batch` on, where the position is."""
        device = self.device
        if self.num_workers > 0 or self.pin_memory:
            batches: Iterator[Any] = super().__iter__()
        else:
            pinned = device is not None and streams_of(device) is not None
            batches = self._steps.read(batch, pinned=pinned)
        return (
            batches if device is None else copied_ahead(batches, DeviceCopier(device, self.images))
        )

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


# Tensors.


def _tensors(batch: Any) -> Any:
    """Return a batch as tensors."""
    return convert(batch, tensor)


def tensor(value: Any) -> Any:
    """Return a tensor that shares the memory of an array, unless PyTorch cannot use it.

    Strings and byte strings become lists, and ragged arrays lists of tensors, as in the collate
    functions of PyTorch. Values without a tensor type are returned unchanged.

    >>> tensor(np.arange(3))
    tensor([0, 1, 2])
    >>> tensor(RaggedArray.of([[1, 2], [3]]))
    [tensor([1, 2]), tensor([3])]
    >>> tensor(StringArray.of(["wren", "owl"]))
    ['wren', 'owl']
    """
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        try:
            # Tensors are always writable.
            return torch.from_numpy(array if array.flags.writeable else array.copy())
        except TypeError:  # PyTorch has no such dtype
            return array
        except ValueError:  # strides or byte order that tensors cannot have
            return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    if isinstance(value, StringArray):
        return value.tolist()
    return _rows(value) if isinstance(value, RaggedArray) else value


def _rows(ragged: RaggedArray) -> list[Any]:
    values = tensor(ragged.values)
    if isinstance(ragged.values, StringArray):
        return ragged.tolist()
    if not isinstance(values, torch.Tensor):
        return [tensor(row) for row in ragged]
    # Views of one tensor: a worker sends them as one file instead of one per row.
    rows = [values[first:end] for first, end in pairwise(ragged.row_splits.tolist())]
    shapes = ragged.row_shapes
    if shapes is None:
        return rows
    listed = shapes.tolist() if isinstance(shapes, np.ndarray) else [shapes] * len(rows)
    return [row.reshape(tuple(shape)) for row, shape in zip(rows, listed, strict=True)]


# A worker sends smaller arrays through a pipe. PyTorch would create a file in shared memory, and a
# connection to pass it on, which takes four times as long for small arrays.
_MAX_PIPED_BYTES = 1 << 20


def send(value: Any) -> Any:
    """Return what a worker sends for a value: it arrives as the tensor of the value."""
    converted = tensor(value)
    is_small = isinstance(converted, torch.Tensor) and converted.nbytes <= _MAX_PIPED_BYTES
    return _Piped(value) if is_small and isinstance(value, np.ndarray) else converted


class _Piped:
    """An array that is unpickled as a tensor."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __reduce__(self) -> tuple[Any, ...]:
        return tensor, (self._array,)
