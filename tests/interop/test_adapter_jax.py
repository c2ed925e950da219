"""Batches as arrays of JAX: on a device, split over two, and over two processes."""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from loaded import COUNT, LABELS, make, make_numbers, numbers_of, same
from written import fresh_process

import covey.loader.prefetch
from covey.adapters import tensors
from covey.adapters.jax import tensor
from covey.errors import PlanError

DEVICES = "--xla_force_host_platform_device_count=2"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("jax")


@pytest.fixture(scope="module")
def ds(directory):
    return make_numbers(directory / "numbers")


@pytest.fixture(scope="module")
def two_devices():
    """Runs functions where JAX has two devices: it must know that before it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", DEVICES)
        with fresh_process() as run:
            yield run


def equal(found, expected):
    """Whether an array of JAX has these numbers, of the type that JAX makes of theirs."""
    expected = np.asarray(expected)
    expected = expected.astype(jax.dtypes.canonicalize_dtype(expected.dtype))
    return isinstance(found, jax.Array) and same(np.asarray(found), expected)


# Single arrays.


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int64", "uint64", "float16", "float64", ">i4", "complex64"]
)
def test_an_array_keeps_its_numbers(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    assert equal(tensor(values), values.astype(values.dtype.newbyteorder("=")))
    assert equal(tensor(values[0, 0]), values[0, 0])


def test_an_array_of_jax_passes_through():
    values = jnp.arange(3)
    assert tensor(values) is values


@pytest.mark.parametrize(
    "value",
    ["wren", b"wren", None, 3, np.array(["wren"]), np.array([None]), np.zeros(2, "M8[s]"),
     np.zeros(2, np.longdouble)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_jax_cannot_hold_stays_as_it_is(value):
    assert tensor(value) is value


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**62])
def test_labels_that_jax_would_wrap_are_refused(value):
    with pytest.raises(PlanError, match=rf"{value}.*int32.*jax_enable_x64"):
        tensor(np.array([0, value]))
    with jax.enable_x64(True):
        assert np.asarray(tensor(np.array([0, value]))).tolist() == [0, value]


def test_the_largest_labels_that_fit_are_taken():
    for values in ([2**31 - 1, -(2**31)], np.array([0, 2**32 - 1], np.uint64), np.array([], int)):
        assert equal(tensor(np.array(values)), values)
    with pytest.raises(PlanError, match="uint32"):
        tensor(np.array([2**32], np.uint64))


def test_labels_that_do_not_fit_are_refused_where_they_come(ds):
    loader = ds.batches(3, 2, batch_transform=lambda x, y: (x, y + 2**40))
    with pytest.raises(PlanError, match="batch_transform="):
        next(loader.to_jax())


# Loops.


def test_other_forms_of_batches(directory, ds):
    assert set(next(ds.batches(3, 2, as_dict=True).to_jax())) == {"x", "label"}
    x, y = next(make(directory / "ragged", "ragged").batches(3, 2).to_jax())
    assert isinstance(x, covey.arrays.RaggedArray)
    assert isinstance(y, jax.Array)
    lists = ds.batches(3, 2, transform=lambda each: np.zeros(1 + int(each["x"][0, 0]) % 5))
    x, y = next(lists.to_jax())
    assert all(isinstance(each, jax.Array) for each in x)


def test_a_framework_by_name(ds):
    batch = ds.batches(3, 2).batch(0)
    assert jax.tree.all(jax.tree.map(equal, tensors("jax")(batch), batch))


# Memory.


def aligned(columns, rows):
    """Arrays whose memory JAX uses as it is, which it does if it is aligned like its own."""
    return tuple(empty_aligned((rows, *shape), dtype) for shape, dtype in columns)


def empty_aligned(shape, dtype):
    found, others = np.empty(shape, dtype), []
    while found.ctypes.data % 64:  # then memory is found elsewhere
        others += [found, np.empty(16 * (len(others) % 16 + 1), np.uint8)]
        found = np.empty(shape, dtype)
    return found


def test_jax_shares_memory_that_is_aligned():
    values = empty_aligned((4, 3), np.float32)
    values[:] = 1
    shared = tensor(values)
    values[:] = 2
    assert np.asarray(shared).tolist() == [[2, 2, 2]] * 4  # so that the tests below mean something


@pytest.mark.parametrize("reuse_buffers", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
def test_a_kept_array_never_changes(ds, monkeypatch, threads, reuse_buffers):
    monkeypatch.setattr(covey.loader.prefetch, "_allocate", aligned)
    loader = ds.batches(3, 2, threads=threads, prefetch=2, reuse_buffers=reuse_buffers)
    reference = ds.batches(3, 2)
    kept, copies, expected = [], [], []
    for _ in range(4):
        for step, (batch, right) in enumerate(zip(loader.to_jax(), reference, strict=True)):
            if step % 3:  # the memory of others is used again
                kept.append(batch)
                copies.append(jax.tree.map(np.array, batch))
                expected.append(right)
            del batch
    assert len(kept) > 60
    assert jax.tree.all(jax.tree.map(equal, kept, copies))
    assert jax.tree.all(jax.tree.map(equal, kept, expected))


def test_a_computation_that_goes_on_has_its_batch(ds, monkeypatch):
    monkeypatch.setattr(covey.loader.prefetch, "_allocate", aligned)

    @jax.jit
    def slow(x):
        def turn(_, a):
            return jnp.tanh(a @ a)

        return x.sum((1, 2)) + 0 * jax.lax.fori_loop(0, 20, turn, jnp.ones((128, 128)))[0, 0]

    results = [slow(x) for x, _ in ds.batches(3, 2, threads=2, prefetch=2).to_jax()]
    expected = [x.sum((1, 2)) for x, _ in ds.batches(3, 2)]
    assert np.allclose(results, expected)


def test_a_batch_that_is_donated_harms_nobody(ds, monkeypatch):
    monkeypatch.setattr(covey.loader.prefetch, "_allocate", aligned)
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    results = [double(x) for x, _ in ds.batches(3, 2, prefetch=2).to_jax()]
    assert all(map(equal, results, [x * 2 for x, _ in ds.batches(3, 2)]))


# Where it goes.


def test_a_device_or_a_mesh_of_one(ds):
    device = jax.devices()[0]
    for sharding in (device, SingleDeviceSharding(device), Mesh([device], ("data",))):
        x, _ = next(ds.batches(3, 2).to_jax(sharding))
        assert equal(x, ds.batches(3, 2).batch(0)[0])
        assert x.devices() == {device}


@pytest.mark.parametrize("sharding", ["data", 2, PartitionSpec("data")])
def test_what_is_no_sharding_is_refused(ds, sharding):
    with pytest.raises(PlanError, match="sharding is"):
        ds.batches(3, 2).to_jax(sharding)


# Two devices. What follows is done in a process that has them.


def mesh():
    assert len(jax.devices()) == 2
    return Mesh(np.array(jax.devices()), ("data",))


def split(*names):
    return NamedSharding(mesh(), PartitionSpec(*names))


def do_split_batches(directory):
    ds = make_numbers(directory)
    shardings = [mesh(), split("data"), split("data", None), split(("data",), None, None)]
    for sharding in shardings:
        loader = ds.batches(4, 3, seed=2)
        for batch, expected in zip(loader.to_jax(sharding), ds.batches(4, 3, seed=2), strict=True):
            for found, right in zip(batch, expected, strict=True):
                assert equal(found, right)
                assert [shard.index[0] for shard in found.addressable_shards] == [
                    slice(0, 6, None), slice(6, 12, None)
                ]  # fmt: skip
                assert found.devices() == set(jax.devices())
        assert (loader.epoch, loader.step) == (1, len(loader))


def test_batches_are_split_along_their_first_dimension(two_devices, directory, ds):
    two_devices(do_split_batches, directory / "numbers")


def do_whole_classes(directory):
    for x, y in make_numbers(directory).batches(4, 3, seed=2).to_jax(mesh()):
        parts = [np.asarray(shard.data) for shard in y.addressable_shards]
        classes = [np.unique(part, return_counts=True) for part in parts]
        assert [counts.tolist() for _, counts in classes] == [[3, 3], [3, 3]]
        assert not set(classes[0][0]) & set(classes[1][0])
        for shard, part in zip(x.addressable_shards, parts, strict=True):
            assert LABELS[numbers_of(np.asarray(shard.data))].tolist() == part.tolist()


def test_each_device_has_whole_classes(two_devices, directory, ds):
    two_devices(do_whole_classes, directory / "numbers")


def do_one_device_of_two(directory):
    x, y = next(make_numbers(directory).batches(3, 1).to_jax(jax.devices()[1]))
    assert x.devices() == y.devices() == {jax.devices()[1]}
    replicated = next(make_numbers(directory).batches(3, 1).to_jax(split()))[0]
    assert [shard.data.shape for shard in replicated.addressable_shards] == [(3, 2, 3)] * 2
    single = tensor(np.float32(3), split("data"))
    assert single.is_fully_replicated
    moved = tensor(jnp.arange(4), split("data"))
    assert [shard.data.tolist() for shard in moved.addressable_shards] == [[0, 1], [2, 3]]


def test_arrays_go_to_one_of_two_devices_or_to_both(two_devices, directory, ds):
    two_devices(do_one_device_of_two, directory / "numbers")


def do_uneven(directory):
    ds = make_numbers(directory)
    refused = {
        "9 rows": ds.batches(3, 3),
        "35 rows": ds.sequential(35),
        f"{COUNT % 50 - 1} rows": ds.select(range(COUNT - 1)).shuffled(50),
    }
    for told, loader in refused.items():
        with pytest.raises(PlanError, match=rf"{told}.*2 devices.*remainder='drop'"):
            loader.to_jax(mesh())
        assert loader.step == 0
    # Rows that a hook makes are what counts.
    twice = ds.batches(3, 3, batch_transform=lambda x, y: (x.repeat(2, 0), y.repeat(2)))
    assert next(twice.to_jax(mesh()))[0].shape == (18, 2, 3)
    fewer = ds.batches(4, 1, batch_transform=lambda x, y: (x[1:], y[1:]))
    with pytest.raises(PlanError, match="3 rows"):
        next(fewer.to_jax(mesh()))
    ends = ds.sequential(100).to_jax(mesh())
    assert [len(x) for x, _ in ends] == [100, 80]
    with pytest.raises(PlanError, match=r"a mesh of the axes \('data', 'model'\)"):
        ds.batches(4, 2).to_jax(Mesh(np.array([jax.devices()]), ("data", "model")))


def test_batches_that_cannot_be_split_are_refused_before_the_loop(two_devices, directory, ds):
    two_devices(do_uneven, directory / "numbers")


def do_lists(directory):
    ds = make_numbers(directory)
    lists = ds.batches(4, 2, transform=lambda each: np.zeros(1 + int(each["x"][0, 0]) % 5))
    with pytest.raises(PlanError, match=r"list of arrays.*image_size="):
        next(lists.to_jax(mesh()))
    texts = ds.batches(4, 2, batch_transform=lambda x, y: {"x": x, "name": ["wren"] * 8})
    batch = next(texts.to_jax(mesh()))
    assert batch["name"] == ["wren"] * 8
    assert len(batch["x"].addressable_shards) == 2


def test_lists_of_arrays_are_not_split(two_devices, directory, ds):
    two_devices(do_lists, directory / "numbers")


def do_keep(directory):
    covey.loader.prefetch._allocate = aligned
    ds = make_numbers(directory)
    for reuse_buffers in (False, True):
        loader = ds.batches(4, 2, threads=1, prefetch=2, reuse_buffers=reuse_buffers)
        kept = [batch for _ in range(3) for batch in loader.to_jax(mesh())]
        reference = ds.batches(4, 2)
        expected = [batch for _ in range(3) for batch in reference]
        assert jax.tree.all(jax.tree.map(equal, kept, expected))


def test_kept_arrays_of_two_devices_never_change(two_devices, directory, ds):
    two_devices(do_keep, directory / "numbers")


@jax.jit
def train(w, x, y):
    """A step of a small classifier."""

    def loss(w):
        logits = x.reshape(len(x), -1) / 200 @ w
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.5 * gradient, value


def trained(batches):
    w, losses = jnp.zeros((6, 12)), []
    for x, y in itertools.islice(batches, 8):
        w, value = train(w, x, y)
        losses.append(float(value))
    return losses


def do_train(directory):
    ds = make_numbers(directory)
    split, alone = ds.batches(6, 2, seed=3), ds.batches(6, 2, seed=3)
    losses = trained(split.to_jax(mesh()))
    assert np.allclose(losses, trained(alone), rtol=1e-5)
    assert len(set(losses)) == 8
    assert split.step == alone.step == 8


def test_training_on_two_devices_is_training_on_one(two_devices, directory, ds):
    two_devices(do_train, directory / "numbers")


# Two processes.


def be_rank(rank, directory, address):
    """One of two processes, with two devices each."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, 2, rank, coordinator_bind_address=address, initialization_timeout=60
    )
    assert (jax.process_index(), len(jax.devices()), len(jax.local_devices())) == (rank, 4, 2)
    everywhere = Mesh(np.array(jax.devices()), ("data",))
    ds, ours = make_numbers(Path(directory)), {"rank": rank, "world_size": 2}

    loader = ds.batches(4, 3, seed=2, **ours)
    for batch, complete in zip(loader.to_jax(everywhere), ds.batches(4, 3, seed=2), strict=True):
        for found, right in zip(batch, complete, strict=True):
            assert found.shape == right.shape
            for shard in found.addressable_shards:
                assert equal(shard.data, right[shard.index])
    losses = trained(ds.batches(4, 3, seed=2, **ours).to_jax(everywhere))
    assert np.allclose(losses, trained(ds.batches(4, 3, seed=2)), rtol=1e-5)

    refused = [
        (f"not those of rank {1 - rank} of 2", ds.batches(4, 3, rank=1 - rank, world_size=2)),
        ("not those of rank 0 of 1", ds.batches(4, 3)),
        ("2 parts of a step have different lengths", ds.batches(5, 2, **ours)),
        ("2 parts of a step have different lengths", ds.select(range(171)).sequential(100, **ours)),
        (
            "2 parts of a step have different lengths",
            ds.sequential(100, mode="independent", **ours),
        ),
        ("have 1 to 2 steps", ds.sequential(70, mode="independent", **ours)),
        ("3 rows.* 2 devices", ds.batches(2, 3, **ours)),
    ]
    for told, each in refused:
        with pytest.raises(PlanError, match=told):
            each.to_jax(everywhere)
    # A process alone, and arrays that all have.
    assert next(ds.batches(4, 3).to_jax())[0].is_fully_addressable
    shared = next(ds.batches(4, 3, seed=1).to_jax(NamedSharding(everywhere, PartitionSpec())))[0]
    assert shared.shape == (12, 2, 3)
    assert equal(shared.addressable_shards[1].data, ds.batches(4, 3, seed=1).batch(0)[0])
    sys.stdout.write(json.dumps(losses) + "\n")


def test_two_processes_have_the_batches_of_one(directory, ds):
    code = (
        "import sys; from test_adapter_jax import be_rank; be_rank(int(sys.argv[1]), *sys.argv[2:])"
    )
    environment = {**os.environ, "XLA_FLAGS": DEVICES, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", code]
        runs = [
            subprocess.Popen(
                [*command, str(rank), str(directory / "numbers"), f"unix:{place}/address"],
                cwd=Path(__file__).parents[1] / "helpers", env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            told = [run.communicate(timeout=120) for run in runs]
        finally:
            for run in runs:
                with suppress(ProcessLookupError):
                    run.kill()
    assert [run.returncode for run in runs] == [0, 0], told
    losses = [out.splitlines()[-1] for out, _ in told]
    assert losses[0] == losses[1]
