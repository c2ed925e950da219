"""PyTorch batches on a device: order, position, conversion of images, threads.

The CPU takes the place of a GPU: the same threads and queues, without streams. On a GPU,
tests/device/check_cuda.py is run by hand.
"""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loaded import LABELS, make_numbers, native_threads, numbers_of, settles
from opened import opened
from torch_data import STEPS, epoch, load, read
from written import fresh_process, write

from covey.adapters.conversion import ImageConversion
from covey.adapters.torch.device import DeviceCopier, DeviceOptions, ImageConverter, pinned_empty
from covey.errors import FeatureError, PlanError
from covey.plan import BalancedPlan

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def on_device(ds, **options):
    return load(ds, **options).to_torch(device="cpu")


def device_threads():
    return sum(thread.name == "covey-device" for thread in threading.enumerate())


# The contract of all adapters is tested in test_adapters.py, also with a device.


def test_options_of_the_dataloader_are_kept(ds):
    batches = load(ds).to_torch(device="cpu", num_workers=2, prefetch_factor=4)
    assert (batches.num_workers, batches.prefetch_factor, batches.pin_memory) == (2, 4, False)


def test_tensors_share_the_memory_of_a_batch(ds):
    addresses = set()

    def allocate(shape, dtype):
        array = np.empty(shape, dtype)
        addresses.add(array.ctypes.data)
        return array

    for x, y in load(ds).copy(allocate=allocate).to_torch(device="cpu"):
        assert {x.data_ptr(), y.data_ptr()} <= addresses


def test_the_memory_of_batches_is_reused(ds):
    allocated = []

    def allocate(shape, dtype):
        allocated.append(shape)
        return np.empty(shape, dtype)

    loader = load(ds, steps_per_epoch=400, threads=2, prefetch=3).copy(allocate=allocate)
    for _ in loader.to_torch(device="cpu"):
        pass
    # Those that are prefetched, in the queue, lent to the thread and to the caller, and forgotten
    # while the queue is full: two arrays each.
    assert len(allocated) <= 2 * 40


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


# Position.


@pytest.mark.parametrize("stop", range(STEPS + 1))
def test_the_position_counts_the_batches_that_were_returned(ds, stop):
    loader = load(ds)
    batches = loader.to_torch(device="cpu")
    for step, _ in enumerate(itertools.islice(batches, stop), 1):
        assert batches.state_dict()["batch"] == loader.state_dict()["batch"] == step
    again = on_device(ds)
    again.load_state_dict(batches.state_dict())
    assert read(again) == epoch(loader.plan, 0)[stop:]
    assert read(again) == epoch(loader.plan, 1)


def test_epochs_and_copies(ds):
    plan, batches = load(ds).plan, on_device(ds)
    batches.set_epoch(3)
    iterator = iter(batches)
    assert read(itertools.islice(iterator, 2)) == epoch(plan, 3)[:2]
    batches.set_epoch(1)  # of the next iteration
    assert read(iterator) == epoch(plan, 3)[2:]
    assert read(pickle.loads(pickle.dumps(batches))) == epoch(plan, 1)
    assert read(batches) == epoch(plan, 1)


@pytest.mark.parametrize("change", [1, 3, STEPS])
def test_class_weights_change_with_the_next_batch(ds, change):
    loader, found = load(ds), []
    batches = loader.to_torch(device="cpu")
    for step, batch in enumerate(batches, 1):
        found.append(numbers_of(batch[0].numpy()))
        if step == change:
            loader.set_class_weights({1: 9.0})
            batches.set_epoch(4)  # of the next iteration
    plan = BalancedPlan(LABELS, 4, 2, 9, steps_per_epoch=STEPS)
    weighted = plan.reweighted({1: 9.0}, batch=change)
    assert found == [*epoch(plan, 0)[:change], *epoch(weighted, 0)[change:]]
    assert read(batches) == epoch(weighted, 4)


# Errors.


def fail_at(steps, x, y, step):
    if step in steps:
        raise ValueError(f"step {step}")
    return x, y


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("steps", [(0,), (3,), (2, 3, STEPS - 1), range(STEPS)])
def test_an_error_is_raised_in_place_of_its_batch(ds, threads, steps):
    loader = load(ds, batch_transform=partial(fail_at, steps), threads=threads)
    plain, expected = load(ds), epoch(load(ds).plan, 0)
    batches = iter(loader.to_torch(device="cpu"))
    for step in range(STEPS):
        if step in steps:
            with pytest.raises(ValueError, match=f"^step {step}"):
                next(batches)
        else:
            assert read([next(batches)]) == [expected[step]]
        assert loader.step == step + 1
    with pytest.raises(StopIteration):
        next(batches)
    assert plain.step == 0


@pytest.fixture
def _interruptible():
    """Handle SIGINT also in a process that was started with SIGINT ignored."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupted_iteration_continues_with_the_same_batch(ds):
    waits, go_on = threading.Event(), threading.Event()

    def wait(x, y, step):
        if step == 3:
            waits.set()
            assert go_on.wait(60)
        return x, y

    def interrupt():
        assert waits.wait(60)
        while loader.step < 3:
            time.sleep(0.001)
        time.sleep(0.05)  # the main thread then waits for the batch
        os.kill(os.getpid(), signal.SIGINT)

    loader = load(ds, batch_transform=wait)
    batches, found = iter(loader.to_torch(device="cpu")), []
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            found += read([next(batches)])
    thread.join()
    assert loader.step == 3
    go_on.set()
    found += read(batches)
    assert found == epoch(load(ds).plan, 0)


def test_a_batch_that_is_interrupted_on_its_way_is_returned_again(ds, monkeypatch):
    receive, received = DeviceCopier.receive, []

    def interrupted(self, sent):
        received.append(1)
        if len(received) == 4:
            raise KeyboardInterrupt
        return receive(self, sent)

    monkeypatch.setattr(DeviceCopier, "receive", interrupted)
    loader = load(ds)
    batches, found = iter(loader.to_torch(device="cpu")), []
    with pytest.raises(KeyboardInterrupt):
        while True:
            found += read([next(batches)])
    assert loader.step == 3
    found += read(batches)
    assert found == epoch(load(ds).plan, 0)


# Threads.


@pytest.mark.parametrize("stop", [0, 1, 3, STEPS, None])
def test_an_iteration_leaves_no_threads(ds, stop):
    batches = load(ds, threads=3).to_torch(device="cpu")
    before = native_threads()
    assert read(itertools.islice(batches, stop)) == epoch(load(ds).plan, 0)[:stop]
    if stop is None:  # otherwise the threads of the loader prefetch the next epoch
        batches.dataset.close()
    assert device_threads() == 0
    assert settles(native_threads, before)


def test_an_exception_of_the_caller_leaves_no_threads(ds):
    with pytest.raises(ZeroDivisionError):
        for _ in on_device(ds):
            1 / 0  # noqa: B018
    assert settles(device_threads, 0)


def test_batches_in_the_queue_are_bounded(ds):
    built = []

    def count(x, y, step):
        built.append(step)
        return x, y

    loader = load(ds, steps_per_epoch=1000, batch_transform=count, threads=0)
    batches = iter(loader.to_torch(device="cpu"))
    next(batches)
    time.sleep(0.2)
    assert len(built) < 10


EXIT = """
import sys, time
from opened import opened
def slow(x, y, step):
    time.sleep(0.3 if step > 2 else 0)
    return x, y
loader = opened(sys.argv[1]).batches(4, 2, seed=9, batch_transform=slow, threads=int(sys.argv[2]))
batches = iter(loader.to_torch(device="cpu", num_workers=int(sys.argv[3])))
next(batches)
print("exits")
"""


@pytest.mark.parametrize(("threads", "workers"), [(0, 0), (2, 0), (0, 2)])
def test_exit_of_the_interpreter(tmp_path, threads, workers):
    make_numbers(tmp_path / "numbers").close()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [str(tmp_path / "numbers"), str(threads), str(workers)]
    run = subprocess.run(
        [sys.executable, "-c", EXIT, *arguments],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (run.returncode, run.stdout, run.stderr) == (0, "exits\n", "")


# Processes.


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("device") / "numbers"
    make_numbers(directory).close()
    return directory


@pytest.fixture(scope="module")
def run(directory):
    """Run functions in a process without the threads of frameworks, which may fork."""
    with fresh_process() as call:
        yield lambda action, *args: call(action, directory, *args)


def with_workers(directory, persistent):
    ds = opened(directory)
    plan = load(ds).plan
    workers = {"num_workers": 2, "persistent_workers": persistent, "timeout": 60}
    hooks = {"batch_transform": partial(fail_at, (3,))}
    batches = load(ds).to_torch(device="cpu", **workers)
    assert [read(batches), read(batches)] == [epoch(plan, 0), epoch(plan, 1)]
    assert read(itertools.islice(batches, 3)) == epoch(plan, 2)[:3]
    again = load(ds).to_torch(device="cpu", **workers)
    again.load_state_dict({**batches.state_dict(), "batch": 2 * STEPS + 3})
    assert read(again) == epoch(plan, 2)[3:]
    parts = [load(ds, rank=r, world_size=2).to_torch(device="cpu", **workers) for r in range(2)]
    steps = zip(*map(read, parts), strict=True)
    assert [first + second for first, second in steps] == epoch(plan, 0)
    failing = iter(load(ds, **hooks).to_torch(device="cpu", **workers))
    assert read(itertools.islice(failing, 3)) == epoch(plan, 0)[:3]
    with pytest.raises(ValueError, match="step 3"):
        next(failing)
    assert read(failing) == epoch(plan, 0)[4:]
    loader = load(ds)
    with pytest.raises(PlanError, match="between epochs"):
        for _ in loader.to_torch(device="cpu", **workers):
            loader.set_class_weights({1: 9.0})
    assert loader.step == 1
    del batches, again, failing
    assert device_threads() == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_workers(run, persistent):
    run(with_workers, persistent)


def fork(directory):
    loader = load(opened(directory))
    batches = iter(loader.to_torch(device="cpu"))
    found = read(itertools.islice(batches, 3))
    child = os.fork()
    if child == 0:
        rest = read(batches)
        os._exit(0 if rest == epoch(loader.plan, 0)[3:] else 1)
    found += read(batches)
    assert found == epoch(loader.plan, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_continues_on_its_own(run):
    run(fork)


# Conversion of images.


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A dataset of arrays of four types that are images in a batch."""
    directory = tmp_path_factory.mktemp("device") / "images"
    rng = np.random.default_rng(1)
    shape = (40, 6, 5, 3)
    columns = {
        "uint8": rng.integers(0, 256, shape, dtype=np.uint8),
        "uint16": rng.integers(0, 2**16, shape, dtype=np.uint16),
        "float32": rng.random(shape, dtype=np.float32),
        "float64": rng.random(shape),
        "other": rng.integers(-9, 9, shape, dtype=np.int32),
        "matrix": rng.random((40, 6, 5), dtype=np.float32),
        "label": np.arange(40) % 5,
    }
    write(columns, directory, label="label")
    with opened(directory) as ds:
        yield ds


IMAGES = ("uint8", "uint16", "float32", "float64")
UNITS = {"uint8": 255, "uint16": 65535, "float32": 1, "float64": 1}
# Relative to the largest value: half an ulp of the type, and what float32 adds.
ERRORS = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-22, "float64": 2**-50}


def batches_of(images, **options):
    loader = images.batches(4, 2, seed=3, steps_per_epoch=3)
    return list(loader.to_torch(device="cpu", **options))


@pytest.mark.parametrize("dtype", [None, *ERRORS])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("mean", "std"), [(None, None), (MEAN, STD), (0.5, None), (None, 0.25)])
def test_conversion(images, layout, dtype, mean, std):
    plain = list(images.batches(4, 2, seed=3, steps_per_epoch=3))
    found = batches_of(images, layout=layout, dtype=dtype, mean=mean, std=std)
    for (x, y), (original, labels) in zip(found, plain, strict=True):
        assert np.array_equal(y, labels)
        for name in ("other", "matrix"):
            assert np.array_equal(x[name], original[name])
        for name in IMAGES:
            image, expected = x[name], original[name]
            if layout == "NCHW":
                assert image.is_contiguous(memory_format=torch.channels_last)
                image = image.permute(0, 2, 3, 1)
            if dtype is None and mean is None and std is None:
                assert np.array_equal(image, expected)
                continue
            result = dtype or "float32"
            assert image.dtype == getattr(torch, result)
            expected = expected.astype(np.float64) / UNITS[name]
            expected = (expected - (mean or 0)) / (std or 1)
            largest = (1 + np.max(mean or 0)) / np.min(std or 1)
            assert np.abs(image.double().numpy() - expected).max() <= largest * ERRORS[result]


def test_conversion_with_workers(images):
    options = {"layout": "NCHW", "dtype": "float16", "mean": MEAN, "std": STD}
    workers = {"num_workers": 2, "multiprocessing_context": "spawn"}
    pairs = zip(
        batches_of(images, **options, **workers), batches_of(images, **options), strict=True
    )
    for (x, _), (expected, _) in pairs:
        assert all(torch.equal(x[name], expected[name]) for name in IMAGES)


def test_scaled_integers_are_those_of_torchvision():
    values = torch.arange(256, dtype=torch.uint8).view(1, 16, 16, 1)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        found = ImageConverter(ImageConversion(dtype=dtype))(values)
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
    found = ImageConverter(ImageConversion(mean=mean, std=std))(x).double()
    expected = (x.double() / UNITS[kind] - torch.tensor(mean)) / torch.tensor(std)
    bound = 2**-22 * (1 + np.abs(mean)) / std
    assert bool(((found - expected).abs() <= torch.tensor(bound)).all())


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"layout": "CHWN"}, "layout"),
        ({"dtype": "uint8"}, "dtype"),
        ({"dtype": torch.int32}, "dtype"),
        ({"dtype": object()}, "dtype"),
        ({"mean": "red"}, "mean"),
        ({"mean": []}, "mean"),
        ({"mean": [[1.0]]}, "mean"),
        ({"std": 0}, "std"),
        ({"std": (1, -1, 1)}, "std"),
        ({"std": float("inf")}, "std"),
        ({"mean": (1, 2), "std": (1, 2, 3)}, "std"),
        ({"device": "gpu"}, "device"),
        ({"device": "meta"}, "device"),
        ({"device": "cuda:99"}, "device"),
        ({"device": 1.5}, "device"),
    ],
)
def test_invalid_options(ds, options, option):
    with pytest.raises(PlanError) as caught:
        load(ds).to_torch(**{"device": "cpu", **options})
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("option", "value"),
    [("layout", "NCHW"), ("dtype", "float32"), ("mean", 0.5), ("std", 0.5)],
)  # fmt: skip
def test_options_that_require_a_device(ds, option, value):
    with pytest.raises(PlanError, match="pass device=") as caught:
        load(ds).to_torch(**{option: value})
    assert caught.value.option == option


def test_another_number_of_channels(images):
    with pytest.raises(FeatureError) as caught:
        batches_of(images, mean=(0.5, 0.5))
    assert (caught.value.option, caught.value.found) == ("mean", (0.5, 0.5))


def test_names_of_types_and_devices(images):
    for dtype in ("float16", torch.float16, np.float16, np.dtype("float16")):
        assert ImageConversion(dtype=dtype).dtype == "float16"
    for device in ("cpu", torch.device("cpu")):
        assert DeviceOptions(device).resolved() == torch.device("cpu")
