"""TFRecordDatasetSampler: balanced batches of shards, and streams of shards without a label."""

from collections import Counter
from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf
from opened import opened, put
from sampled import is_fair
from written import files, write

import covey
from covey.errors import CoveyError, DatasetError
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


def put_shards(directory, numbers, shards=SHARDS, **options):
    """Write shards without metadata that have these examples in this order."""
    for shard, part in enumerate(np.array_split(np.asarray(numbers), shards)):
        put(directory / f"s{shard}.tfrec", map(example, part.tolist()), FEATURES, **options)
    return directory


@pytest.fixture
def shuffled(tmp_path):
    return put_shards(tmp_path / "shards", np.random.default_rng(1).permutation(COUNT))


@pytest.fixture
def blocks(tmp_path):
    """As many shards as a batch has classes, with complete classes in each."""
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


# With a label.


@pytest.mark.parametrize("decode", [parse, None])
def test_batches_are_exact_and_fair(shuffled, decode):
    batches = TFRecordDatasetSampler(shuffled, decode, 4, 32, label="label", seed=5)
    assert batches.element_spec == (
        tf.TensorSpec([32, 3], tf.float32),
        tf.TensorSpec([32], tf.int64),
    )
    with opened(shuffled, label="label", features=FEATURES) as ds:
        loader = ds.batches(8, 4, seed=5)
        for step, (x, y) in enumerate(batches.take(40)):
            expected = loader.batch(step)
            assert is_exact(y, 8, 4)
            assert np.array_equal(x, expected[0])
            assert np.array_equal(y, expected[1])


def is_balanced(batches, classes=8, examples=4):
    return all(is_exact(y, classes, examples) for _, y in batches.take(8))


def test_label_of_an_index(shuffled):
    covey.build_index(shuffled, label="label")
    assert is_balanced(TFRecordDatasetSampler(shuffled, parse, 4, 32))


def test_label_of_an_index_of_some_files(shuffled):
    put(shuffled / "other.tfrecord", [example(0)], FEATURES)
    covey.build_index(str(shuffled / "*.tfrec"), label="label", progress=False)
    assert is_balanced(TFRecordDatasetSampler(shuffled, parse, 4, 32))


@pytest.mark.parametrize("has_index", [True, False])
def test_label_of_the_metadata(dataset, has_index):
    for path in () if has_index else dataset.glob("*.npy"):
        path.unlink()
    assert is_balanced(TFRecordDatasetSampler(dataset, parse, 4, 32, shard_suffix="*train*"))


def parity(example):
    return int(example["x"][0]) % 2


def test_label_of_a_function(shuffled):
    batches = TFRecordDatasetSampler(shuffled, parse, 4, 8, label=parity)
    assert all(sorted(n % 2 for n in batch) == [0] * 4 + [1] * 4 for batch in steps(batches, 9))


def test_shards_that_other_programs_wrote_are_not_indexed_without_a_label(blocks):
    before = files(blocks)
    next(iter(TFRecordDatasetSampler(blocks, parse, 2, 24)))
    assert files(blocks) == before


def test_some_shards_of_a_dataset(dataset):
    pattern = "*-0000[1246]-of-*"
    batches = TFRecordDatasetSampler(dataset, None, 1, 4, shard_suffix=pattern, num_repeat=1)
    shards = sorted(dataset.glob(pattern))
    expected = [int(each["x"][0]) for path in shards for each in opened(path, label="label")]
    assert len(shards) == 4
    assert set(chain(*steps(batches))) == set(expected)


def test_only_the_matching_shards_are_indexed(shuffled):
    (shuffled / "other.tfrecord").write_bytes(b"corrupt")
    assert is_balanced(TFRecordDatasetSampler(shuffled, parse, 4, 32, label="label"))


@pytest.mark.parametrize("suffix", ["*train*", "*.tfrecord*"])
def test_files_of_a_replaced_version_are_omitted(dataset, suffix):
    new = range(COUNT, 2 * COUNT)
    write(map(example, new), dataset, features=FEATURES, label="label", shards=2, mode="overwrite")
    assert len(list(dataset.glob(suffix))) >= SHARDS + 2
    batches = TFRecordDatasetSampler(dataset, parse, 1, CLASSES, shard_suffix=suffix)
    assert sorted(chain(*steps(batches, EACH))) == list(new)


def test_pattern_of_a_replaced_version(dataset):
    write([example(0)], dataset, features=FEATURES, label="label", mode="overwrite")
    with pytest.raises(DatasetError, match="a version that was replaced") as caught:
        TFRecordDatasetSampler(dataset, parse, 1, 1, shard_suffix="birds-train.tfrecord-*")
    assert caught.value.path.startswith(str(dataset / "birds-train.tfrecord-"))
    assert "a pattern that matches the names of the current version" in caught.value.reason


def test_special_characters_in_the_path(shuffled, tmp_path):
    odd = shuffled.rename(tmp_path / "what [1] is * this")
    assert is_balanced(TFRecordDatasetSampler(odd, parse, 2, 16, label="label"), 8, 2)
    deep = TFRecordDatasetSampler(
        odd.parent, parse, 2, 16, label="label", shard_suffix="**/*.tfrec"
    )
    assert is_balanced(deep, 8, 2)


# Epochs.


@pytest.mark.parametrize("decode", [parse, None])
def test_epochs(shuffled, decode):
    options = {"label": "label", "num_repeat": 2}
    batches = TFRecordDatasetSampler(shuffled, decode, 2, 16, **options)
    found = steps(batches)
    assert len(found) == 2 * COUNT // 16 == int(batches.cardinality())
    assert is_fair(list(chain(*found)), range(COUNT))
    assert found[:15] != found[15:]
    endless = TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label", seed=0)
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert steps(endless, 30) == found
    assert steps(TFRecordDatasetSampler(shuffled, decode, 2, 16, seed=1, **options)) != found


@pytest.mark.parametrize("decode", [parse, None])
def test_resume_from_checkpoint(shuffled, tmp_path, decode):
    """Also if prefetching threads have reached the end of an epoch, after 15 steps."""

    def sampler():
        return iter(TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label", parallelism=4,
                                           prefetch_size=6))  # fmt: skip

    expected = [numbers(x) for _, (x, _) in zip(range(32), sampler(), strict=False)]
    iterator, other = sampler(), sampler()
    for step in range(24):
        if step in (7, 15, 21):
            saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / f"saved{step}"))
            tf.train.Checkpoint(iterator=other).read(saved)
            found = [numbers(next(other)[0]) for _ in range(32 - step)]
            assert found == expected[step:]
        next(iterator)


# Streams.


@pytest.mark.parametrize("async_cycle", [False, True])
def test_stream_of_balanced_shards(blocks, async_cycle):
    batches = TFRecordDatasetSampler(
        blocks, parse, 2, CLASSES, num_repeat=2, async_cycle=async_cycle, parallelism=2
    )
    assert batches.element_spec[1] == tf.TensorSpec([CLASSES], tf.int64)
    found = []
    for x, y in batches:
        assert is_exact(y, CLASSES // 2, 2)
        found.append(numbers(x))
    first, second = found[: COUNT // CLASSES], found[COUNT // CLASSES :]
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(COUNT))
    assert first != second
    assert steps(batches) == found


@pytest.mark.parametrize(
    ("shards", "classes"), [(12, 5), (12, 7), (12, 8), (12, 10), (12, 11), (12, 12), (3, 2)]
)
def test_batches_that_straddle_epochs_have_distinct_classes(tmp_path, shards, classes):
    for shard in range(shards):
        put(tmp_path / f"s{shard}.tfrec", [example(shard * EACH)] * 3, FEATURES)
    batches = TFRecordDatasetSampler(tmp_path, parse, 1, classes, num_repeat=60)
    found = [tuple(y.numpy().tolist()) for _, y in batches]
    assert all(len(set(batch)) == classes for batch in found)
    assert set(Counter(chain(*found)).values()) <= {180, 179}  # a last incomplete batch is dropped
    first, last = ({batch[place] for batch in found} for place in (0, -1))
    assert len(first) > shards / 2 < len(last)
    assert len({batch[:2] for batch in found}) > shards


def test_streams_do_not_depend_on_the_global_seed(blocks):
    found = []
    for seed in (1, 2):
        tf.random.set_seed(seed)
        found.append(steps(TFRecordDatasetSampler(blocks, parse, 2, CLASSES), 25))
    assert found[0] == found[1]


@pytest.mark.parametrize("async_cycle", [False, True])
def test_resume_a_stream_from_checkpoint(blocks, tmp_path, async_cycle):
    def sampler():
        return iter(TFRecordDatasetSampler(blocks, parse, 2, 14, async_cycle=async_cycle))

    expected = [numbers(x) for _, (x, _) in zip(range(50), sampler(), strict=False)]
    iterator, other = sampler(), sampler()
    for _ in range(20):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "saved"))
    tf.train.Checkpoint(iterator=other).read(saved)
    assert [numbers(next(other)[0]) for _ in range(30)] == expected[20:]


def test_streams_are_endless_unless_repeats_are_limited(blocks):
    batches = TFRecordDatasetSampler(blocks, parse, 2, CLASSES)
    assert int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize("shards", [1, 70])
def test_shards_without_a_block(tmp_path, shards):
    for shard in range(shards):
        put(tmp_path / f"s{shard:02}.tfrec", [example(0)] * (shard % 2), FEATURES)
    with pytest.raises(DatasetError) as raised:
        TFRecordDatasetSampler(tmp_path, parse, 2, 4)
    assert (raised.value.option, raised.value.found) == ("example_per_class", 2)
    put(tmp_path / "s69b.tfrec", [example(0)] * 2, FEATURES)  # not among those that are checked
    with pytest.warns(UserWarning, match="fewer than 2 records"):
        batches = TFRecordDatasetSampler(tmp_path, parse, 2, 4, num_repeat=3)
    assert steps(batches) == [[0, 0, 0, 0]]


def test_order_of_streamed_shards_depends_on_the_seed(blocks):
    first, second, other = (
        steps(TFRecordDatasetSampler(blocks, parse, 2, CLASSES, seed=seed), 5) for seed in (1, 1, 2)
    )
    assert first == second != other


def test_shards_per_cycle(tmp_path):
    shards = put_shards(tmp_path, np.arange(COUNT).reshape(4, -1, 2, 2).swapaxes(0, 1).ravel(), 4)
    with pytest.warns(UserWarning, match="consecutive blocks of 2"):
        batches = TFRecordDatasetSampler(shards, parse, 2, 12, shards_per_cycle=2, num_repeat=1)
    half = steps(batches)[:10]
    with opened(shards, label="label") as ds:
        shard_of = {int(each["x"][0]): i * 4 // COUNT for i, each in enumerate(ds)}
    assert len({shard_of[n] for n in chain(*half)}) == 2


def test_incomplete_blocks_are_dropped(tmp_path):
    shards = put_shards(tmp_path, range(5), 1)
    found = steps(TFRecordDatasetSampler(shards, parse, 2, 2, num_repeat=1))
    assert found == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("replaced", "shape", "message"),
    [
        ({"s3": [0, 90, 1, 91]}, (2, 24), "s3.tfrec: examples of a class are not consecutive"),
        ({"s3": [0, 90], "s5": [1, 91]}, (2, 24), "s3.tfrec and 1 others: .* not consecutive"),
        ({"tiny": [0]}, (2, 24), "tiny.tfrec: there are fewer than 2 records"),
        ({}, (2, 96), "4 consecutive blocks of 2 have one class.*12 shards for 48 classes"),
    ],
)
def test_warning_of_shards_that_are_not_balanced(blocks, replaced, shape, message):
    for name, content in replaced.items():
        put(blocks / f"{name}.tfrec", map(example, content), FEATURES)
    with pytest.warns(UserWarning, match=message):
        TFRecordDatasetSampler(blocks, parse, *shape)


def test_stream_of_examples_without_labels(shuffled):
    batches = TFRecordDatasetSampler(shuffled, lambda record: parse(record)[0], 4, 32)
    assert batches.element_spec == tf.TensorSpec([32, 3], tf.float32)


# Functions of all kinds.


def with_control_flow(record):
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


FUNCTIONS = [with_control_flow, with_python, with_list, with_sparse, with_ragged, with_constants,
             with_unknown_shapes]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("batch_size", [12, 44])
def test_functions_as_in_map(blocks, function, batch_size):
    batches = TFRecordDatasetSampler(blocks, function, 2, batch_size, label="label", num_repeat=1)
    batches = batches.take(2)
    with opened(blocks, label="label") as ds:
        plan = ds.batches(batch_size // 2, 2).plan
        records = [record for step in range(2) for record in ds.raw[plan.batch(step)]]
    single = tf.data.Dataset.from_tensor_slices(records)
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
def test_random_numbers_differ_between_examples(shuffled, seed):
    def draw(record):
        return tf.random.uniform([], seed=seed), parse(record)[1]

    batches = TFRecordDatasetSampler(shuffled, draw, 4, 64, label="label")
    drawn = np.concatenate([x.numpy() for x, _ in batches.take(5)])
    assert len(set(drawn.tolist())) == 320


def test_a_function_with_a_variable_is_called_in_order(shuffled):
    counter = tf.Variable(0, dtype=tf.int64)

    def count(record):
        return counter.assign_add(1), parse(record)[1]

    batches = TFRecordDatasetSampler(shuffled, count, 4, 64, label="label", num_repeat=1,
                                     parallelism=1, prefetch_size=0)  # fmt: skip
    found = [int(n) for x, _ in batches for n in x]
    assert found == list(range(1, len(found) + 1))


# Compression and other storages.


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards(tmp_path, compression):
    shards = put_shards(tmp_path, range(COUNT), CLASSES // 2, compression=compression)
    with pytest.raises(DatasetError, match=f"the shard is {compression}") as caught:
        TFRecordDatasetSampler(shards, parse, 2, CLASSES)
    assert (caught.value.option, caught.value.found) == ("compression", None)
    assert caught.value.path.endswith("s0.tfrec")
    assert caught.value.remedy == f"pass compression={compression!r}"
    streamed = TFRecordDatasetSampler(shards, parse, 2, CLASSES, compression=compression)
    assert is_balanced(streamed, CLASSES // 2, 2)
    assert is_balanced(TFRecordDatasetSampler(shards, parse, 4, 64, label="label"), 16, 4)


def test_compression_of_shards_without(blocks):
    with pytest.raises(DatasetError, match="the shard is not compressed") as caught:
        TFRecordDatasetSampler(blocks, parse, 2, CLASSES, compression="GZIP")
    assert (caught.value.option, caught.value.found) == ("compression", "GZIP")
    assert caught.value.remedy == "pass compression=None"


@pytest.mark.parametrize("decode", [parse, None])
def test_a_shard_that_is_modified_while_open(shuffled, decode):
    batches = TFRecordDatasetSampler(shuffled, decode, 2, 16, label="label", num_repeat=1)
    list(batches)  # opens all shards
    with (shuffled / "s5.tfrec").open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(tf.errors.UnknownError, match=r"FileChangedError: .*s5\.tfrec"):
        for _ in range(3):  # some batches are prefetched
            list(batches)


def upload(directory, url, **options):
    storage = open_storage(url, **options)
    for path in directory.iterdir():
        storage.upload(str(path), f"{url}/{path.name}")
    return url


def test_urls_that_tensorflow_cannot_read(shuffled, tmp_path):
    url = upload(shuffled, f"memory://{tmp_path.name}")
    with pytest.raises(DatasetError, match="TensorFlow cannot read such URLs") as caught:
        TFRecordDatasetSampler(url, parse, 4, 32)
    assert "pass label=" in caught.value.remedy
    assert is_balanced(TFRecordDatasetSampler(url, parse, 4, 32, label="label"))


# Errors.


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("batch_size", 31), ("batch_size", "many"), ("example_per_class", 0),
        ("shard_suffix", ""), ("num_repeat", 0), ("parallelism", 0),
        ("shards_per_cycle", 0), ("prefetch_size", -2), ("deserialization_fn", "parse"),
        ("seed", -1), ("label", "species"),
    ],
)  # fmt: skip
def test_invalid_arguments(shuffled, option, value):
    options = {"shard_path": shuffled, "deserialization_fn": parse, option: value}
    with pytest.raises(ValueError, match="must be") as caught:
        TFRecordDatasetSampler(**options)
    assert isinstance(caught.value, CoveyError)
    assert (caught.value.option, caught.value.found) == (option, value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_suffix": "*.tfr"}, r"no file matches '\*.tfr'"),
        ({"compression": "LZ4"}, "compression is 'LZ4'; must be None, 'GZIP' or 'ZLIB'"),
        ({"shard_path": "nowhere"}, "nowhere: there is no such directory"),
        ({"label": "label", "batch_size": 64}, "a batch has 32 classes, but the dataset has 24"),
        ({"deserialization_fn": None}, "the shards have no known label.*label="),
    ],
)
def test_shards_that_cannot_be_sampled(shuffled, options, message):
    with pytest.raises(ValueError, match=message):
        TFRecordDatasetSampler(**{"shard_path": shuffled, "deserialization_fn": parse, **options})


# Training.


@pytest.mark.parametrize("decode", [parse, None])
def test_fit(shuffled, decode):
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = TFRecordDatasetSampler(shuffled, decode, 4, 32, label="label")
    history = model.fit(batches, epochs=2, steps_per_epoch=4, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2
