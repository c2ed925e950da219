"""TensorFlow: types of batches, epochs, checkpoints, and training.

The contract of all adapters is tested in test_adapters.py.
"""

import gc
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import weakref
from contextlib import suppress

import keras
import numpy as np
import pytest
import tensorflow as tf
from loaded import COUNT, make, numbers_of
from opened import opened, put
from written import write

from covey import Image, Sparse, Tensor
from covey.adapters.tensorflow import group_size, tensor
from covey.errors import FeatureError
from covey.schema import RaggedArray, SparseArray, StringArray


@pytest.fixture(scope="module")
def dataset(ds):
    return ds


def as_lists(value):
    """Return a batch of arrays or tensors as lists."""
    if isinstance(value, dict):
        return {name: as_lists(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [as_lists(each) for each in value]
    if isinstance(value, tf.SparseTensor):
        value = tf.sparse.to_dense(value)
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    return value.numpy().tolist() if tf.is_tensor(value) else value.tolist()


def steps(dataset, count=None):
    """Return the numbers of the examples of each batch."""
    batches = dataset if count is None else dataset.take(count)
    return [numbers_of(x) for x, _ in batches]


# Types of batches.


def test_tensors_share_aligned_memory(tmp_path):
    """Also with tf.data's prefetch and map; the memory is reused when the tensors are gone."""
    addresses = {}

    def allocate(shape, dtype):
        memory = mmap.mmap(-1, int(np.prod(shape)) * dtype.itemsize)  # aligned to a page
        array = np.ndarray(shape, dtype, buffer=memory)
        addresses[array.ctypes.data] = shape
        return array

    images = np.random.default_rng(0).integers(0, 256, (60, 64, 64, 3), dtype=np.uint8)
    write({"image": images, "label": np.arange(60) % 6}, tmp_path / "images", label="label")
    with opened(tmp_path / "images") as dataset:
        loader = dataset.batches(6, 8, steps_per_epoch=50, threads=2)
        expected = dataset.batches(6, 8, steps_per_epoch=50)
        batches = loader.copy(allocate=allocate).to_tf()
        found = set()
        for batch, right in zip(batches.prefetch(2), expected, strict=True):
            for part, values in zip(batch, right, strict=True):
                view = np.asarray(memoryview(part))  # numpy() would copy
                assert addresses[view.ctypes.data] == view.shape
                assert np.array_equal(view, values)
                found.add(view.ctypes.data)
            del batch, part, view
    assert len(found) < 50  # of 100 arrays


COLUMNS = {
    "text": ("str", "owl" * 3, tf.TensorSpec([None], tf.string)),
    "strings": (Tensor("str", (2,)), ["owl", "ö"], tf.TensorSpec([None, 2], tf.string)),
    "some": (Tensor("str", (None,)), ["owl"], tf.RaggedTensorSpec([None, None], tf.string, 1)),
    "rows": (
        Tensor("float32", (None, 2)),
        [[1.0, 2.0]],
        tf.RaggedTensorSpec([None, None, 2], tf.float32, 1),
    ),
    "sparse": (
        Sparse("float32", (2, 3)),
        [[0, 1.5, 0], [2, 0, 0]],
        tf.SparseTensorSpec([None, 2, 3], tf.float32),
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_all_types(tmp_path, name):
    kind, value, spec = COLUMNS[name]
    write([{name: value} for _ in range(5)], tmp_path / "data", features={name: kind})
    with opened(tmp_path / "data") as dataset:
        batches = dataset.sequential(2).to_tf()
        assert batches.element_spec == spec
        rows = [row for x in batches for row in as_lists(x)]
        assert rows == [tf.nest.map_structure(encoded, value)] * 5


def encoded(value):
    return value.encode() if isinstance(value, str) else value


def test_tensors_of_arrays():
    for name, kind in (("uint16", "u2"), ("int32", ">i4")):
        found = tensor(np.arange(3, dtype=kind))
        assert (found.dtype, found.numpy().tolist()) == (name, [0, 1, 2])
    assert tensor(StringArray.of(["owl", "ö"])).numpy().tolist() == [b"owl", "ö".encode()]
    assert tensor(np.array(["owl", "ö"])).numpy().tolist() == [b"owl", "ö".encode()]
    assert tensor(RaggedArray.of([[1], [2, 3], [4]])[1:]).to_list() == [[2, 3], [4]]
    sparse = tensor(SparseArray(np.array([[3], [1]]), np.array([7.0, 5.0]), (4,)))
    assert tf.sparse.to_dense(sparse).numpy().tolist() == [0, 5, 0, 7]
    given = tf.constant(3)
    assert tensor(given) is given


def halve(x, y):
    return {**x, "half": x["x"] / 2, "first": x["x"][:, :1]}, y


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, {"x": (8, None)}),
        ({"pad_length": 5}, {"x": (8, 5)}),
        # The first and the last batch have rows of the same length.
        ({"transform": lambda each: {"x": each["x"][:1]}}, {"x": (8, None)}),
        ({"batch_transform": halve}, {"x": (8, None), "half": (8, None), "first": (8, 1)}),
    ],
)
def test_element_spec_of_padded_features(made, options, shapes):
    loader = made("ragged").batches(4, 2, steps_per_epoch=9, pad=0, **options)
    spec = loader.to_tf().element_spec[0]
    assert {name: tuple(each.shape) for name, each in spec.items()} == {**shapes, "x_length": (8,)}


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, None),
        ({"remainder": "drop"}, 70),
        ({"remainder": "fill"}, 70),
        ({"rank": 1, "world_size": 2, "remainder": "drop"}, 35),
    ],
)
def test_length_of_the_last_batch(dataset, options, rows):
    loader = dataset.shuffled(70, **options)
    batches = loader.copy().to_tf()
    assert batches.element_spec[1] == tf.TensorSpec([rows], tf.int64)
    assert steps(batches) == [numbers_of(x) for x, _ in loader]
    policy = batches.options().experimental_distribute.auto_shard_policy
    assert (policy == tf.data.experimental.AutoShardPolicy.OFF) == ("rank" in options)


# Hooks: their next batch has the type of all.


def test_hooks_change_the_type_of_batches(dataset):
    """Hooks are called for the next batch of the loader only."""
    seen = []

    def once(example):
        return {"x": example["x"] * 2, "name": "owl", "label": example["label"]}

    def twice(x, y):
        seen.append(numbers_of(x["x"] / 2))
        return [x["x"].astype(np.float64), tf.constant(y), x["name"], [[1], [2]]]

    loader = dataset.sequential(70, transform=once, batch_transform=twice)
    loader.seek(1)
    batches = loader.to_tf()
    assert batches.element_spec == (
        tf.TensorSpec([None, 2, 3], tf.float64),
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None, 1], tf.int64),
    )
    assert seen == [list(range(70, 140))]
    found = [[int(row[0, 0]) // 2 for row in x] for x, *_ in batches]
    assert found == [list(range(70, 140)), list(range(140, COUNT))]


def wide(x, y):
    return np.zeros((len(y), 9 if x[0, 0, 0] == 60 else 5)), y


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (wide, r"\[60,9\] is not compatible with expected shape \[60,5\]"),
        (lambda x, y: {"x": x, "zy"[int(x[0, 0, 0] < 60)]: y}, r"keys type=list str=.'x', 'z'"),
        (lambda x, y: (x, y) if x[0, 0, 0] < 60 else (x, y, y), "same nested structure"),
        (lambda x, y: (x if x[0, 0, 0] < 60 else x.astype(int), y), "(?s)int64.*float"),
    ],
    ids=["shape", "keys", "length", "dtype"],
)
def test_a_batch_of_another_type(dataset, hook, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(dataset.sequential(60, batch_transform=hook).to_tf())


def test_element_spec(dataset):
    loader = dataset.sequential(60, batch_transform=wide)
    spec = (tf.TensorSpec([60, None], tf.float64), tf.TensorSpec([60], tf.int64))
    assert [x.shape[1] for x, _ in loader.to_tf(element_spec=spec)] == [5, 9, 5]


def test_batches_without_a_type(tmp_path):
    kinds = {"x": Tensor("uint8", (None, None), encoding="bytes"), "image": Image((None, None, 3))}
    many = [{name: np.zeros((n, 2, 3)[: 2 + (name == "image")], np.uint8) for name in kinds}
            for n in range(1, 6)]  # fmt: skip
    write(many, tmp_path / "data", features=kinds)
    with opened(tmp_path / "data") as dataset:
        with pytest.raises(FeatureError, match="pad them in batch_transform="):
            dataset.sequential(2, select="x").to_tf()
        padded = dataset.sequential(2, select="x", batch_transform=lambda x: np.zeros((len(x), 4)))
        assert padded.to_tf().element_spec == tf.TensorSpec([None, 4], tf.float64)
        with pytest.raises(FeatureError) as caught:
            dataset.sequential(2, select="image", image_size="ragged").to_tf()
        assert (caught.value.option, caught.value.found) == ("image_size", "ragged")
        rows = dataset.sequential(2, select="x", batch_transform=lambda x: {"x": list(x)})
        with pytest.raises(FeatureError, match=r"shapes of the rows.*pad="):
            rows.to_tf()


def test_large_batches_are_not_stacked():
    assert list(map(group_size, (1, 2**17, 2**18, 2**19 + 1))) == [8, 8, 4, 1]


# Epochs.


def test_repeat_take_and_prefetch(dataset):
    loader = dataset.shuffled(70, seed=2)
    expected = [numbers_of(loader.batch(step)[0]) for step in range(9)]
    assert steps(loader.copy().to_tf().repeat(3)) == expected
    assert steps(loader.copy().to_tf().repeat().prefetch(4), 7) == expected[:7]
    short = loader.to_tf().take(2)
    assert [steps(short), steps(short)] == [expected[:2], expected[3:5]]
    assert loader.epoch == 2


def test_epoch_that_begins_within(dataset):
    """Keras needs the number of batches, which TensorFlow checks."""
    loader = dataset.shuffled(30, seed=2)
    expected = [numbers_of(loader.batch(step)[0]) for step in range(12)]
    moved = loader.to_tf()
    loader.seek(4)
    batches = loader.to_tf()
    assert steps(batches.repeat(2)) == expected[4:]
    assert (int(batches.cardinality()), int(moved.cardinality())) == (-2, 6)
    loader.seek(4)
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected to contain 6 elements"):
        list(moved)
    assert steps(moved) == expected[6:]


def test_concurrent_iterators(dataset):
    loader = dataset.shuffled(50, seed=2)
    batches = loader.to_tf()
    pairs = list(zip(batches, batches, strict=True))
    assert [numbers_of(a[0]) for a, _ in pairs] == [
        numbers_of(loader.batch(s)[0]) for s in range(4)
    ]
    assert [numbers_of(b[0]) for _, b in pairs] == [
        numbers_of(loader.batch(s)[0]) for s in range(4, 8)
    ]
    assert loader.epoch == 2


def test_prefetching_ends_with_the_last_reference_to_the_dataset(tmp_path):
    make(tmp_path / "data", "numbers").close()
    opened_dataset = opened(tmp_path / "data")
    batches = opened_dataset.batches(4, 3).to_tf()
    known, reader = weakref.ref(opened_dataset), weakref.ref(batches._covey_steps)
    iterator = iter(batches.repeat().prefetch(2))
    next(iterator)
    del batches, opened_dataset
    gc.collect()
    assert reader() is not None
    next(iterator)
    del iterator
    gc.collect()
    assert (reader(), known()) == (None, None)


def test_a_dataset_in_a_graph_only(dataset):
    batches = dataset.batches(4, 3, seed=2).to_tf()

    def trace(batches):
        sums = tf.function(lambda: batches.reduce(np.int64(0), lambda n, batch: n + batch[1][0]))
        return sums.get_concrete_function()

    traced = trace(batches)
    expected = sum(int(y[0]) for _, y in dataset.batches(4, 3, seed=2))
    assert int(traced()) == expected
    del batches
    gc.collect()
    with pytest.raises(tf.errors.OpError, match="dataset was deleted; keep a reference to it"):
        traced()


# Checkpoints.


@pytest.mark.parametrize(
    ("kind", "prefetch", "stops"),
    [("numbers", 0, (0, 1, 4, 5, 11)), ("numbers", 3, (0, 1, 4, 5, 11)), ("ragged", 3, (4,))],
)
def test_resume_from_checkpoint(made, tmp_path, kind, prefetch, stops):
    """Also at the end of an epoch, after 5 steps."""
    loader = made(kind).shuffled(40, seed=2)
    expected = [numbers_of(loader.batch(step)[0]) for step in range(14)]

    def batches():
        repeated = loader.copy().to_tf().repeat()
        return iter(repeated.prefetch(prefetch) if prefetch else repeated)

    iterator, other = batches(), batches()
    for step in range(12):
        if step in stops:
            saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / f"saved{step}"))
            tf.train.Checkpoint(iterator=other).read(saved)
            assert [numbers_of(next(other)[0]) for _ in range(14 - step)] == expected[step:]
        assert numbers_of(next(iterator)[0]) == expected[step]


# Training.


def numbered(number):
    return {"x": [number, 0.5, -number], "label": number // 10}


def test_replicas_and_the_end_of_the_process(tmp_path):
    make(tmp_path / "data", "numbers").close()
    features = {"x": Tensor("float32", (3,)), "label": "int64"}
    for shard in range(12):  # two classes each
        numbers = range(20 * shard, 20 * shard + 20)
        put(tmp_path / f"shards/{shard}.tfrec", map(numbered, numbers), features)
    command = [sys.executable, "-c", REPLICAS, str(tmp_path / "data"), str(tmp_path / "shards")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["True"] * 13


REPLICAS = """
import sys
import keras
import numpy as np, tensorflow as tf
import covey
from covey.adapters.tensorflow import position_callback
from covey.samplers import TFRecordDatasetSampler

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def replicas(value):
    return [each.numpy() for each in strategy.experimental_local_results(value)]

loader = covey.open(sys.argv[1]).batches(4, 2, seed=1, steps_per_epoch=4)
distributed = strategy.experimental_distribute_dataset(loader.to_tf())
for epoch in range(2):
    for step, parts in enumerate(distributed):
        x, y = map(replicas, parts)
        complete = loader.batch(epoch * 4 + step)
        joined = [np.concatenate(each) for each in (x, y)]
        is_same = all(np.array_equal(a, b) for a, b in zip(joined, complete))
        print(is_same and [len(each) for each in y] == [4, 4])

PARSED = {"x": tf.io.FixedLenFeature([3], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}

def parse(record):
    example = tf.io.parse_single_example(record, PARSED)
    return example["x"], example["label"]

labelled = TFRecordDatasetSampler(sys.argv[2], parse, 2, 24, label="label")
mapped = TFRecordDatasetSampler(sys.argv[2], parse, 2, 24)
for batches in (labelled, mapped):
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    for _ in range(2):
        parts = replicas(next(iterator)[1])
        print([len(part) for part in parts] == [12, 12] and len(set(np.concatenate(parts))) == 12)
# Keras reads a batch to build the model, which is an iteration.
trained = covey.open(sys.argv[1]).batches(4, 2, seed=1, steps_per_epoch=4)
with strategy.scope():
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(12)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
for _ in range(2):
    callback = position_callback(trained)
    model.fit(trained.to_tf(), epochs=2, verbose=0, shuffle=False, callbacks=[callback])
print(trained.step == 16 == int(model.optimizer.iterations.numpy()))
busy = iter(loader.to_tf().repeat().prefetch(100_000))  # still runs when the interpreter exits
next(busy)
"""


# Two workers of MultiWorkerMirroredStrategy, in two processes.


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def test_two_workers(tmp_path):
    make(tmp_path / "data", "numbers").close()
    addresses = free_addresses(2)
    runs = []
    for rank in range(2):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        command = [sys.executable, "-c", WORKER, str(tmp_path / "data"), str(rank)]
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        runs.append(
            subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    try:
        output = [run.communicate(timeout=240) for run in runs]
    finally:
        for run in runs:
            with suppress(ProcessLookupError):
                run.kill()
    assert [run.returncode for run in runs] == [0, 0], output
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in output)
    with opened(tmp_path / "data") as dataset:
        expected = {
            "balanced": dataset.batches(4, 3, seed=1, steps_per_epoch=3).plan.batches(0, 7),
            "shuffled": [dataset.shuffled(50, seed=1).plan.batch(step) for step in range(4)],
            "sampler": dataset.batches(4, 3).plan.batches(0, 20),
        }
    for name, parts in first.items():
        complete = [np.asarray(each).tolist() for each in expected[name.split()[0]]]
        steps = list(zip(parts, second[name], strict=True))  # the same number of steps
        assert [a + b for a, b in steps] == complete[: len(steps)]
        assert all(len(a) == len(b) for a, b in steps)
        assert len(steps) == {"finite": 3, "rank": 3, "repeated": 7}.get(name.split()[-1], 4)


WORKER = """
import json, sys
import numpy as np, tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import covey
from covey.samplers import TFRecordDatasetSampler

path, rank = sys.argv[1], int(sys.argv[2])
ds = covey.open(path)
PARSED = {"x": tf.io.FixedLenFeature([6], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}

def parse(record):
    example = tf.io.parse_single_example(record, PARSED)
    return example["x"], example["label"]

def sample(function):
    return TFRecordDatasetSampler(path, function, 3, 12, shard_suffix="*.tfrecord*")

def balanced(**options):
    return ds.batches(4, 3, seed=1, steps_per_epoch=3, **options).to_tf()

def ranked(context):
    return balanced(rank=context.input_pipeline_id, world_size=context.num_input_pipelines)

def with_policy(batches):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.with_options(options)

def numbers(x):
    (part,) = strategy.experimental_local_results(x)
    return [int(row[0]) for row in part.numpy().reshape(len(part), -1)]

share = strategy.experimental_distribute_dataset
found = {
    "balanced finite": share(balanced()),
    "balanced repeated": share(balanced().repeat().take(7)),
    "balanced DATA finite": share(with_policy(balanced())),
    "balanced rank": strategy.distribute_datasets_from_function(ranked),
    "shuffled": share(ds.shuffled(50, seed=1).to_tf()),
    "sampler": share(sample(parse).take(4)),
    "sampler decoded": share(sample(None).take(4)),
}
print(json.dumps({name: [numbers(x) for x, _ in batches] for name, batches in found.items()}))
"""


# Keras.


class Recorder(keras.Model):
    """A model that records the batches of training and of evaluation."""

    def __init__(self):
        super().__init__()
        self.dense, self.seen, self.tested = keras.layers.Dense(1), [], []
        self.compile(loss="mse", optimizer="sgd", run_eagerly=True)
        self.fit(np.zeros((1, 2, 3)), np.zeros(1), verbose=0)  # Keras builds it with a batch
        self.evaluate(np.zeros((1, 2, 3)), np.zeros(1), verbose=0)
        self.seen, self.tested = [], []

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.seen.append(numbers_of(data[0]))
        return {"loss": 0.0}

    def test_step(self, data):
        self.tested.append(numbers_of(data[0]))
        return {"loss": 0.0}


def test_validation_data(dataset):
    """Each evaluation is the next epoch of its own loader."""
    loader, valid = dataset.shuffled(50, seed=1), dataset.shuffled(70, seed=2)
    model, batches = Recorder(), valid.to_tf()
    for epochs in (1, 2):
        model.fit(loader.to_tf(), epochs=epochs, validation_data=batches, shuffle=False, verbose=0)
    model.evaluate(batches, verbose=0)
    assert model.seen == [numbers_of(loader.batch(step)[0]) for step in range(3 * 4)]
    assert model.tested == [numbers_of(valid.batch(step)[0]) for step in range(4 * 3)]
    assert (loader.epoch, valid.epoch) == (3, 4)


def test_resume_of_a_killed_process(tmp_path):
    """A process that is killed within an epoch resumes with the next batch.

    Also with another number of steps per execution.
    """
    dataset = make(tmp_path / "data", "numbers")
    plan = dataset.batches(4, 2, seed=3, steps_per_epoch=8).plan
    arguments = [str(tmp_path / each) for each in ("data", "backup", "seen")]
    for executed, stop, code in ((2, 12, -signal.SIGKILL), (1, 0, 0)):
        command = [sys.executable, "-c", FIT, *arguments, str(executed), str(stop)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert run.returncode == code, run.stderr
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert seen == plan.batches(0, 24).tolist()
    assert run.stdout.splitlines()[-1] == "24 3"


FIT = """
import json, os, signal, sys
import keras
import numpy as np
import tensorflow as tf
import covey
from covey.adapters.tensorflow import position_callback

path, backup, log, executed, stop = *sys.argv[1:4], *map(int, sys.argv[4:])
seen = open(log, "a")

def record(numbers):
    print(json.dumps(numbers.astype(int).tolist()), file=seen, flush=True)
    return np.int32(0)

class Recorder(keras.Model):
    def build(self, shape):
        self.dense = keras.layers.Dense(12)
        self.dense.build((None, 6))

    def call(self, x):
        return self.dense(tf.reshape(x, [-1, 6]))

    def train_step(self, data):
        with tf.control_dependencies([tf.numpy_function(record, [data[0][:, 0, 0]], tf.int32)]):
            return super().train_step((tf.identity(data[0]), data[1]))

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == stop:
            os.kill(os.getpid(), signal.SIGKILL)

loader = covey.open(path).batches(4, 2, seed=3, steps_per_epoch=8)
model = Recorder()
model.build((None, 2, 3))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, steps_per_execution=executed)
callbacks = [
    position_callback(loader),
    keras.callbacks.BackupAndRestore(backup, save_freq=executed),
    Kill(),
]
model.fit(loader.to_tf().prefetch(2), epochs=3, verbose=0, shuffle=False, callbacks=callbacks)
print(loader.step, loader.epoch)
"""
