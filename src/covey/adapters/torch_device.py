"""PyTorch batches on a device: copied before they are requested, and converted there."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from covey.adapters import convert, made_ahead
from covey.adapters.image_format import IMAGE_SCALES, ImageFormat
from covey.errors import PlanError

# Number of batches that are copied before they are requested.
_AHEAD = 2

# Maximum number of unfinished copies. The host batch of each is kept, of the few that the loader
# lends.
_MAX_IN_FLIGHT = 2

# Smaller pageable copies are staged by the driver, without waiting for the device.
_MIN_PINNED_BYTES = 64 << 10


def find_device(device: Any) -> torch.device:
    """Return the argument `device` as a device of PyTorch.

    Raises:
        PlanError: If it is not the name of a device, or not available.
    """
    with contextlib.suppress(AttributeError, RuntimeError, TypeError):
        found = torch.device(device)
        # Counting does not initialise the device.
        if (found.index or 0) < getattr(torch, found.type).device_count():
            return found
    raise PlanError(
        option="device",
        found=str(device),
        allowed="an available device of PyTorch, such as 'cpu', 'cuda', 'cuda:1', 'mps', 'xpu'",
    )


def streams_of(device: torch.device) -> Any:
    """Return the module with the streams of a device, such as ``torch.cuda``; None without them."""
    module = getattr(torch, device.type)
    return module if device.type != "cpu" and hasattr(module, "Stream") else None


def pinned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array in pinned memory, from which copies to a device are asynchronous.

    Types that PyTorch does not have are allocated in other memory.
    """
    try:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return np.empty(shape, dtype)
    pinned: NDArray[Any] = torch.empty(shape, dtype=kind, pin_memory=True).numpy()
    return pinned


class ImageConverter:
    """Converts images on their device, with one kernel.

    ``x * a + b`` with precomputed a and b differs from ``(x / 255 - mean) / std`` by less than
    ``2**-22 * (1 + abs(mean)) / std`` in float32: 2 ulp of the largest values.

    Args:
        conversion: The conversion.
    """

    def __init__(self, conversion: ImageFormat) -> None:
        self._conversion = conversion
        name = conversion.dtype
        self._dtype: torch.dtype | None = None if name is None else getattr(torch, name)
        # Half precision is computed in float32.
        self._compute = torch.float64 if self._dtype == torch.float64 else torch.float32
        self._coefficients: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        kind = str(x.dtype).removeprefix("torch.")
        if x.ndim != 4 or kind not in IMAGE_SCALES:
            return x
        if self._dtype is not None:
            x = self._rescale(x, kind, self._dtype)
        return x.permute(0, 3, 1, 2) if self._conversion.layout == "NCHW" else x

    def _rescale(self, x: torch.Tensor, kind: str, dtype: torch.dtype) -> torch.Tensor:
        is_normalized = self._conversion.is_normalized
        if x.is_floating_point() and not is_normalized:
            return x.to(dtype)
        key = kind, x.shape[3], x.device
        if key not in self._coefficients:
            found = self._conversion.coefficients(kind, x.shape[3])
            self._coefficients[key] = [
                torch.tensor(each, dtype=self._compute, device=x.device) for each in found
            ]
        scale, shift = self._coefficients[key]
        if x.dtype != torch.uint8:  # uint16 and float64 are not promoted to float32
            x = x.to(self._compute)
        # Types are converted while the kernel reads and writes.
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        if is_normalized:
            return torch.addcmul(shift, x, scale, out=out)
        return torch.mul(x, scale, out=out)


class DeviceCopier:
    """Copies batches to a device, on a stream of its own if the device has streams.

    Args:
        device: The device; without an index, the current one of its type.
        images: Conversion of images.
    """

    def __init__(self, device: torch.device, images: ImageFormat) -> None:
        self._device = device
        self._convert = ImageConverter(images)
        self._streams = streams_of(device)
        if self._streams is not None:
            if ":" not in str(device):
                self._device = torch.device(device.type, self._streams.current_device())
            # High priority: the stream of the consumer waits for this one, never the reverse.
            self._stream = self._streams.Stream(self._device, priority=-1)
        self._in_flight: deque[tuple[Any, Any]] = deque()

    def send(self, batch: Any) -> tuple[Any, Any]:
        """Start to copy a batch; return it, and the event after the last operation on it.

        Args:
            batch: Nested tensors on the CPU; it is referenced until it is copied.
        """
        if self._streams is None:
            return convert(batch, self._move), None
        with self._streams.stream(self._stream):
            result = convert(batch, self._move)
            copied = self._stream.record_event()
        self._in_flight.append((copied, batch))
        self.wait(_MAX_IN_FLIGHT)
        return result, copied

    def _move(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._streams is None:
            return self._convert(value.to(self._device))
        if value.nbytes > _MIN_PINNED_BYTES and not value.is_pinned():
            value = value.pin_memory()
        return self._convert(value.to(self._device, non_blocking=True))

    def receive(self, sent: tuple[Any, Any]) -> Any:
        """Return a batch whose tensors may be used on the current stream."""
        batch, copied = sent
        if self._streams is None:
            return batch
        stream = self._streams.current_stream(self._device)
        stream.wait_event(copied)

        def use(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                value.record_stream(stream)  # until then, its memory is not reused
            return value

        return convert(batch, use)

    def wait(self, remaining: int = 0) -> None:
        """Wait until at most `remaining` copies are in flight, and drop the other host batches."""
        while len(self._in_flight) > remaining:
            copied, _ = self._in_flight[0]
            copied.synchronize()
            self._in_flight.popleft()


def copied_ahead(batches: Iterator[Any], copier: DeviceCopier) -> Iterator[Any]:
    """Yield batches on a device; the next two are copied before they are requested."""
    try:
        yield from map(copier.receive, made_ahead(map(copier.send, batches), _AHEAD))
    finally:
        copier.wait()  # native threads write into the memory of a batch as soon as it is dropped
