"""PyTorch batches on a device: copies, streams, conversion of images.

The CPU takes the place of a GPU; streams are simulated. Positions and errors are tested in
test_adapters.py and test_adapter_torch.py, also with a device. On a GPU, tests/device/check_cuda.py
is run by hand.
"""

import contextlib
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaded import numbers_of
from torch_data import epoch, load, read

from covey.adapters import torch as adapter
from covey.adapters import torch_device
from covey.adapters.image_format import ImageFormat
from covey.adapters.torch_device import ImageConverter, find_device, pinned_empty
from covey.errors import PlanError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Memory.


def test_memory_is_shared_and_reused(ds):
    allocated = []

    def allocate(shape, dtype):
        array = np.empty(shape, dtype)
        allocated.append(array.ctypes.data)
        return array

    loader = load(ds, steps_per_epoch=400, threads=2, prefetch=3).copy(allocate=allocate)
    for x, y in loader.to_torch(device="cpu"):
        assert {x.data_ptr(), y.data_ptr()} <= set(allocated)
    assert len(allocated) <= 2 * 40  # prefetched, copied, and in the hands of the caller


def test_pinned_arrays_can_be_reused(ds, monkeypatch):
    empty, pinned = torch.empty, []

    def unpinned(*args, pin_memory=False, **options):  # without a GPU there is no pinned memory
        pinned.append(pin_memory)
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", unpinned)
    array = pinned_empty((3, 2), np.dtype(np.float32))
    assert array[...].base is array
    assert (array.shape, array.dtype, pinned) == ((3, 2), np.float32, [True])
    options = {"steps_per_epoch": 100, "threads": 2, "prefetch": 2}
    kept = list(load(ds, **options).copy(allocate=pinned_empty))
    assert [numbers_of(x) for x, _ in kept] == load(ds).plan.batches(0, 100).tolist()
    assert pinned_empty((2,), np.dtype("M8[s]")).dtype == "M8[s]"


def test_batches_that_are_copied_ahead(ds):
    built = []

    def record(x, y, step):
        built.append(step)
        return x, y

    loader = load(ds, steps_per_epoch=100, batch_transform=record, threads=0)
    for step, _ in enumerate(loader.to_torch(device="cpu"), 1):
        assert len(built) == min(step + 2, 100)
        assert loader.step == step


# Streams.


class Streams:
    """The module of a device with streams, which records what happens on them."""

    def __init__(self):
        self.log = []
        self.unfinished = 0
        self._current = self.consumer = self.Stream(None)

    def Stream(self, device, priority=0):  # noqa: N802
        return Stream(self, priority)

    def current_device(self):
        return 0

    def current_stream(self, device):
        return self._current

    @contextlib.contextmanager
    def stream(self, stream):
        before, self._current = self._current, stream
        yield
        self._current = before


class Stream:
    def __init__(self, streams, priority):
        self.streams, self.priority = streams, priority

    def record_event(self):
        self.streams.unfinished += 1
        assert self.streams.unfinished <= 3
        self.streams.log.append(("record", self.priority))
        return Event(self.streams)

    def wait_event(self, event):
        self.streams.log.append(("wait", self.priority))


class Event:
    def __init__(self, streams):
        self._streams = streams

    def synchronize(self):
        self._streams.unfinished -= 1


@pytest.fixture
def streams(monkeypatch):
    streams, empty = Streams(), torch.empty
    for module in (adapter, torch_device):
        monkeypatch.setattr(module, "streams_of", lambda device: streams)

    def allocate(*args, pin_memory=False, **options):
        streams.log += [("pinned", None)] * pin_memory
        return empty(*args, **options)

    def record_stream(tensor, stream):
        streams.log.append(("used", stream.priority))

    def copy(tensor, device, non_blocking=False):
        streams.log.append(("copy" if non_blocking else "blocking", streams._current.priority))
        return tensor.clone()

    monkeypatch.setattr(torch, "empty", allocate)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    return streams


@pytest.mark.parametrize("stop", [1, 4, None])
def test_copies_run_on_a_stream_of_their_own(ds, streams, stop):
    batches = iter(load(ds, threads=2).to_torch(device="cpu"))
    found = read(itertools.islice(batches, stop))
    del batches
    assert found == epoch(load(ds).plan, 0)[:stop]
    events = Counter(streams.log)
    sent, returned = events["record", -1], len(found)
    assert returned <= sent <= returned + 3
    assert events["copy", -1] == 2 * sent  # x and y
    assert events["wait", 0] >= returned
    assert events["used", 0] == 2 * events["wait", 0]
    assert events["pinned", None] > 0
    assert streams.unfinished == 0  # also of an iteration that was abandoned


def test_large_batches_of_hooks_are_pinned(ds, streams, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self.shape) or self)

    def hook(x, y):
        return np.zeros((8, 64 << 10), np.uint8), y

    for _ in load(ds, batch_transform=hook).to_torch(device="cpu"):
        pass
    assert pinned == [(8, 64 << 10)] * 7


def test_devices(ds, monkeypatch):
    assert find_device("cpu") == find_device(torch.device("cpu")) == torch.device("cpu")
    for name in ("mps", "xpu", "cuda", "cuda:99", "gpu", "meta", 1.5):
        with pytest.raises(PlanError) as caught:
            find_device(name)
        assert (caught.value.option, caught.value.found) == ("device", str(name))
    for name in ("mps", "xpu", "cuda"):
        monkeypatch.setattr(getattr(torch, name), "device_count", lambda: 2)
        assert find_device(f"{name}:1") == torch.device(name, 1)
        assert (torch_device.streams_of(find_device(name)) is None) == (name == "mps")
    assert read(load(ds).to_torch(device=torch.device("cpu"))) == epoch(load(ds).plan, 0)


# Conversion of images.


UNITS = {"uint8": 255, "uint16": 65535, "float32": 1}


def test_scaled_integers_are_those_of_torchvision():
    values = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        found = ImageConverter(ImageFormat(dtype=dtype))(values)
        # torchvision.transforms.v2.functional.to_dtype_image
        assert torch.equal(found, values.to(dtype).mul_(1.0 / 255))


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(0.01, 10)), min_size=1, max_size=4),
    st.sampled_from(["uint8", "uint16", "float32"]),
)
def test_normalization_within_the_documented_error(channels, kind):
    mean, std = np.array(channels).T
    levels = torch.linspace(0, UNITS[kind], 256).to(getattr(torch, kind))
    x = levels.view(1, 16, 16, 1).expand(1, 16, 16, len(mean)).contiguous()
    found = ImageConverter(ImageFormat(mean=mean, std=std))(x).double()
    expected = (x.double() / UNITS[kind] - torch.tensor(mean)) / torch.tensor(std)
    bound = 2**-22 * (1 + np.abs(mean)) / std
    assert bool(((found - expected).abs() <= torch.tensor(bound)).all())


@pytest.mark.parametrize(
    ("option", "value"),
    [("layout", "NCHW"), ("dtype", "float32"), ("mean", 0.5), ("std", 0.5)],
)  # fmt: skip
def test_options_that_require_a_device(ds, option, value):
    with pytest.raises(PlanError, match="pass device=") as caught:
        load(ds).to_torch(**{option: value})
    assert caught.value.option == option
