"""Check batches on a GPU against those of numpy. Run by hand on a machine with a GPU.

    python tests/device/check_cuda.py [names of checks]

It needs torch with CUDA, and JAX for the check of JAX.
Each check prints a line; the exit status is the number of checks that failed.
"""

from __future__ import annotations

import gc
import itertools
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import torch

import covey
from covey.adapters import torch as adapter
from covey.adapters.torch_device import ImageConverter, ImageFormat, pinned_empty

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ROWS, CLASSES, SIDE = 6_000, 60, 64
STEPS = 200
DIRECTORY = Path(tempfile.mkdtemp(prefix="covey-cuda-"))


def arrays():
    """Return a dataset of arrays whose first pixel is the number of the example."""
    directory = DIRECTORY / "arrays"
    if not directory.exists():
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
        x[:, 0, 0, :2] = np.arange(ROWS).astype(">u2").view(np.uint8).reshape(-1, 2)
        columns = {"image": x, "label": np.arange(ROWS) % CLASSES}
        covey.write(columns, directory, split="train", label="label", shuffle=False, progress=False)
    return covey.open(directory, split="train")


def load(ds=None, **options):
    ds = arrays() if ds is None else ds
    return ds.batches(32, 8, **{"seed": 5, "steps_per_epoch": STEPS, **options})


def expect(found, expected):
    """Check a batch of tensors on the GPU."""
    for tensor, array in zip(found, expected, strict=True):
        assert tensor.is_cuda
        assert torch.equal(tensor.cpu(), torch.from_numpy(np.array(array)))


def busy(milliseconds):
    """Occupy the current stream, without blocking this thread."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def check_order():
    """All batches, in order, with a consumer that reads at once."""
    for found, expected in zip(load().to_torch(device="cuda"), load(), strict=True):
        expect(found, expected)


def check_slow_consumer():
    """The stream of the consumer is late, so that copies finish long before their use."""
    sums, right = [], []
    for (x, y), (array, labels) in zip(load().to_torch(device="cuda"), load(), strict=True):
        busy(2)
        sums.append((x.long() * torch.arange(1, 4, device=x.device)).sum() + y.sum() * 7)
        right.append(int((array.astype(np.int64) * np.arange(1, 4)).sum() + labels.sum() * 7))
        del x, y  # the memory may be reused only after the sum
    assert torch.stack(sums).tolist() == right


def check_slow_producer():
    """Batches are built slowly, in Python, from memory that is not pinned."""

    def slow(x, y):
        time.sleep(0.002)
        return x, y

    loader = load(batch_transform=slow, threads=2)
    for found, expected in zip(loader.to_torch(device="cuda"), load(), strict=True):
        expect(found, expected)


def check_kept_batches():
    """All batches are kept: their memory must never be written again."""
    kept = list(load().to_torch(device="cuda"))
    for found, expected in zip(kept, load(), strict=True):
        expect(found, expected)


def check_dropped_batches():
    """The GPU is late while host buffers are reused: a copy must not read overwritten memory."""
    loader = load(prefetch=2, threads=8)
    results = []
    for x, _ in loader.to_torch(device="cuda"):
        busy(0.5)
        results.append(x[:, 0, 0, 0].long() * 256 + x[:, 0, 0, 1])
    assert torch.stack(results).tolist() == loader.plan.batches(0, STEPS).tolist()


def check_other_stream():
    """The consumer uses a stream of its own."""
    stream = torch.cuda.Stream()
    batches, expected = iter(load().to_torch(device="cuda")), load()
    with torch.cuda.stream(stream):
        for right in expected:
            found = next(batches)
            busy(0.2)
            expect(found, right)


def check_pinned_pool():
    """Native threads write into pinned memory, which is allocated a few times."""
    calls = []

    def counted(shape, dtype):
        calls.append(shape)
        return pinned_empty(shape, dtype)

    adapter.pinned_empty = counted
    try:
        batches = load(threads=4, prefetch=4, steps_per_epoch=1000).to_torch(device="cuda")
        is_pinned = [torch.from_numpy(each).is_pinned() for each in next(iter(load().copy(
            allocate=pinned_empty)))]  # fmt: skip
        for _ in batches:
            pass
    finally:
        adapter.pinned_empty = pinned_empty
    assert all(is_pinned), is_pinned
    assert len(calls) <= 2 * 40, len(calls)
    return f"{len(calls)} arrays for 1000 batches of 2"


def check_workers():
    """Batches of worker processes."""
    loader = load(steps_per_epoch=30)
    batches = loader.to_torch(device="cuda", num_workers=2)
    for found, expected in zip(batches, load(steps_per_epoch=30), strict=True):
        expect(found, expected)


def check_resume():
    """A state in the middle of an epoch, and class weights that change there."""
    first = load()
    batches = first.to_torch(device="cuda")
    assert len(list(itertools.islice(batches, 71))) == 71
    again, plain = load(), load()
    resumed = again.to_torch(device="cuda")
    resumed.load_state_dict(batches.state_dict())
    plain.seek(71)
    for step, (found, expected) in enumerate(zip(resumed, plain, strict=True)):
        expect(found, expected)
        if step == 20:
            again.set_class_weights({3: 5.0})
            plain.set_class_weights({3: 5.0})
    assert again.state_dict() == plain.state_dict()


def reference(array):
    return (array.astype(np.float64) / 255 - MEAN) / STD


def check_conversion():
    """Layout, dtype, mean and std against float64."""
    worst = {}
    for dtype, digits in (("float32", 22), ("float16", 11), ("bfloat16", 8)):
        loader = load(steps_per_epoch=5)
        options = {"layout": "NCHW", "mean": MEAN, "std": STD, "dtype": dtype}
        batches = loader.to_torch(device="cuda", **options)
        for (x, _), (array, _) in zip(batches, load(steps_per_epoch=5), strict=True):
            assert x.dtype == getattr(torch, dtype)
            assert x.is_contiguous(memory_format=torch.channels_last)
            error = np.abs(x.permute(0, 2, 3, 1).double().cpu().numpy() - reference(array))
            bound = (1 + np.array(MEAN)) / STD * 2.0**-digits
            assert (error <= bound).all(), (dtype, error.max())
            worst[dtype] = max(worst.get(dtype, 0), float(error.max()))
    levels = torch.arange(256, dtype=torch.uint8, device="cuda").view(1, 16, 16, 1)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        found = ImageConverter(ImageFormat(dtype=dtype))(levels)
        assert torch.equal(found, levels.to(dtype).mul_(1.0 / 255)), dtype
    return worst


def check_jax():
    """JAX: batches on its default device, converted there."""
    import jax

    for found, expected in zip(load().to_jax(prefetch=3), load(), strict=True):
        for array, right in zip(found, expected, strict=True):
            assert np.array_equal(np.asarray(array), right)
    options = {"mean": MEAN, "std": STD, "layout": "NCHW"}
    for (x, _), (array, _) in zip(load().to_jax(**options), load(), strict=True):
        error = np.abs(np.asarray(x, np.float64).transpose(0, 2, 3, 1) - reference(array))
        assert error.max() < 2e-6, error.max()
    return str(jax.devices()[0])


def check_metrics():
    """Metrics of embeddings on the device equal those of numpy."""
    from covey.metrics import retrieval_metrics

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 200, 5000)
    x = (rng.normal(size=(200, 64))[labels] + rng.normal(size=(5000, 64))).astype(np.float32)
    expected = retrieval_metrics(x, labels)
    found = retrieval_metrics(torch.as_tensor(x, device="cuda"), labels, memory_limit=1 << 24)
    assert found.queries == expected.queries
    for one, two in (
        *((found.recall[k], expected.recall[k]) for k in expected.recall),
        (found.r_precision, expected.r_precision),
        (found.map_at_r, expected.map_at_r),
    ):
        assert abs(one - two) < 1e-3, (found, expected)


def rate(batches, steps, warm=20):
    """Return batches per second."""
    iterator = iter(batches)
    for _ in itertools.islice(iterator, warm):
        pass
    torch.cuda.synchronize()
    begin = time.perf_counter()
    count = sum(1 for _ in itertools.islice(iterator, steps))
    torch.cuda.synchronize()
    return round(count / (time.perf_counter() - begin))


def check_rates():
    """Batches per second, without training; nothing is asserted."""
    rates = {"arrays": rate(load(steps_per_epoch=3000).to_torch(device="cuda"), 2500)}
    options = {"mean": MEAN, "std": STD, "layout": "NCHW", "dtype": "bfloat16"}
    batches = load(steps_per_epoch=3000).to_torch(device="cuda", **options)
    rates["arrays, bfloat16"] = rate(batches, 2500)
    x = np.random.default_rng(0).integers(0, 256, (10_000, 256, 256, 3), dtype=np.uint8)
    columns = {"image": x, "label": np.arange(10_000) % 100}
    covey.write(columns, DIRECTORY / "large", split="train", label="label", progress=False)
    large = covey.open(DIRECTORY / "large", split="train")
    del x, columns
    batches = load(large, steps_per_epoch=600).to_torch(device="cuda")
    rates["arrays 256 x 256"] = rate(batches, 500)
    return rates


def main():
    checks = {name.removeprefix("check_"): check for name, check in globals().items()
              if name.startswith("check_")}  # fmt: skip
    chosen = sys.argv[1:] or list(checks)
    failed = 0
    print(torch.__version__, torch.cuda.get_device_name())
    for name in chosen:
        begin = time.perf_counter()
        try:
            result = checks[name]()
            print(
                f"ok      {name} ({time.perf_counter() - begin:.1f} s) {result or ''}", flush=True
            )
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
        gc.collect()
    return failed


if __name__ == "__main__":
    sys.exit(main())
