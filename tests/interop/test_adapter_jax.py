"""JAX: arrays on a device, sharded over two devices, and over two processes.

The contract of all adapters is tested in test_adapters.py.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from loaded import COUNT, LABELS, make_numbers, numbers_of, same
from written import fresh_process

from covey.adapters.jax import tensor
from covey.errors import ClosedError, PlanError

DEVICES = "--xla_force_host_platform_device_count=2"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The path of the dataset, for other processes."""
    path = tmp_path_factory.mktemp("jax") / "numbers"
    make_numbers(path).close()
    return path


@pytest.fixture(scope="module")
def two_devices(path):
    """Run functions with a dataset in a process in which JAX has two devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", DEVICES)  # before JAX is imported
        with fresh_process() as run:
            yield lambda action: run(action, path)


def equal(found, expected):
    """Return whether an array of JAX has these values, in the type that JAX converts them to."""
    expected = np.asarray(expected)
    expected = expected.astype(jax.dtypes.canonicalize_dtype(expected.dtype))
    return isinstance(found, jax.Array) and same(np.asarray(found), expected)


def all_equal(found, expected):
    return jax.tree.all(jax.tree.map(equal, found, expected))


# Single arrays.


def test_values_of_all_kinds():
    types = "bool uint8 int16 int64 uint64 float16 float64 >i4 complex64"
    for dtype in types.split():
        values = np.arange(6).reshape(2, 3).astype(dtype)
        assert equal(tensor(values), values.astype(values.dtype.newbyteorder("=")))
        assert equal(tensor(values[0, 0]), values[0, 0])
    arrays = [np.array(["wren"]), np.array([None]), np.zeros(2, "M8[s]"), jnp.arange(3)]
    for value in ("wren", b"wren", None, 3, *arrays):
        assert tensor(value) is value


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2**31, "int64"), (-(2**31) - 1, "int64"), (2**62, "int64"), (2**32, "uint64")],
)
def test_integers_that_jax_would_change(ds, value, dtype):
    values = np.array([0, value], dtype)
    with pytest.raises(PlanError, match=rf"{value}.*{dtype[:-2]}32.*jax_enable_x64"):
        tensor(values)
    with jax.enable_x64(True):
        assert np.asarray(tensor(values)).tolist() == [0, value]
    values[1] -= np.sign(value)  # the largest or smallest that fits
    assert value == 2**62 or equal(tensor(values), values)


# Batches.


def empty_aligned(shape, dtype):
    found, others = np.empty(shape, dtype), []
    while found.ctypes.data % 64:  # then memory is allocated elsewhere
        others += [found, np.empty(16 * (len(others) % 16 + 1), np.uint8)]
        found = np.empty(shape, dtype)
    return found


def test_jax_shares_aligned_memory():
    values = empty_aligned((4, 3), np.float32)
    values[:] = 1
    shared = tensor(values)
    values[:] = 2
    assert np.asarray(shared).tolist() == [[2, 2, 2]] * 4


def check_kept_arrays(ds, threads, reuse_buffers, sharding=None):
    """Check that arrays of batches never change.

    JAX shares the memory of about a quarter of all buffers, those that happen to be aligned:
    there are many loaders, so that some of their buffers are.
    """
    for classes, examples in itertools.product((4, 6, 8, 10), (2, 4, 6, 8)):
        options = {"steps_per_epoch": 6, "seed": classes}
        loader = ds.batches(classes, examples, threads=threads, prefetch=2,
                            reuse_buffers=reuse_buffers, **options)  # fmt: skip
        kept, copies = [], []
        epochs = (loader.to_jax(sharding) for _ in range(2))
        for step, batch in enumerate(itertools.chain.from_iterable(epochs)):
            if step % 3:  # the memory of the others is used again
                kept.append(batch)
                copies.append(jax.tree.map(np.array, batch))
            del batch
        expected = [loader.batch(step) for step in range(12) if step % 3]
        assert all_equal(kept, copies)
        assert all_equal(kept, expected)


@pytest.mark.filterwarnings("ignore:.*classes have fewer than")
@pytest.mark.parametrize("reuse_buffers", [False, True])
@pytest.mark.parametrize("threads", [0, 2])
def test_arrays_of_batches_never_change(ds, threads, reuse_buffers):
    check_kept_arrays(ds, threads, reuse_buffers)


@partial(jax.jit, donate_argnums=(0, 1))
def consume(x, y):
    return x * 2, y + 1


@pytest.mark.parametrize("reuse_buffers", [False, True])
def test_arrays_may_be_donated(ds, reuse_buffers):
    """Their memory is overwritten, which no other batch may see."""
    options = {"seed": 3, "steps_per_epoch": 40}
    loader = ds.batches(8, 4, threads=2, prefetch=2, reuse_buffers=reuse_buffers, **options)
    for batch, (x, y) in zip(loader.to_jax(), ds.batches(8, 4, **options), strict=True):
        assert all_equal(batch, (x, y))
        assert all_equal(consume(*batch), (x * 2, y + 1))
        assert all(each.is_deleted() for each in batch)


# Prefetched batches.


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_an_error_is_raised_after_the_batches_before_it(ds, prefetch, threads):
    failures = [2]

    def fail(x, y, step):
        if step == 3 and failures:
            failures.pop()
            raise ValueError("step 3")
        return x, y

    loader = ds.batches(4, 2, seed=9, steps_per_epoch=7, batch_transform=fail, threads=threads)
    batches, found = loader.to_jax(prefetch=prefetch), []
    with pytest.raises(ValueError, match="step 3"):
        for x, _ in batches:
            found.append(numbers_of(np.asarray(x)))
    assert (loader.step, len(found)) == (3, 3)
    found += [numbers_of(np.asarray(x)) for x, _ in batches]  # as with a loader, it is built again
    assert found == loader.plan.batches(0, 7).tolist()


def test_a_loader_that_is_moved_ends_the_iteration(ds):
    for move in (lambda loader: loader.seek(5), lambda loader: next(iter(loader))):
        loader = ds.batches(4, 2, seed=9, steps_per_epoch=7)
        batches = loader.to_jax()
        next(batches)
        move(loader)
        step = loader.step
        with pytest.raises(ClosedError):
            next(batches)
        assert equal(next(batches)[1], loader.batch(step)[1])  # another iteration


def test_copies_begin_before_batches_are_requested(ds, monkeypatch):
    copied, put = [], jax.device_put
    monkeypatch.setattr(jax, "device_put", lambda *args: copied.append(1) or put(*args))
    batches = iter(ds.batches(4, 2, steps_per_epoch=7).to_jax(prefetch=3))
    next(batches)
    assert len(copied) == 4 * 2
    assert len(list(batches)) == 6
    assert len(copied) == 7 * 2


@pytest.mark.parametrize(
    ("options", "option"),
    [({"prefetch": -1}, "prefetch"), ({"prefetch": 1.5}, "prefetch"),
     ({"dtype": "float64"}, "dtype"), ({"sharding": "data"}, "sharding"),
     ({"sharding": PartitionSpec("data")}, "sharding")],
)  # fmt: skip
def test_invalid_options(ds, options, option):
    with pytest.raises(PlanError) as caught:
        ds.batches(3, 2).to_jax(**options)
    assert (caught.value.option, caught.value.found) == (option, options[option])


# Shardings.


def mesh():
    assert len(jax.devices()) == 2
    return Mesh(np.array(jax.devices()), ("data",))


def named(*names):
    return NamedSharding(mesh(), PartitionSpec(*names))


def shard(directory):
    ds = make_numbers(directory)
    shardings = [mesh(), named("data"), named("data", None), named(("data",), None, None)]
    for sharding in shardings:
        loader = ds.batches(4, 3, seed=2, steps_per_epoch=5)
        expected = ds.batches(4, 3, seed=2, steps_per_epoch=5)
        for batch, right in zip(loader.to_jax(sharding), expected, strict=True):
            assert all_equal(batch, right)
            for found in batch:
                assert [each.index[0] for each in found.addressable_shards] == [
                    slice(0, 6, None), slice(6, 12, None)
                ]  # fmt: skip
                assert found.devices() == set(jax.devices())
            x, y = batch
            parts = [np.asarray(each.data) for each in y.addressable_shards]
            assert not set(parts[0].tolist()) & set(parts[1].tolist())  # complete classes
            for each, part in zip(x.addressable_shards, parts, strict=True):
                assert LABELS[numbers_of(np.asarray(each.data))].tolist() == part.tolist()
        assert (loader.epoch, loader.step) == (1, 5)


def place(directory):
    ds = make_numbers(directory)
    x, y = next(ds.batches(3, 1).to_jax(jax.devices()[1]))
    assert x.devices() == y.devices() == {jax.devices()[1]}
    single = SingleDeviceSharding(jax.devices()[1])
    assert next(ds.batches(3, 1).to_jax(single))[0].devices() == x.devices()
    replicated = next(ds.batches(3, 1).to_jax(named()))[0]
    assert [each.data.shape for each in replicated.addressable_shards] == [(3, 2, 3)] * 2
    assert tensor(np.float32(3), named("data")).is_fully_replicated
    moved = tensor(jnp.arange(4), named("data"))
    assert [each.data.tolist() for each in moved.addressable_shards] == [[0, 1], [2, 3]]


def reject(directory):
    ds = make_numbers(directory)
    loaders = {
        9: ds.batches(3, 3),
        35: ds.sequential(35),
        COUNT % 50 - 1: ds.select(range(COUNT - 1)).shuffled(50),
    }
    for rows, loader in loaders.items():
        with pytest.raises(PlanError, match=rf"rows is {rows};.*2 devices.*remainder='drop'"):
            loader.to_jax(mesh())
        assert loader.step == 0
    # The rows that a hook returns are sharded.
    twice = ds.batches(3, 3, batch_transform=lambda x, y: (x.repeat(2, 0), y.repeat(2)))
    assert next(twice.to_jax(mesh()))[0].shape == (18, 2, 3)
    fewer = ds.batches(4, 1, batch_transform=lambda x, y: (x[1:], y[1:]))
    with pytest.raises(PlanError, match="number of rows is 3"):
        next(fewer.to_jax(mesh()))
    assert [len(x) for x, _ in ds.sequential(100).to_jax(mesh())] == [100, 80]
    with pytest.raises(PlanError, match=r"a mesh of the axes \('data', 'model'\)"):
        ds.batches(4, 2).to_jax(Mesh(np.array([jax.devices()]), ("data", "model")))
    lists = ds.batches(4, 2, transform=lambda each: np.zeros(1 + int(each["x"][0, 0]) % 5))
    with pytest.raises(PlanError, match=r"list of arrays.*image_size="):
        next(lists.to_jax(mesh()))
    strings = ds.batches(4, 2, batch_transform=lambda x, y: {"x": x, "name": ["wren"] * 8})
    batch = next(strings.to_jax(mesh()))
    assert batch["name"] == ["wren"] * 8
    assert len(batch["x"].addressable_shards) == 2


def keep(directory):
    check_kept_arrays(make_numbers(directory), 1, True, mesh())


def train_sharded(directory):
    """Training on two devices has the losses of training on one."""
    ds = make_numbers(directory)
    losses = losses_of(ds.batches(4, 3, seed=2).to_jax(mesh()))
    assert np.allclose(losses, losses_of(ds.batches(4, 3, seed=2)), rtol=1e-5)
    assert len(set(losses)) == 8


@pytest.mark.parametrize("action", [shard, place, reject, keep, train_sharded])
def test_two_devices(two_devices, action):
    two_devices(action)


# Training.


@jax.jit
def train(w, x, y):
    """Return the weights after a step of a small classifier, and the loss."""

    def loss(w):
        logits = x.reshape(len(x), -1) / 200 @ w
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.5 * gradient, value


def losses_of(batches):
    w, losses = jnp.zeros((6, 12)), []
    for x, y in itertools.islice(batches, 8):
        w, value = train(w, x, y)
        losses.append(float(value))
    return losses


# Two processes.


def first_row(example):
    return {"t": example["x"][0]}


def act_as(rank, directory, address):
    """One of two processes, with two devices each."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, 2, rank, coordinator_bind_address=address, initialization_timeout=60
    )
    assert (jax.process_index(), len(jax.devices()), len(jax.local_devices())) == (rank, 4, 2)
    everywhere = Mesh(np.array(jax.devices()), ("data",))
    ds, share = make_numbers(Path(directory)), {"rank": rank, "world_size": 2}

    loader = ds.batches(4, 3, seed=2, **share)
    for batch, complete in zip(loader.to_jax(everywhere), ds.batches(4, 3, seed=2), strict=True):
        for found, right in zip(batch, complete, strict=True):
            assert found.shape == right.shape
            for each in found.addressable_shards:
                assert equal(each.data, right[each.index])
    losses = losses_of(ds.batches(4, 3, seed=2, **share).to_jax(everywhere))
    assert np.allclose(losses, losses_of(ds.batches(4, 3, seed=2)), rtol=1e-5)

    different = "ranks have different steps or rows"
    invalid = [
        (f"not those of rank {1 - rank} of 2", ds.batches(4, 3, rank=1 - rank, world_size=2)),
        ("not those of rank 0 of 1", ds.batches(4, 3)),
        (different, ds.batches(5, 2, **share)),
        (different, ds.select(range(171)).sequential(100, **share)),
        (different, ds.sequential(100, mode="independent", **share)),
        (different, ds.sequential(70, mode="independent", **share)),
        ("rows is 3.* 2 devices", ds.batches(2, 3, **share)),
        ("pads rows to the longest", ds.batches(4, 3, transform=first_row, pad={"t": 0}, **share)),
    ]
    for message, each in invalid:
        with pytest.raises(PlanError, match=message):
            each.to_jax(everywhere)
    fixed = ds.batches(4, 3, transform=first_row, pad={"t": 0}, pad_length=5, **share)
    assert next(fixed.to_jax(everywhere))[0]["t"].shape == (12, 5)
    # Arrays of one process, and arrays that are replicated in all.
    assert next(ds.batches(4, 3).to_jax())[0].is_fully_addressable
    shared = next(ds.batches(4, 3, seed=1).to_jax(NamedSharding(everywhere, PartitionSpec())))[0]
    assert shared.shape == (12, 2, 3)
    assert equal(shared.addressable_shards[1].data, ds.batches(4, 3, seed=1).batch(0)[0])
    sys.stdout.write(json.dumps(losses) + "\n")


def test_two_processes(path):
    code = (
        "import sys; from test_adapter_jax import act_as; act_as(int(sys.argv[1]), *sys.argv[2:])"
    )
    environment = {**os.environ, "XLA_FLAGS": DEVICES, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryDirectory() as short:  # paths of sockets have a maximum length
        runs = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(rank), str(path),
                 f"unix:{short}/address"],
                env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            output = [run.communicate(timeout=120) for run in runs]
        finally:
            for run in runs:
                with suppress(ProcessLookupError):
                    run.kill()
    assert [run.returncode for run in runs] == [0, 0], output
    losses = [out.splitlines()[-1] for out, _ in output]
    assert losses[0] == losses[1]
