"""Copies of batches on a device: pinned memory, a stream of their own, conversion of images."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from covey.adapters import convert
from covey.adapters.conversion import IMAGE_SCALES, ImageConversion
from covey.errors import PlanError

# Without type annotations.
_stream: Any = torch.cuda.Stream
_event: Any = torch.cuda.Event

# CUDA stages smaller pageable copies itself, without waiting for the device.
_MIN_PINNED_BYTES = 64 << 10

# Number of copies in flight. The host batch of each is kept, of the few that the loader lends.
_MAX_IN_FLIGHT = 2


@dataclass(frozen=True)
class DeviceOptions:
    """Where batches are stored, and how their images are converted there.

    Args:
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or a ``torch.device``. ``"cuda"`` is the current
            device when an iteration begins.
        images: Conversion of images.

    Raises:
        PlanError: If the device is invalid or not available.
    """

    device: Any
    images: ImageConversion = field(default_factory=ImageConversion)

    def __post_init__(self) -> None:
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError):
            device = torch.device("meta")
        count = torch.cuda.device_count() if device.type == "cuda" else 0
        if device.type != "cpu" and not (device.type == "cuda" and (device.index or 0) < count):
            found = f"{count} CUDA devices are available" if device.type == "cuda" else ""
            raise PlanError(
                found,
                option="device",
                found=str(self.device),
                allowed="'cpu', 'cuda' or 'cuda:<index>'",
            )
        object.__setattr__(self, "device", device)

    @property
    def is_cuda(self) -> bool:
        """Whether batches are copied to a GPU."""
        return bool(self.device.type == "cuda")

    def resolved(self) -> torch.device:
        """Return the device with its index."""
        if self.is_cuda and self.device.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self.device)


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        return None


def pinned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array in pinned memory, from which copies to a GPU are asynchronous.

    Types that PyTorch does not have are allocated in other memory.
    """
    kind = _torch_dtype(np.dtype(dtype))
    if kind is None:
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

    def __init__(self, conversion: ImageConversion) -> None:
        self._conversion = conversion
        name = conversion.result_dtype
        self._dtype: torch.dtype | None = None if name is None else getattr(torch, name)
        # Half precision is computed in float32.
        self._compute = torch.float64 if self._dtype == torch.float64 else torch.float32
        self._coefficients: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 4:
            return x
        kind = str(x.dtype).removeprefix("torch.")
        if kind not in IMAGE_SCALES:
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
            a, b = self._conversion.coefficients(kind, x.shape[3])
            self._coefficients[key] = (
                torch.tensor(a, dtype=self._compute, device=x.device),
                torch.tensor(b, dtype=self._compute, device=x.device),
            )
        scale, shift = self._coefficients[key]
        if x.dtype != torch.uint8:  # uint16 and float64 are not promoted to float32
            x = x.to(self._compute)
        # Types are converted while the kernel reads and writes.
        out = torch.empty(x.shape, dtype=dtype, device=x.device)
        return (
            torch.addcmul(shift, x, scale, out=out)
            if is_normalized
            else torch.mul(x, scale, out=out)
        )


class Sent(NamedTuple):
    """A batch on the device."""

    batch: Any
    tensors: list[torch.Tensor]
    """Its tensors on a GPU."""
    copied: Any
    """Event after the last operation on them, or None."""


class DeviceCopier:
    """Copies batches to a device, on a stream of its own if it is a GPU.

    One thread at a time calls :meth:`send`; the thread that uses a batch calls :meth:`receive`.

    Args:
        options: The device, and the conversion of images.
    """

    def __init__(self, options: DeviceOptions) -> None:
        self.device = options.resolved()
        self._convert = None if options.images.is_identity else ImageConverter(options.images)
        # High priority: the stream of the consumer waits for this one, never the reverse.
        self._stream: Any = _stream(self.device, priority=-1) if options.is_cuda else None
        self._in_flight: deque[tuple[Any, Any]] = deque()

    def send(self, batch: Any) -> Sent:
        """Start to copy a batch, and return it.

        Args:
            batch: Nested tensors on the CPU; it is referenced until it is copied.
        """
        tensors: list[torch.Tensor] = []
        if self._stream is None:
            return Sent(self._build(batch, tensors), [], None)
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            result = self._build(batch, tensors)
            copied = _event(blocking=True)
            copied.record(self._stream)
        self._in_flight.append((copied, batch))
        del batch
        self.wait(_MAX_IN_FLIGHT - 1)
        return Sent(result, tensors, copied)

    def receive(self, sent: Sent) -> Any:
        """Return a batch whose tensors may be used on the current stream of the calling thread."""
        if sent.copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(sent.copied)
            for each in sent.tensors:
                each.record_stream(stream)  # until then, their memory is not reused
        return sent.batch

    def wait(self, remaining: int = 0) -> None:
        """Wait until no more than `remaining` copies are in flight, and drop their host batches."""
        while len(self._in_flight) > remaining:
            copied, _ = self._in_flight.popleft()
            copied.synchronize()

    def _build(self, batch: Any, tensors: list[torch.Tensor]) -> Any:
        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            moved = self._move(value)
            if self._convert is not None:
                moved = self._convert(moved)
            if moved.is_cuda:
                tensors.append(moved)
            return moved

        return convert(batch, move)

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device == self.device:
            return tensor
        if tensor.nbytes > _MIN_PINNED_BYTES and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def __del__(self) -> None:
        # Native threads must not write into memory that is being copied.
        with contextlib.suppress(Exception):
            self.wait()
