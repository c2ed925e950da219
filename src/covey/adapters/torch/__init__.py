"""PyTorch: a ``DataLoader`` over the batches of a loader, and samplers for other datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "covey.adapters.torch requires PyTorch; install it with `pip install 'covey[torch]'`",
        name="torch",
    ) from error

from covey.adapters.conversion import ImageConversion, Layout
from covey.adapters.torch.dataloader import (
    BatchDataLoader,
    StepDataset,
    StepSampler,
    make_dataloader,
)
from covey.adapters.torch.device import DeviceOptions
from covey.adapters.torch.samplers import (
    BalancedBatchSampler,
    MPerClassError,
    MPerClassSampler,
    PlanBatchSampler,
)
from covey.adapters.torch.tensors import tensor
from covey.errors import PlanError
from covey.loader import Loader

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

# Options of a DataLoader that the batches of a loader determine.
_DETERMINED = ("batch_size", "batch_sampler", "collate_fn", "dataset", "drop_last", "sampler",
               "shuffle")  # fmt: skip


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

    With `device`, a thread copies batches to it before they are requested. Copies to a GPU are made
    from pinned memory, on a stream of their own; the current stream waits for a batch when it is
    returned. `layout`, `dtype`, `mean` and `std` require `device`, and apply to the tensors of a
    batch that have four dimensions (rows, height, width, channels) and are of uint8, uint16 or
    floats; other tensors are only copied.

    Args:
        loader: The loader. Its `reuse_buffers` must be False.
        device: ``"cuda"``, ``"cuda:1"``, ``"cpu"`` or a ``torch.device`` (default: tensors share
            the memory of the arrays of a batch). ``"cuda"`` is the current device when an iteration
            begins. ``"cpu"`` does the same as a GPU, without streams.
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
        PlanError: If buffers are reused, an option is invalid or determined by the batches.

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
    images = ImageConversion(layout, dtype, mean, std)
    if device is None:
        _check_device_options(images)
        return make_dataloader(loader, **dataloader_options)
    options = DeviceOptions(device, images)
    return make_dataloader(loader, options, **dataloader_options)


def _check_device_options(images: ImageConversion) -> None:
    """Raise PlanError if an option that requires a device is given."""
    given = {
        "layout": images.layout if images.layout != "NHWC" else None,
        "dtype": images.dtype,
        "mean": images.mean,
        "std": images.std,
    }
    for option, found in given.items():
        if found is not None:
            raise PlanError(
                option=option,
                found=found,
                allowed="omitted without device=",
                remedy="pass device='cpu', or another device=",
            )
