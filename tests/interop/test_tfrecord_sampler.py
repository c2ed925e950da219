"""TFRecordDatasetSampler: what its old documentation promised, from shards in any order."""

import inspect
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from opened import opened, put
from servers import s3_server, stand_alone
from written import files, write

import covey
from covey.errors import PlanError
from covey.samplers import TFRecordDatasetSampler
from covey.storage import open_storage

CLASSES, EACH, SHARDS = 24, 10, 8
COUNT = CLASSES * EACH
FEATURES = {"x": covey.Tensor("float32", (3,)), "label": "int64"}
PARSED = {"x": tf.io.FixedLenFeature([3], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}


def parse(record):
    example = tf.io.parse_single_example(record, PARSED)
    return example["x"], example["label"]


def example(number):
    return {"x": [number, 0.5, -number], "label": number // EACH}


def put_shards(directory, numbers, shards=SHARDS, suffix=".tfrec", **options):
    """Shards without metadata, with these examples in this order."""
    for shard, part in enumerate(np.array_split(np.asarray(numbers), shards)):
        put(directory / f"s{shard}{suffix}", map(example, part.tolist()), FEATURES, **options)
    return directory


@pytest.fixture
def shuffled(tmp_path):
    return put_shards(tmp_path / "shards", np.random.default_rng(1).permutation(COUNT))


@pytest.fixture
def blocks(tmp_path):
    """As many shards as a batch has classes, with whole classes in each."""
    return put_shards(tmp_path / "blocks", range(COUNT), CLASSES // 2)


@pytest.fixture
def dataset(tmp_path):
    write(map(example, range(COUNT)), tmp_path / "birds", features=FEATURES, label="label",
          shards=SHARDS)  # fmt: skip
    return tmp_path / "birds"


def is_exact(y, classes, examples):
    found, counts = np.unique(np.asarray(y), return_counts=True)
    return len(found) == classes and set(counts.tolist()) == {examples}


def numbers(x):
    return [int(row[0]) for row in x]


def steps(batches, count=None):
    return [numbers(x) for x, _ in (batches if count is None else batches.take(count))]


# With a known label.


def test_every_batch_is_exact_from_shards_in_any_order(shuffled):
    batches = TFRecordDatasetSampler(shuffled, parse, 4, 32, label="label")
    assert all(is_exact(y, 8, 4) for _, y in batches.take(100))
    assert batches.element_spec == (
        tf.TensorSpec([32, 3], tf.float32),
        tf.TensorSpec([32], tf.int64),
    )
    assert all(n // EACH == label for x, y in batches.take(3)
               for n, label in zip(numbers(x), y.numpy(), strict=True))  # fmt: skip


def test_an_index_beside_the_shards_tells_the_label(shuffled):
    covey.build_index(shuffled, label="label")
    batches = TFRecordDatasetSampler(shuffled, parse, 4, 32)
    assert all(is_exact(y, 8, 4) for _, y in batches.take(20))


def test_an_index_of_these_very_shards_tells_the_label(shuffled):
    put(shuffled / "other.tfrecord", [example(0)], FEATURES)
    covey.build_index(str(shuffled / "*.tfrec"), label="label", progress=False)
    batches = TFRecordDatasetSampler(shuffled, parse, 4, 32)
    assert all(is_exact(y, 8, 4) for _, y in batches.take(20))


@pytest.mark.parametrize("has_index", [True, False])
def test_the_description_of_a_dataset_tells_the_label(dataset, has_index):
    for path in () if has_index else dataset.glob("*.npy"):
        path.unlink()
    batches = TFRecordDatasetSampler(dataset, parse, 4, 32, shard_suffix="*train*")
    assert all(is_exact(y, 8, 4) for _, y in batches.take(20))


def test_some_shards_of_a_dataset_can_be_chosen(dataset):
    pattern = "*-0000[1246]-of-*"
    (complete,) = steps(TFRecordDatasetSampler(dataset, None, 1, 4, shard_suffix=pattern,
                                            num_repeat=1).unbatch().batch(10**6))  # fmt: skip
    shards = sorted(dataset.glob(pattern))
    expected = [int(each["x"][0]) for path in shards for each in opened(path, label="label")]
    assert len(shards) == 4
    assert set(complete) == set(expected)


def test_shards_of_nobody_are_not_indexed_unasked(blocks):
    before = files(blocks)
    next(iter(TFRecordDatasetSampler(blocks, parse, 2, 24)))
    assert files(blocks) == before


def test_a_function_can_tell_the_class(shuffled):
    batches = TFRecordDatasetSampler(shuffled, parse, 4, 8, label=parity)
    assert all(sorted(n % 2 for n in batch) == [0] * 4 + [1] * 4 for batch in steps(batches, 9))


def parity(example):
    return int(example["x"][0]) % 2


def test_examples_decoded_by_covey_are_those_of_its_batches(dataset):
    batches = TFRecordDatasetSampler(dataset, None, 3, 12, shard_suffix="*train*", seed=5)
    with opened(dataset) as birds:
        loader = birds.batches(4, 3, seed=5)
        for step, (x, y) in enumerate(batches.take(70)):
            expected = loader.batch(step)
            assert np.array_equal(x, expected[0])
            assert np.array_equal(y, expected[1])


def test_covey_decodes_nothing_without_a_label(shuffled):
    with pytest.raises(ValueError, match=r"the shards have no known label.*label="):
        TFRecordDatasetSampler(shuffled, None)


def test_both_ways_to_decode_give_the_same_batches(shuffled):
    options = {"label": "label", "seed": 3}
    by_covey = TFRecordDatasetSampler(shuffled, None, 4, 32, **options)
    assert steps(by_covey, 60) == steps(
        TFRecordDatasetSampler(shuffled, parse, 4, 32, **options), 60
    )


@pytest.mark.parametrize("suffix", ["*train*", "*.tfrecord*"])
def test_files_of_a_replaced_version_are_left_out(dataset, suffix):
    new = range(COUNT, 2 * COUNT)
    write(map(example, new), dataset, features=FEATURES, label="label", shards=2, mode="overwrite")
    assert len(list(dataset.glob(suffix))) >= SHARDS + 2
    batches = TFRecordDatasetSampler(dataset, parse, 1, CLASSES, shard_suffix=suffix)
    drawn = list(chain(*steps(batches, EACH)))
    assert sorted(drawn) == list(new)


def test_pattern_of_a_replaced_version(dataset):
    pattern = "birds-train.tfrecord-*"
    write([example(0)], dataset, features=FEATURES, label="label", mode="overwrite")
    with pytest.raises(covey.errors.DatasetError, match="a version that was replaced") as caught:
        TFRecordDatasetSampler(dataset, parse, 1, 1, shard_suffix=pattern)
    assert caught.value.path.startswith(str(dataset / "birds-train.tfrecord-"))
    assert "a pattern that matches the names of the current version" in caught.value.reason


# Epochs.


def test_an_epoch_shows_every_example(shuffled):
    batches = TFRecordDatasetSampler(shuffled, parse, 2, 16, label="label", num_repeat=1)
    (epoch,) = steps(batches.unbatch().batch(10**6))
    assert set(epoch) == set(range(COUNT))
    assert int(batches.cardinality()) == COUNT // 16 == len(list(batches))


@pytest.mark.parametrize("decode", [parse, None])
def test_epochs_are_repeated_with_other_batches(shuffled, decode):
    batches = TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label", num_repeat=2)
    found = steps(batches)
    assert len(found) == 2 * COUNT // 16
    assert found[:15] != found[15:]
    endless = TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label")
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert steps(endless, 40)[:30] == found


def test_a_seed_tells_which_batches(shuffled):
    def some(seed):
        return steps(TFRecordDatasetSampler(shuffled, parse, 2, 16, label="label", seed=seed), 5)

    assert some(1) == some(1) != some(2)
    assert some(None) == some(0)


@pytest.mark.parametrize("decode", [parse, None])
def test_resume_from_checkpoint(shuffled, tmp_path, decode):
    """Also if prefetching threads have reached the end of an epoch, after 15 steps."""

    def sampler():
        return iter(TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label", parallelism=4))

    expected = [numbers(x) for _, (x, _) in zip(range(40), sampler(), strict=False)]
    for at in (*range(15, 24, 2), 30):
        iterator = sampler()
        for _ in range(at):
            next(iterator)
        time.sleep(0.1)  # the buffers of the iterator are full
        saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / f"saved{at}"))
        other = sampler()
        tf.train.Checkpoint(iterator=other).read(saved)
        assert [numbers(next(other)[0]) for _ in range(40 - at)] == expected[at:]


# Streams.


def test_streamed_batches_are_balanced_if_the_shards_are(blocks):
    batches = TFRecordDatasetSampler(blocks, parse, 2, CLASSES)
    assert all(is_exact(y, CLASSES // 2, 2) for _, y in batches.take(50))
    assert batches.element_spec[1] == tf.TensorSpec([CLASSES], tf.int64)


@pytest.mark.parametrize("async_cycle", [False, True])
def test_a_stream_shows_all_in_another_order_each_time(blocks, async_cycle):
    batches = TFRecordDatasetSampler(
        blocks, parse, 2, CLASSES, num_repeat=2, async_cycle=async_cycle, parallelism=2
    )
    found = steps(batches)
    first, second = found[: COUNT // CLASSES], found[COUNT // CLASSES :]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(COUNT))
    assert first != second


def test_a_seed_tells_the_order_of_shards(blocks):
    def some(seed):
        return steps(TFRecordDatasetSampler(blocks, parse, 2, CLASSES, seed=seed), 5)

    assert some(1) == some(1) != some(2)


def test_few_shards_in_a_cycle_are_streamed_to_their_ends_first(tmp_path):
    shards = put_shards(tmp_path, np.arange(COUNT).reshape(4, -1, 2, 2).swapaxes(0, 1).ravel(), 4)
    with pytest.warns(UserWarning, match="consecutive blocks of 2"):
        batches = TFRecordDatasetSampler(shards, parse, 2, 12, shards_per_cycle=2, num_repeat=1)
    half = steps(batches)[:10]
    with opened(shards, label="label") as dataset:
        shard_of = {int(each["x"][0]): i * 4 // COUNT for i, each in enumerate(dataset)}
    assert len({shard_of[n] for n in chain(*half)}) == 2


def test_a_block_that_is_not_full_is_left_out(tmp_path):
    shards = put_shards(tmp_path, range(5), 1)
    found = steps(TFRecordDatasetSampler(shards, parse, 2, 2, num_repeat=1))
    assert found == [[0, 1], [2, 3]]


def test_shards_without_consecutive_classes_are_reported(shuffled):
    with pytest.warns(UserWarning, match=r"s0.tfrec and 7 others: .* not consecutive"):
        TFRecordDatasetSampler(shuffled, parse, 4, 32)


def test_one_shard_without_consecutive_classes_is_reported(blocks):
    (blocks / "s3.tfrec").unlink()
    put(blocks / "s3.tfrec", map(example, [0, 90, 1, 91]), FEATURES)
    with pytest.warns(UserWarning, match=r"s3.tfrec: examples of a class are not consecutive"):
        TFRecordDatasetSampler(blocks, parse, 2, CLASSES)


def test_too_few_shards_for_the_classes_of_a_batch_are_told(tmp_path):
    shards = put_shards(tmp_path, range(COUNT), 4)
    told = "4 consecutive blocks of 2 have one class.*a cycle has 4 shards for 16 classes"
    with pytest.warns(UserWarning, match=told):
        TFRecordDatasetSampler(shards, parse, 2, 32)


def test_shards_with_too_few_records_are_told(blocks):
    put(blocks / "tiny.tfrec", [example(0)], FEATURES)
    with pytest.warns(UserWarning, match=r"tiny.tfrec: there are fewer than 2 records"):
        TFRecordDatasetSampler(blocks, parse, 2, CLASSES)


def test_nothing_is_said_of_classes_that_nothing_tells(shuffled):
    batches = TFRecordDatasetSampler(shuffled, lambda record: parse(record)[0], 4, 32)
    assert batches.element_spec == tf.TensorSpec([32, 3], tf.float32)


# Functions of all kinds.


def count_up(record):
    """Control flow that TensorFlow makes a graph of, and a structure."""
    x, label = parse(record)
    if label % 2 == 0:
        x = x + 1
    total = tf.constant(0.0)
    for value in x:
        total += value
    return {"all": (x, total), "label": label, "raw": record}


def with_python(record):
    return tf.ensure_shape(tf.numpy_function(lambda r: np.int64(len(r)), [record], tf.int64), [])


def with_list(record):
    return [parse(record)[1], 7]


def with_sparse(record):
    return tf.sparse.from_dense(parse(record)[0])


def with_ragged(record):
    x, label = parse(record)
    return tf.RaggedTensor.from_row_lengths(x, [label % 3, 3 - label % 3])


def with_constants(record):
    return parse(record), 3, 2.5


def with_unknown_shapes(record):
    return tf.numpy_function(lambda r: np.full((2, 2), len(r), np.int64), [record], tf.int64)


FUNCTIONS = [parse, count_up, with_python, with_list, with_sparse, with_ragged, with_constants,
             with_unknown_shapes]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("batch_size", [12, 44])
def test_a_function_gives_what_it_gives_element_by_element(shuffled, function, batch_size):
    batches = TFRecordDatasetSampler(shuffled, function, 2, batch_size, label="label", num_repeat=1)
    with opened(shuffled, label="label") as dataset:
        plan = dataset.batches(batch_size // 2, 2).plan
        records = [dataset.raw[plan.batch(step)] for step in range(plan.steps_per_epoch)]
    single = tf.data.Dataset.from_tensor_slices(list(chain(*records)))
    expected = single.map(function).batch(batch_size, drop_remainder=True)
    assert batches.element_spec == expected.element_spec
    for left, right in zip(batches, expected, strict=True):
        tf.nest.map_structure(check_same, left, right)


def check_same(left, right):
    if isinstance(left, tf.SparseTensor):
        left, right = tf.sparse.to_dense(left), tf.sparse.to_dense(right)
    if isinstance(left, tf.RaggedTensor):
        assert left.to_list() == right.to_list()
    else:
        assert np.array_equal(left.numpy(), right.numpy())


@pytest.mark.parametrize("seed", [None, 3])
def test_what_a_function_draws_differs_for_every_example(shuffled, seed):
    def draw(record):
        return tf.random.uniform([], seed=seed), parse(record)[1]

    batches = TFRecordDatasetSampler(shuffled, draw, 4, 64, label="label")
    drawn = np.concatenate([x.numpy() for x, _ in batches.take(5)])
    assert len(set(drawn.tolist())) == 320


def test_a_function_that_counts_counts_every_example(shuffled):
    counter = tf.Variable(0, dtype=tf.int64)

    def count(record):
        return counter.assign_add(1), parse(record)[1]

    batches = TFRecordDatasetSampler(shuffled, count, 4, 64, label="label", num_repeat=1,
                                     parallelism=1, prefetch_size=0)  # fmt: skip
    found = [int(n) for x, _ in batches for n in x]
    assert found == list(range(1, len(found) + 1))


# Compression, corrupt shards, and other storages.


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_with_and_without_a_label(tmp_path, compression):
    many = CLASSES // 2
    shards = put_shards(tmp_path, range(COUNT), many, compression=compression)
    with pytest.raises(covey.errors.CoveyError, match=f"the shard is {compression}") as caught:
        TFRecordDatasetSampler(shards, parse, 2, CLASSES)
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.option, error.found) == ("compression", None)
    assert error.path.endswith("s0.tfrec")
    assert error.remedy == f"pass compression={compression!r}"
    streamed = TFRecordDatasetSampler(shards, parse, 2, CLASSES, compression=compression)
    assert all(is_exact(y, many, 2) for _, y in streamed.take(5))
    known = TFRecordDatasetSampler(shards, parse, 4, 64, compression=compression, label="label")
    assert all(is_exact(y, 16, 4) for _, y in known.take(5))


def test_a_compression_that_shards_do_not_have_is_told(blocks):
    with pytest.raises(ValueError, match=r"the shard is not compressed.*compression=None"):
        TFRecordDatasetSampler(blocks, parse, 2, CLASSES, compression="GZIP")


@pytest.mark.parametrize("decode", [parse, None])
def test_a_shard_that_changes_while_it_is_open_is_named(shuffled, decode):
    batches = TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label", num_repeat=1)
    list(batches)  # now all shards are open
    with (shuffled / "s5.tfrec").open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(tf.errors.UnknownError, match=r"FileChangedError: .*s5\.tfrec"):
        for _ in range(3):  # the first one was made ahead
            list(batches)


def bring(directory, url, **options):
    storage = open_storage(url, **options)
    for path in directory.iterdir():
        storage.upload(str(path), f"{url}/{path.name}")
    return url


def test_shards_of_a_server_are_read_with_a_label(dataset, tmp_path, monkeypatch):
    stand_alone(monkeypatch, tmp_path)
    with s3_server() as options:
        import boto3

        boto3.client(
            "s3",
            region_name="us-east-1",
            aws_access_key_id="nobody",
            aws_secret_access_key="nothing",
            **options["client_kwargs"],
        ).create_bucket(Bucket="birds")
        url = bring(dataset, "s3://birds/train", options=options)
        for decode in (parse, None):
            batches = TFRecordDatasetSampler(
                url, decode, 4, 32, shard_suffix="*train*", storage_options=options
            )
            assert all(is_exact(y, 8, 4) for _, y in batches.take(5))


def test_shards_that_tensorflow_cannot_read_are_not_streamed(shuffled, tmp_path):
    url = bring(shuffled, f"memory://{tmp_path.name}")
    with pytest.raises(ValueError, match=r"TensorFlow cannot read such URLs.*pass label="):
        TFRecordDatasetSampler(url, parse, 4, 32)
    batches = TFRecordDatasetSampler(url, parse, 4, 32, label="label")
    assert all(is_exact(y, 8, 4) for _, y in batches.take(5))


# Wrong arguments.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"batch_size": 30, "example_per_class": 4},
            "is 30; must be a multiple.*is 4; for example 32",
        ),
        ({"example_per_class": 0}, "example_per_class is 0"),
        ({"batch_size": "many"}, "batch_size is 'many'"),
        ({"compression": "LZ4"}, "compression is 'LZ4'; must be None, 'GZIP' or 'ZLIB'"),
        ({"shard_suffix": "*.tfr"}, r"no file matches '\*.tfr'"),
        ({"shard_suffix": ""}, "shard_suffix is ''"),
        ({"shard_path": "nowhere"}, "nowhere: there is no such directory"),
        ({"num_repeat": 0}, "num_repeat is 0; must be an integer >= 1, or -1"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"shards_per_cycle": 0}, "shards_per_cycle is 0"),
        ({"prefetch_size": -2}, "prefetch_size is -2"),
        ({"deserialization_fn": "parse"}, "deserialization_fn is 'parse'; must be a function"),
        ({"seed": -1}, "seed is -1"),
        ({"label": "species"}, "label is 'species'; must be one of the features label, x"),
        ({"label": "label", "batch_size": 64}, "a batch has 32 classes, but the dataset has 24"),
    ],
)
def test_invalid_arguments(shuffled, arguments, message):
    given = {"shard_path": shuffled, "deserialization_fn": parse, **arguments}
    with pytest.raises(ValueError, match=message):
        TFRecordDatasetSampler(**given)


def test_directories_are_called_what_they_are_called(shuffled, tmp_path):
    odd = shuffled.rename(tmp_path / "what [1] is * this")
    assert is_exact(next(iter(TFRecordDatasetSampler(odd, parse, 2, 16, label="label")))[1], 8, 2)


def test_shards_in_directories_are_found_if_the_pattern_says_so(shuffled):
    with pytest.raises(ValueError, match="no file matches"):
        TFRecordDatasetSampler(shuffled.parent, parse, 2, 16, label="label")
    deep = TFRecordDatasetSampler(
        shuffled.parent, parse, 2, 16, label="label", shard_suffix="**/*.tfrec"
    )
    assert is_exact(next(iter(deep))[1], 8, 2)


def test_plan_errors_are_value_errors():
    assert issubclass(PlanError, ValueError)


# In training.


@pytest.mark.parametrize("decode", [parse, None])
def test_fit_takes_it(shuffled, decode):
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = TFRecordDatasetSampler(shuffled, decode, 4, 32, label="label")
    history = model.fit(batches, epochs=2, steps_per_epoch=4, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2


def test_batches_are_split_over_replicas_both_ways(shuffled, blocks):
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", REPLICAS, str(shuffled), str(blocks)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1] / "helpers",
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["16", "16", "8", "12", "12", "12"] * 3


REPLICAS = """
import sys
import numpy as np
import tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from covey.samplers import TFRecordDatasetSampler

PARSED = {"x": tf.io.FixedLenFeature([3], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)}

def parse(record):
    example = tf.io.parse_single_example(record, PARSED)
    return example["x"], example["label"]

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
known = TFRecordDatasetSampler(sys.argv[1], parse, 4, 32, label="label")
streamed = TFRecordDatasetSampler(sys.argv[2], parse, 2, 24)
both = [iter(strategy.experimental_distribute_dataset(each)) for each in (known, streamed)]
for _ in range(3):
    for each in both:
        x, y = next(each)
        parts = [part.numpy() for part in strategy.experimental_local_results(y)]
        print(*(len(part) for part in parts), len(np.unique(np.concatenate(parts))))
"""


def test_arguments_and_their_order_are_those_of_the_documentation():
    parameters = inspect.signature(TFRecordDatasetSampler).parameters.values()
    documented = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    assert [(each.name, each.default) for each in documented] == [
        ("shard_path", inspect.Parameter.empty),
        ("deserialization_fn", inspect.Parameter.empty),
        ("example_per_class", 2),
        ("batch_size", 32),
        ("shards_per_cycle", None),
        ("compression", None),
        ("parallelism", tf.data.AUTOTUNE),
        ("async_cycle", False),
        ("prefetch_size", None),
        ("shard_suffix", "*.tfrec"),
        ("num_repeat", -1),
    ]
    assert {"label", "seed"} <= {each.name for each in parameters} - {
        each.name for each in documented
    }
