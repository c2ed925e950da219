"""The contract of all adapters: the batches of a loader, epochs, states, ranks, hooks, errors."""

import inspect
import itertools
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
import tensorflow as tf
import torch
from loaded import NATIVE, OTHERS, make, numbers_of
from written import shard_paths

import covey
from covey.adapters import jax as jax_adapter
from covey.adapters import torch as torch_adapter
from covey.adapters.image_format import ImageFormat
from covey.adapters.tensorflow import to_tf
from covey.augmenters import ContrastiveAugmenter
from covey.errors import FeatureError, FileChangedError, PlanError

STEPS = 7
ADAPTERS = {
    "tensorflow": lambda loader: loader.to_tf(),
    "torch": lambda loader: loader.to_torch(),
    "torch device": lambda loader: loader.to_torch(device="cpu"),
    "jax": lambda loader: loader.to_jax(),
}


class Epochs:
    """Epochs of the batches of an adapter, one per call."""

    def __init__(self, adapter, loader):
        self._batches = ADAPTERS[adapter](loader)

    def __call__(self, count=None):
        return [plain(batch) for batch in itertools.islice(self._batches, count)]


def plain(value):
    """Return a batch of any framework as lists."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, (tf.Tensor, torch.Tensor, jax.Array)):
        value = np.asarray(value)
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.fixture(params=ADAPTERS)
def adapter(request):
    return request.param


def load(ds, **options):
    return ds.batches(4, 2, **{"seed": 9, "steps_per_epoch": STEPS, **options})


@pytest.mark.parametrize("kind", [*NATIVE, *OTHERS])
def test_batches(made, adapter, kind):
    for options in ({}, {"as_dict": True}) if kind in ("numbers", "nested", "ragged") else ({},):
        expected = [plain(batch) for batch in made(kind).batches(3, 2, seed=1, **options)]
        assert Epochs(adapter, made(kind).batches(3, 2, seed=1, **options))() == expected


@pytest.mark.parametrize("kind", ["balanced", "shuffled", "fill"])
def test_epochs(ds, adapter, kind):
    make = {
        "balanced": lambda: load(ds),
        "shuffled": lambda: ds.shuffled(50, seed=1),
        "fill": lambda: ds.shuffled(50, seed=1, remainder="fill"),
    }[kind]
    loader, epochs = make(), Epochs(adapter, make())
    for _ in range(3):
        assert epochs() == [plain(batch) for batch in loader]


# Positions, states and class weights. tf.data prefetches: the position is exact at the end of an
# epoch, and a tf.train.Checkpoint saves it within one; see test_adapter_tensorflow.py.
EXACT = [name for name in ADAPTERS if name != "tensorflow"]


@pytest.mark.parametrize("kind", ["balanced", "shuffled"])
def test_position_of_the_loader(ds, adapter, kind):
    loader, other = (load(ds) if kind == "balanced" else ds.shuffled(29, seed=1) for _ in range(2))
    for step in (STEPS + 3, None, None, 2, 4 * STEPS, None):
        if step is not None:
            for each in (loader, other):
                each.seek(step)
            epochs = Epochs(adapter, loader)
        assert epochs() == [plain(batch) for batch in other]
        assert loader.state_dict() == other.state_dict()
        assert loader.step == other.step
    again = load(ds) if kind == "balanced" else ds.shuffled(29, seed=1)
    again.load_state_dict(loader.state_dict())
    following = [plain(batch) for batch in other]
    assert Epochs(adapter, loader)() == following  # also of another object of the same loader
    assert Epochs(adapter, again)() == following


@pytest.mark.parametrize("adapter", EXACT)
@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 3, "mode": "independent"}])
def test_position_within_an_epoch(ds, adapter, options):
    loader, again = ds.shuffled(19, seed=1, **options), ds.shuffled(19, seed=1, **options)
    expected = [plain(batch) for batch in ds.shuffled(19, seed=1, **options)]
    for step, batch in enumerate(ADAPTERS[adapter](loader), 1):
        assert plain(batch) == expected[step - 1]
        assert loader.step == step
        again.load_state_dict(loader.state_dict())
        if step < len(expected):
            assert Epochs(adapter, again)() == expected[step:]
    assert (loader.epoch, step) == (1, len(expected))


@pytest.mark.parametrize("adapter", EXACT)
@pytest.mark.parametrize("stop", [0, 3, STEPS])
def test_resume_from_state(ds, adapter, stop):
    batches, again = ADAPTERS[adapter](load(ds)), ADAPTERS[adapter](load(ds))
    found = [plain(batch) for batch in itertools.islice(batches, stop)]
    again.load_state_dict(batches.state_dict())
    if stop < STEPS:  # after the last batch, the state is that of the end of the epoch
        found += map(plain, again)
    assert found == [plain(batch) for batch in load(ds)]


def test_class_weights(ds, adapter):
    """They change with the next batch; with tf.data, with the next epoch."""

    def run(batches, loader, changes):
        for step, batch in enumerate(itertools.chain(batches, batches, batches)):
            yield plain(batch)
            if step in changes:
                loader.set_class_weights(changes[step])

    changes, loader, other = {2: {1: 9.0}, STEPS + 1: {1: 0.0, 3: 5.0}}, load(ds), load(ds)
    found = list(run(ADAPTERS[adapter](loader), loader, changes))
    if adapter not in EXACT:  # at the end of their epochs
        changes = {STEPS - 1: changes[2], 2 * STEPS - 1: changes[STEPS + 1]}
    expected = list(run(other, other, changes))
    assert found == expected != list(run(load(ds), load(ds), {}))
    assert loader.state_dict() == other.state_dict()


@pytest.mark.parametrize("mode", ["split", "independent"])
def test_ranks(ds, adapter, mode):
    plan = load(ds).plan
    parts = [
        [numbers_of(x) for x, _ in Epochs(adapter, load(ds, rank=r, world_size=2, mode=mode))()]
        for r in range(2)
    ]
    steps = list(zip(*parts, strict=True))
    if mode == "split":
        assert [first + second for first, second in steps] == plan.batches(0, STEPS).tolist()
    else:
        assert [ids for step in steps for ids in step] == plan.batches(0, 2 * STEPS).tolist()


def test_batches_never_change(ds, adapter):
    kept = list(ADAPTERS[adapter](load(ds, steps_per_epoch=100, threads=2, prefetch=2)))
    assert list(map(plain, kept)) == list(map(plain, load(ds, steps_per_epoch=100)))


def test_reuse_buffers(ds, adapter):
    loader = load(ds, reuse_buffers=True)
    if adapter == "jax":
        assert list(map(plain, list(loader.to_jax()))) == list(map(plain, load(ds)))
        return
    with pytest.raises(PlanError) as caught:
        ADAPTERS[adapter](loader)
    assert (caught.value.option, caught.value.found) == ("reuse_buffers", True)


def fail(example):
    if example["x"][0, 0] == 95:
        raise ValueError("that is 95")
    return example


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_a_hook_has_its_location(ds, adapter, threads):
    loader = ds.sequential(10, transform=fail, threads=threads)
    with pytest.raises((ValueError, tf.errors.OpError), match="that is 95") as caught:
        Epochs(adapter, loader)()
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert re.search(r"-train\S*: record 23 at byte \d+, step 9, row 5", text)


def test_a_shard_that_changes_while_it_is_read(tmp_path, adapter):
    with make(tmp_path / "data", "numbers") as dataset:
        epochs = Epochs(adapter, load(dataset, steps_per_epoch=40))
        epochs()  # opens all shards
        shard = shard_paths(tmp_path / "data")[2]
        with shard.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 4)
        changed = (FileChangedError, tf.errors.UnknownError)
        with pytest.raises(changed, match=re.escape(shard.name)) as caught:
            epochs()
        assert "FileChangedError" in f"{type(caught.value)} {caught.value}"


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {
        each.name
        for each in parameters
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    }


def test_keywords_of_loaders():
    """Those that editors and type checkers know are those of the adapters."""
    images = keywords(ImageFormat)
    determined = {*torch_adapter._DETERMINED, "loader", "self"}
    options = keywords(torch_adapter.to_torch) | keywords(torch.utils.data.DataLoader.__init__)
    assert set(torch_adapter.TorchKeywords.__annotations__) == options - determined
    assert set(jax_adapter.JaxKeywords.__annotations__) == {"prefetch", *images}
    assert keywords(jax_adapter.to_jax) == {"loader", "sharding", "prefetch"}
    assert keywords(covey.Loader.to_tf) == keywords(to_tf) - {"loader"} | {"self"}
    for name, expected in (("to_torch", "TorchKeywords"), ("to_jax", "JaxKeywords")):
        annotations = getattr(covey.Loader, name).__annotations__
        assert annotations["options"] == f"Unpack[{expected}]"


# Results of transform.


def add_features(example, rng):
    x = example["x"]
    return {**example, "sum": x.sum(), "deep": {"noise": rng.random(2).astype(np.float32)}}


@pytest.mark.parametrize("options", [{}, {"select": "x"}, {"select": ["x"]}, {"as_dict": True}])
def test_features_that_a_transform_adds(ds, adapter, options):
    expected = [plain(batch) for batch in load(ds, transform=add_features, **options)]
    x = expected[0] if options.get("as_dict") else expected[0][0]
    assert set(x) - {"label"} == {"x", "sum", "deep"}
    assert Epochs(adapter, load(ds, transform=add_features, **options))() == expected


def as_pair(example, step):
    return (example["x"], example["label"]) if step >= 3 else example


def test_invalid_result_of_a_transform(ds, adapter):
    loader = load(ds, transform=as_pair)
    batches = iter(ADAPTERS[adapter](loader))
    for _ in range(3):
        next(batches)
    if adapter == "tensorflow":  # reports the message only
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"result of transform.*tuple of"):
            next(batches)
        return
    with pytest.raises(FeatureError) as caught:
        next(batches)
    assert caught.value.step == 3
    assert (caught.value.option, caught.value.row) == ("result of transform", 0)
    assert caught.value.found.startswith("tuple of (float32 array of shape (2, 3), ")


# Conversion of images on the device.

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
UNITS = {"uint8": 255, "uint16": 65535, "float32": 1, "float64": 1}
# Relative to the largest value: half an ulp of the type, and what float32 adds.
ERRORS = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-22}


def as_images(x, y):
    values = np.arange(len(x) * 60).reshape(len(x), 4, 5, 3) % 256
    images = {name: (values / 255 * unit).astype(name) for name, unit in UNITS.items()}
    return {**images, "int32": values.astype(np.int32), "x": x}, y


@pytest.mark.parametrize("adapter", ["torch device", "jax"])
@pytest.mark.parametrize(
    ("layout", "dtype", "mean", "std"),
    [
        ("NHWC", None, None, None),
        ("NCHW", None, None, None),
        ("NCHW", None, MEAN, STD),
        ("NHWC", "float16", MEAN, STD),
        ("NCHW", "bfloat16", 0.5, None),
        ("NHWC", "float32", None, [0.25]),
        ("NCHW", "float32", None, None),
    ],
)
def test_conversion_of_images(ds, adapter, layout, dtype, mean, std):
    loader = load(ds, batch_transform=as_images, steps_per_epoch=2)
    options = {"layout": layout, "dtype": dtype, "mean": mean, "std": std}
    is_torch = adapter == "torch device"
    assert ImageFormat(dtype=jax.numpy.bfloat16).dtype == "bfloat16"
    batches = loader.to_torch(device="cpu", **options) if is_torch else loader.to_jax(**options)
    for (x, y), (original, labels) in zip(batches, loader.copy(batch=0), strict=True):
        assert plain([x["int32"], x["x"], y]) == plain([original["int32"], original["x"], labels])
        for name in [*UNITS][: 4 if is_torch else 3]:  # JAX converts float64 to float32
            image, expected = x[name], original[name].astype(np.float64)
            if layout == "NCHW":
                assert not is_torch or image.is_contiguous(memory_format=torch.channels_last)
                image = image.permute(0, 2, 3, 1) if is_torch else image.transpose(0, 2, 3, 1)
            is_same = dtype is None and mean is None and std is None
            result = name if is_same else dtype or "float32"
            assert str(image.dtype).removeprefix("torch.") == result
            found = np.asarray(image.double() if is_torch else image, np.float64)
            if is_same:
                assert np.array_equal(found, expected)
                continue
            expected = (expected / UNITS[name] - (0 if mean is None else mean)) / (std or 1)
            largest = (1 + np.max(mean or 0)) / np.min(std or 1)
            assert np.abs(found - expected).max() <= largest * ERRORS[result]


@pytest.mark.parametrize("adapter", ["torch device", "jax"])
@pytest.mark.parametrize(
    ("option", "found", "error"),
    [
        ("layout", "HWC", PlanError),
        ("dtype", "int32", PlanError),
        ("std", 0, PlanError),
        ("mean", (0.5, 0.5), FeatureError),
    ],
)
def test_invalid_conversions(ds, adapter, option, found, error):
    loader = load(ds, batch_transform=as_images)
    device = {"device": "cpu"} if adapter == "torch device" else {}
    with pytest.raises(error) as caught:
        next(iter(getattr(loader, f"to_{adapter.split()[0]}")(**device, **{option: found})))
    assert (caught.value.option, caught.value.found) == (option, found)


# Padding.


@pytest.mark.parametrize(
    "options",
    [
        {"pad": 0},
        {"pad": {"x": -1}, "as_dict": True},
        {"pad": 0, "pad_length": 2, "truncate": True},
        {"pad": {"t": 0.5}, "transform": lambda each: {"t": each["x"] / 2, "n": 1}},
    ],
)
def test_padded_features(made, adapter, options):
    def make():
        return load(made("ragged"), **options)

    expected = [plain(batch) for batch in make()]
    assert Epochs(adapter, make())() == expected
    x = expected[0] if options.get("as_dict") else expected[0][0]
    (name,) = {"x", "t"} & set(x)
    longest = options.get("pad_length") or max(x[f"{name}_length"])
    assert {len(row) for row in x[name]} == {longest}
    moved, other = make(), make()
    for each in (moved, other):
        each.seek(4)
    assert Epochs(adapter, moved)() == [plain(batch) for batch in other]


# Hooks with random choices: the same batches in any arrangement.


def jitter(example, rng, step, row):
    return {**example, "x": example["x"] + rng.random((2, 3)).astype(np.float32) + step + row / 64}


def mix(x, y, rng, step):
    return x * rng.random() + step, y


def flip(x, y, examples_per_class, is_warmup, *, step, row):
    assert (examples_per_class, is_warmup) == (2, False)
    signs = [(-1) ** ((step + row + index) % 3) for index in range(len(x))]
    return x * np.array(signs, x.dtype)[:, None, None], y


HOOKS = {"transform": jitter, "batch_transform": mix, "augmenter": flip}
HOOKED = [*({name: hook} for name, hook in HOOKS.items()), HOOKS]


@pytest.mark.parametrize("hooks", HOOKED, ids="+".join)
def test_seeded_hooks(ds, hooks):
    expected = [plain(load(ds, threads=0, **hooks).batch(step)) for step in range(2 * STEPS)]
    assert len({str(batch) for batch in expected}) == 2 * STEPS
    assert expected[0] != plain(load(ds, threads=0, **{**hooks, "seed": 8}).batch(0))
    for threads in (0, 1, 4):
        assert list(map(plain, load(ds, threads=threads, **hooks))) == expected[:STEPS]
    for name in ADAPTERS:
        epochs = Epochs(name, load(ds, **hooks))
        assert [*epochs(), *epochs()] == expected
    loader = load(ds, **hooks)
    loader.load_state_dict({**loader.state_dict(), "batch": 5})
    assert list(map(plain, loader)) == expected[5:STEPS]


@pytest.mark.parametrize("world_size", [2, 3])
def test_seeded_hooks_with_ranks(ds, world_size):
    def ranked(mode, **hooks):
        options = {"world_size": world_size, "mode": mode, **hooks}
        loaders = [load(ds, rank=rank, **options) for rank in range(world_size)]
        return list(zip(*loaders, strict=True))

    alone = load(ds, **HOOKS)
    for step, parts in enumerate(ranked("split", **HOOKS)):
        x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
        assert plain((x, y)) == plain(alone.batch(step))
    flat = [batch for parts in ranked("independent", **HOOKS) for batch in parts]
    assert plain(flat) == [plain(alone.batch(step)) for step in range(len(flat))]
    short = ds.sequential(50, transform=jitter)
    parts = [ds.sequential(50, transform=jitter, rank=r, world_size=3) for r in range(3)]
    for x, own in zip(short, zip(*parts, strict=True), strict=True):
        assert plain(x[0]) == plain(np.concatenate([each[0] for each in own]))


def as_image(example):
    return {**example, "x": np.full((8, 8, 3), int(example["x"][0, 0]) % 255, np.uint8)}


def test_contrastive_augmenter(ds):
    augmenter = ContrastiveAugmenter(seed=3, views=2)
    options = {"transform": as_image, "augmenter": augmenter}
    x, y = load(ds, **options).batch(4)
    assert (x.shape, y.shape) == ((16, 8, 8, 3), (16,))
    plain_x, plain_y = load(ds, transform=as_image).batch(4)
    assert np.array_equal(x, augmenter(plain_x, plain_y, 2, step=4)[0])
    parts = [load(ds, rank=rank, world_size=2, **options).batch(4)[0] for rank in range(2)]
    assert np.array_equal(np.concatenate(parts), x)
    (x, y), *_ = ds.shuffled(8, augmenter=augmenter, transform=as_image)
    assert (x.shape, y.shape) == ((16, 8, 8, 3), (16,))


def test_missing_framework(adapter):
    framework = adapter.split()[0]
    code = f"import sys; sys.modules['{framework}'] = None; import covey.adapters.{framework}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = run.stderr.splitlines()[-1]
    assert last.startswith("ImportError")
    assert f"pip install 'covey[{framework}]'" in last
