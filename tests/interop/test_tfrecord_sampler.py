"""TFRecordDatasetSampler: balanced batches of shards in any order, with and without an index."""

from collections import Counter
from itertools import chain

import keras
import numpy as np
import pytest
import tensorflow as tf
from opened import opened, put
from sampled import is_exact, is_fair
from written import files, restore_replaced, write

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


def test_some_shards_of_a_dataset(dataset):
    pattern = "*-0000[1246]-of-*"
    batches = TFRecordDatasetSampler(dataset, None, 1, 4, shard_suffix=pattern, num_repeat=1)
    shards = sorted(dataset.glob(pattern))
    expected = [int(each["x"][0]) for path in shards for each in opened(path, label="label")]
    assert len(shards) == 4
    assert set(chain(*steps(batches))) == set(expected)


def test_files_of_a_replaced_version_are_omitted(dataset):
    new, suffix = range(COUNT, 2 * COUNT), "*.tfrecord*"
    write(map(example, new), dataset, features=FEATURES, label="label", shards=2, mode="overwrite")
    for _ in range(2):
        batches = TFRecordDatasetSampler(dataset, parse, 1, CLASSES, shard_suffix=suffix)
        assert sorted(chain(*steps(batches, EACH))) == list(new)
        if (dataset / ".covey-old").exists():
            restore_replaced(dataset)
            assert len(list(dataset.glob(suffix))) >= SHARDS + 2


def test_pattern_of_a_replaced_version(dataset):
    write([example(0)], dataset, features=FEATURES, label="label", mode="overwrite")
    restore_replaced(dataset)
    with pytest.raises(DatasetError, match="a version that was replaced") as caught:
        TFRecordDatasetSampler(dataset, parse, 1, 1, shard_suffix="birds-train.tfrecord-*")
    assert caught.value.path.startswith(str(dataset / "birds-train.tfrecord-"))
    assert "a pattern that matches the names of the current version" in caught.value.reason


def test_images_of_different_sizes_that_the_function_resizes(tmp_path):
    features = {"x": covey.Image((None, None, 3)), "label": "int64"}
    sizes = [{"x": np.full((4 + n % 3, 4, 3), n, np.uint8), "label": n // 4} for n in range(40)]
    write(sizes, tmp_path / "birds", features=features, label="label")

    def decode(record):
        parsed = {"x": tf.io.FixedLenFeature([], tf.string), "label": PARSED["label"]}
        found = tf.io.parse_single_example(record, parsed)
        return tf.image.resize(tf.io.decode_png(found["x"], 3), [4, 4]), found["label"]

    assert is_balanced(TFRecordDatasetSampler(tmp_path / "birds", decode, 2, 16,
                                              shard_suffix="*tfrecord*"), 8, 2)  # fmt: skip


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


# Labels that only deserialization_fn returns.


def mapped(path, function, *shape, **options):
    """Return a sampler that calls a function for all records, which a warning reports."""
    with pytest.warns(UserWarning, match=r"called for all [\d,]+ records \([\d.]+ s\).*label="):
        return TFRecordDatasetSampler(path, function, *shape, **options)


def put_records(directory, records, shards=3):
    directory.mkdir()
    for shard, part in enumerate(np.array_split(np.array(records, object), shards)):
        with covey.RecordWriter(directory / f"s{shard}.tfrec") as writer:
            for record in part:
                writer.write(record)
    return directory


def as_string(record):
    x, label = parse(record)
    return x, tf.strings.as_string(label)


def in_python(record):
    x, label = parse(record)
    return x, tf.numpy_function(lambda y: y, [label], tf.int64)


def with_weight(record):
    return *parse(record), 1.0


@pytest.mark.parametrize("function", [parse, as_string, in_python, with_weight])
def test_labels_of_a_function(shuffled, function):
    """The same batches as with a label: exact and fair, whatever the order of the records."""
    before = files(shuffled)
    batches = mapped(shuffled, function, 4, 32, seed=5, shards_per_cycle=2, async_cycle=True)
    assert files(shuffled) == before
    found = [(numbers(x), [int(each) for each in y]) for x, y, *_ in batches.take(40)]
    assert all(is_exact(y, 8, 4) for _, y in found)
    known = TFRecordDatasetSampler(shuffled, parse, 4, 32, label="label", seed=5)
    if function is not as_string:  # classes of strings are in another order
        assert [x for x, _ in found] == steps(known, 40)
    drawn = Counter(chain(*(x for x, _ in found[:30])))
    assert drawn == dict.fromkeys(range(COUNT), 4)


def test_records_that_are_not_examples(tmp_path):
    """TensorFlow omits operations that y does not depend on: the images are not valid."""
    records = [b"%d,not a JPEG" % (n % 7) for n in np.random.default_rng(2).permutation(70)]

    def decode(record):
        parts = tf.strings.split(record, ",")
        return tf.io.decode_jpeg(parts[1]), tf.strings.to_number(parts[0], tf.int32)

    path = put_records(tmp_path / "shards", records)
    batches = mapped(path, decode, 2, 14)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(batches))
    assert is_balanced(mapped(path, lambda record: (record, decode(record)[1]), 2, 14), 7, 2)


def test_records_that_a_function_does_not_accept(shuffled):
    put(
        shuffled / "s9.tfrec",
        [{"x": [0], "label": 0}],
        {**FEATURES, "x": covey.Tensor("float32", (1,))},
    )
    with pytest.raises(
        DatasetError, match=r"record 0 at byte 0: deserialization_fn failed.*Key: x"
    ) as caught:
        TFRecordDatasetSampler(shuffled, parse, 4, 32)
    assert caught.value.path.endswith("s9.tfrec")


def test_each_iteration_is_the_next_epoch(shuffled):
    batches = TFRecordDatasetSampler(shuffled, parse, 2, 36, label="label", num_repeat=1)
    epochs = [list(chain(*steps(batches))) for _ in range(3)]
    assert len({tuple(each) for each in epochs}) == 3
    assert [len(each) for each in epochs] == [7 * 36] * 3  # complete batches
    assert set(epochs[0]) == set(range(COUNT))


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


@pytest.mark.parametrize(
    ("function", "batch_size"), [*zip(FUNCTIONS, [12, 44] * 3 + [12], strict=True)]
)
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
        return tf.random.uniform([], seed=seed, dtype=tf.float64), parse(record)[1]

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
    for declared in (None, compression):
        assert is_balanced(mapped(shards, parse, 2, CLASSES, compression=declared), CLASSES // 2, 2)
    assert is_balanced(TFRecordDatasetSampler(shards, parse, 4, 64, label="label"), 16, 4)


def test_a_shard_that_is_modified_while_open(shuffled):
    batches = TFRecordDatasetSampler(shuffled, parse, 2, 16, label="label", num_repeat=1)
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
    assert is_balanced(mapped(url, parse, 4, 32))
    assert is_balanced(TFRecordDatasetSampler(url, parse, 4, 32, label="label"))


# Training.


def test_fit(shuffled):
    model = keras.Sequential([keras.layers.Input([3]), keras.layers.Dense(CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = TFRecordDatasetSampler(shuffled, parse, 4, 32, label="label")
    history = model.fit(batches, epochs=2, steps_per_epoch=4, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2


# Where the label is found.


def index(shards, path):
    covey.build_index(path, label="label", progress=False)
    return shards


def beside(shards, content):
    put(shards / "other.tfrecord", [example(0)], FEATURES)
    if content is not None:
        (shards / "other.tfrecord").write_bytes(content)
    return shards


def without_index(dataset):
    for path in dataset.glob("*.npy"):
        path.unlink()
    return dataset


LABELLED = {
    "an index": (lambda s, _: index(s, s), {}),
    "an index of some files": (
        lambda s, _: index(beside(s, None), str(s / "*.tfrec")), {}),
    "an index of the dataset": (lambda _, d: d, {"shard_suffix": "*train*"}),
    "the metadata": (lambda _, d: without_index(d), {"shard_suffix": "*train*"}),
    "an argument": (lambda s, _: s, {"label": "label"}),
    "a function": (lambda s, _: s, {"label": lambda each: int(each["x"][0]) // EACH}),
    "matching shards": (lambda s, _: beside(s, b"corrupt"), {"label": "label"}),
    "an odd path": (lambda s, d: s.rename(d.parent / "what [1] is * this"), {"label": "label"}),
    "directories below": (
        lambda s, _: s.parent, {"label": "label", "shard_suffix": "shards/**/*.tfrec"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELLED)
def test_where_the_label_is_found(shuffled, dataset, kind):
    prepare, options = LABELLED[kind]
    assert is_balanced(TFRecordDatasetSampler(prepare(shuffled, dataset), parse, 4, 32, **options))


# Errors.

UNLABELLED = "where y is a scalar integer or string.*pass label="
REFUSED = [
    *(({option: value}, f"{option} is .*must be") for option, value in (
        ("batch_size", 31), ("batch_size", "many"), ("example_per_class", 0),
        ("shard_suffix", ""), ("num_repeat", 0), ("parallelism", 0), ("shards_per_cycle", 0),
        ("prefetch_size", -2), ("deserialization_fn", "parse"), ("seed", -1),
        ("label", "species"))),
    ({"shard_suffix": "*.tfr"}, r"no file matches '\*.tfr'"),
    ({"compression": "LZ4"}, "compression is 'LZ4'; must be None, 'GZIP' or 'ZLIB'"),
    ({"shard_path": "nowhere"}, "nowhere: there is no such directory"),
    ({"label": "label", "batch_size": 64}, "a batch has 32 classes, but the dataset has 24"),
    ({"deserialization_fn": None}, "the shards have no known label.*label="),
    *(({"deserialization_fn": function}, rf"{found}.*{UNLABELLED}") for function, found in (
        (lambda record: parse(record)[0], r"TensorSpec\(shape=\(3,\)"),
        (lambda record: dict(zip("xy", parse(record), strict=True)), r"\{'x'"),
        (lambda record: parse(record)[::-1], r"shape=\(3,\)"),
        (lambda record: (record, tf.cast(parse(record)[1], tf.float32)), "float32"),
        (lambda record: (record, tf.one_hot(parse(record)[1], 30)), r"\(30,\)"))),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused(shuffled, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        TFRecordDatasetSampler(**{"shard_path": shuffled, "deserialization_fn": parse, **options})
    assert isinstance(caught.value, CoveyError) or "compression" in options
