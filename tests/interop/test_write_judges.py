"""TensorFlow and TFDS read the datasets that covey writes, and covey adds to those of TFDS."""

import glob
import gzip
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from faults import MAX_CHANGES, OPERATIONS, struck
from schemas import NUMBERS, plain, same
from written import (
    about,
    as_items,
    check_index,
    column,
    files,
    index,
    index_paths,
    info,
    read,
    shard_paths,
    tidy,
    write,
)

import covey
from covey import ClassLabel, Features, Image, Ragged, Tensor
from covey.errors import DatasetError
from covey.tfrecord.block import MAX_MEMBER_BYTES

tf.config.set_visible_devices([], "GPU")


def as_tfds(directory, split="train"):
    """Return all examples in their order, as TFDS reads them."""
    builder = tfds.builder_from_directory(directory)
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(split=split, read_config=config, shuffle_files=False)
    return [tensors(example) for example in dataset]


def tensors(value):
    if isinstance(value, dict):
        return {name: tensors(each) for name, each in value.items()}
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()


def both_read(directory, features, examples, **options):
    """Write examples, and check that TFDS reads them; return what it reads."""
    write(examples, directory, features=features, shuffle=False, **options)
    theirs = as_tfds(directory)
    assert len(theirs) == len(examples)
    for example, found in zip(examples, theirs, strict=True):
        assert set(found) == set(example)
        for name, value in example.items():
            assert same(as_bytes(found[name]), as_bytes(value)), name
    return theirs


def as_bytes(value):
    """Return a value with strings as bytes, as TFDS returns them."""
    if isinstance(value, dict):
        return [as_bytes(value[name]) for name in sorted(value)]
    value = value if isinstance(value, list) else plain(value)
    if isinstance(value, list):
        return [as_bytes(each) for each in value]
    return value.encode() if isinstance(value, str) else value


def numbers(dtype, shape, first):
    values = (np.arange(int(np.prod(shape))).reshape(shape) + first) * 37 % 101
    return (values % 2 if dtype == "bool" else values).astype(dtype)


@pytest.mark.parametrize("encoding", ["list", "bytes"])
def test_tensors(tmp_path, encoding):
    """Tensors of every dtype with known and unknown dimensions."""
    shapes = [(), (3,), (2, 3), (2, 1, 3), (None,), (None, 2)]
    # TensorFlow's decode_raw does not support uint32.
    dtypes = [dtype for dtype in NUMBERS if (dtype, encoding) != ("uint32", "bytes")]
    if encoding == "bytes":
        shapes += [(None, None), (None, 2, None)]
    features = {
        f"{dtype}{shape}": Tensor(dtype, shape, encoding=encoding)
        for dtype in dtypes
        for shape in shapes
    }
    examples = [
        {
            name: numbers(kind.dtype, [i if size is None else size for size in kind.shape], i)
            for name, kind in features.items()
        }
        for i in (1, 2, 0)
    ]
    found = both_read(tmp_path, features, examples)
    for name, kind in features.items():
        if kind.dtype != "float64" or encoding == "bytes":
            assert found[0][name].dtype == np.dtype(kind.dtype)


OTHERS = {
    "strings": (
        {
            "text": "str",
            "bytes": "bytes",
            "two": Tensor("str", (2,)),
            "some": Tensor("bytes", (None,)),
        },
        [
            {"text": "né", "bytes": b"\xff\0", "two": ["a", ""], "some": [b"x"] * i}
            for i in range(3)
        ],
    ),
    "ragged": (
        {"two": Ragged("int64"), "three": Ragged("float32", 3), "words": Ragged("bytes")},
        [
            {"two": [[1, 2], [], [4]], "three": [[[0.5], []], []], "words": [[b"a"], [b"b", b""]]},
            {"two": [], "three": [], "words": [[]]},
        ],
    ),
    "nested": (
        {"a": {"b": "int64", "c": {"d": Tensor("float32", (2,)), "e": "str"}}},
        [{"a": {"b": 7, "c": {"d": [0.5, 1.0], "e": "x"}}}],
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_features(tmp_path, case):
    both_read(tmp_path, *OTHERS[case])


@pytest.mark.parametrize("names", [None, ("wren", "owl", "é")])
def test_class_labels(tmp_path, names):
    kind = ClassLabel(names=names) if names else ClassLabel(num_classes=3)
    found = both_read(tmp_path, {"label": kind}, [{"label": i} for i in [2, 0, 1, 0]])
    label = tfds.builder_from_directory(tmp_path).info.features["label"]
    assert label.num_classes == 3
    assert label.names == list(names or ["0", "1", "2"])
    assert index(tmp_path)["label"].tolist() == [each["label"] for each in found]


def test_strings_as_class_labels(tmp_path):
    labels = ["wren", "owl", "crow", "owl"]
    write([{"label": each} for each in labels], tmp_path, label="label", shuffle=False)
    write([{"label": "jay"}], tmp_path, "test")
    kind = tfds.builder_from_directory(tmp_path).info.features["label"]
    assert [kind.int2str(each["label"]) for each in as_tfds(tmp_path)] == labels
    assert [kind.int2str(each["label"]) for each in as_tfds(tmp_path, "test")] == ["jay"]


@pytest.mark.parametrize("shape", [(5, 4, 3), (None, None, 3), (None, None, 1), (5, 4, 4)])
def test_images(tmp_path, shape):
    pixels = numbers("uint8", (5, 4, shape[2]), 0)
    features = {"image": Image(shape)}
    encoded = Features(features).decode(Features(features).encode({"image": pixels}))["image"]
    write([{"image": pixels}, {"image": encoded}], tmp_path, features=features)
    for found in as_tfds(tmp_path):
        assert found["image"].tolist() == pixels.tolist()


def test_inferred_features_and_defaults(tmp_path):
    examples = [
        {
            "i": i,
            "f": i / 2,
            "b": bool(i % 2),
            "s": f"{i}",
            "v": [i] * (i % 3),
            "label": "ab"[i % 2],
        }
        for i in range(200)
    ]
    del examples[7]["i"]
    write(iter(examples), tmp_path, label="label", shards=3, defaults={"i": 7}, shuffle=False)
    examples[7]["i"] = 7
    found = as_tfds(tmp_path)
    for name in ("i", "f", "b"):
        assert [each[name] for each in found] == [each[name] for each in examples]
    assert [each["v"].tolist() for each in found] == [each["v"] for each in examples]
    assert [each["s"].decode() for each in found] == [each["s"] for each in examples]
    assert [each["label"] for each in found] == [i % 2 for i in range(200)]


def test_tensorflow_decodes_floats(tmp_path):
    """The line of the note decodes every digit of a float64; lists remain float lists."""
    times = [1700000000.123 + i for i in range(40)]
    examples = [{"time": time, "x": [0.5, i / 4]} for i, time in enumerate(times)]
    written = write(examples, tmp_path, shuffle=False)
    (note,) = written.notes
    _, line = note.split("decode it by ")
    spec = {"time": tf.io.FixedLenFeature([], tf.string), "x": tf.io.FixedLenFeature([2], "float")}
    records = tf.data.TFRecordDataset(list(map(str, shard_paths(tmp_path))))
    decoded = []
    for parsed in records.map(lambda record: tf.io.parse_single_example(record, spec)):
        decoded += eval(line, {"tf": tf, "parsed": parsed}).numpy().tolist()
    assert decoded == times
    assert len({each["time"] for each in as_tfds(tmp_path)}) == len(set(times)) == 40


def test_splits_shards_and_sizes(tmp_path):
    write({"x": np.arange(100)}, tmp_path, shards=4, description="Numbers.")
    write({"x": np.arange(10)}, tmp_path, "test")
    builder = tfds.builder_from_directory(tmp_path)
    train = builder.info.splits["train"]
    assert (train.num_examples, train.num_shards) == (100, 4)
    assert train.num_bytes == sum(path.stat().st_size for path in shard_paths(tmp_path))
    assert builder.info.splits["test"].num_examples == 10
    assert builder.info.description == "Numbers."
    assert [int(each["x"]) for each in as_tfds(tmp_path)] == column(tmp_path, "x")
    some = [int(each["x"]) for each in as_tfds(tmp_path, "train[10:20]")]
    assert some == column(tmp_path, "x")[10:20]


# New versions of a split.


@pytest.mark.parametrize(("mode", "name"), [("overwrite", "birds"), ("append", "sea-birds")])
def test_tfds_reads_new_versions(tmp_path, mode, name):
    directory = tmp_path / name
    write({"x": np.arange(100), "label": np.arange(100) % 2}, directory, label="label", shards=4)
    write({"x": np.arange(100, 110), "label": np.zeros(10, int)}, directory, "test", shards=2)
    for step in range(2):
        new = np.arange(1000 * (step + 1), 1000 * (step + 1) + 30)
        write({"x": new, "label": new % 2}, directory, mode=mode, shards=3)
        train, test = info(directory).splits
        assert train.token is not None
        assert test.token is None
        builder = tfds.builder_from_directory(directory)
        theirs = builder.info.splits["train"]
        assert [Path(path) for path in theirs.filepaths] == shard_paths(directory)
        assert (theirs.num_examples, theirs.num_shards) == (
            train.num_examples,
            len(train.shard_lengths),
        )
        found = [int(each["x"]) for each in as_tfds(directory)]
        assert found == column(directory, "x")
        expected = {*new.tolist()} if mode == "overwrite" else {*range(100), *new.tolist()}
        assert expected <= set(found)
        assert len(found) == train.num_examples == (30 if mode == "overwrite" else 130 + 30 * step)
        assert sorted(int(each["x"]) for each in as_tfds(directory, "test")) == [*range(100, 110)]
        half = [int(each["x"]) for each in as_tfds(directory, "train[50%:]+test[:3]")]
        assert half == found[len(found) // 2 :] + column(directory, "x", "test")[:3]


def test_tfds_reads_new_classes_of_an_appended_split(tmp_path):
    write([{"label": each} for each in ("wren", "owl")], tmp_path, label="label", shuffle=False)
    write([{"label": "crow"}], tmp_path, mode="append", shuffle=False)
    kind = tfds.builder_from_directory(tmp_path).info.features["label"]
    found = [kind.int2str(each["label"]) for each in as_tfds(tmp_path)]
    assert found == ["wren", "owl", "crow"]


def test_tfds_reads_other_features_of_an_overwritten_split(tmp_path):
    write([{"x": 1, "label": "wren"}], tmp_path, label="label")
    write([{"song": [0.5, 1.0]}], tmp_path, mode="overwrite")
    (found,) = as_tfds(tmp_path)
    assert {name: each.tolist() for name, each in found.items()} == {"song": [0.5, 1.0]}


# tf.data alone.


def records_of(directory):
    """Return the numbers of records that patterns of other readers find."""
    patterns = {
        "tf.io.gfile.glob": tf.io.gfile.glob(f"{directory}/*.tfrecord*"),
        "list_files": tf.data.Dataset.list_files(f"{directory}/*.tfrecord*"),
        "below": tf.io.gfile.glob(f"{directory.parent}/*/*.tfrecord*"),
        "glob": glob.glob(f"{directory}/**/*tfrec*", recursive=True),
        "rglob": [*map(str, directory.rglob("*.tfrec*"))],
    }
    return {
        name: sum(1 for _ in tf.data.TFRecordDataset(found)) for name, found in patterns.items()
    }


@pytest.mark.parametrize(("mode", "count"), [("overwrite", 60), ("append", 160)])
@pytest.mark.parametrize("kind", ["covey", "TFDS", "template of TFDS"])
def test_patterns_match_the_new_records_only(birds, tmp_path, kind, mode, count):
    examples = [{"x": n, "label": n % 2} for n in range(100)]
    if kind == "covey":
        directory = tmp_path / "birds"
        write(examples, directory, label="label", shards=4)
    else:
        features = {"x": np.int64, "label": tfds.features.ClassLabel(num_classes=2)}
        directory = birds(features, examples)
    if kind == "template of TFDS":
        (path,) = shard_paths(directory)
        path.rename(directory / "birds.train.00000.tfrecord")
        text = (directory / "dataset_info.json").read_text()
        template = json.loads(text)["splits"][0]["filepathTemplate"]
        own = "{DATASET}.{SPLIT}.{SHARD_INDEX}.{FILEFORMAT}"
        (directory / "dataset_info.json").write_text(text.replace(template, own))
    assert {*records_of(directory).values()} == {100}
    for _ in range(2):
        new = [{"x": 1000 + n, "label": n % 2} for n in range(60)]
        write(new, directory, mode=mode, shards=3)
        assert {*records_of(directory).values()} == {count}, records_of(directory)
        assert covey.verify(directory, progress=False).is_valid
        assert covey.info(directory).splits[0].records == count
        count += 60 * (mode == "append")
    assert covey.repair(directory).deleted
    assert not list(directory.glob(".*"))
    assert len(as_tfds(directory)) == info(directory).splits[0].num_examples


# Datasets that TFDS wrote.


@pytest.fixture
def birds(tmp_path, capsys):
    """Return a function that writes a dataset with TFDS."""

    def make(features, examples):
        class Birds(tfds.core.GeneratorBasedBuilder, skip_registration=True):
            name = "birds"
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                kinds = tfds.features.FeaturesDict(features)
                return tfds.core.DatasetInfo(builder=self, features=kinds)

            def _split_generators(self, dl_manager):
                return {"train": self._generate_examples()}

            def _generate_examples(self):
                yield from enumerate(examples)

        builder = Birds(data_dir=tmp_path)
        builder.download_and_prepare()
        capsys.readouterr()
        return Path(builder.data_dir)

    return make


NAMED = tfds.features.ClassLabel(names=["owl", "wren"])


@pytest.mark.parametrize(("label", "mode"), [("auto", "append"), ("label", "error")])
def test_new_records_of_a_tfds_dataset(birds, label, mode):
    examples = [{"x": i, "label": i % 2} for i in range(20)]
    directory = birds({"x": tfds.features.Scalar(np.int64), "label": NAMED}, examples)
    before = sorted((int(each["x"]), int(each["label"])) for each in as_tfds(directory))
    split = "train" if mode == "append" else "test"
    written = write([{"x": 99, "label": "crow"}], directory, split, label=label, mode=mode)
    assert tfds.builder_from_directory(directory).info.features["label"].names == [
        "owl",
        "wren",
        "crow",
    ]
    after = sorted((int(each["x"]), int(each["label"])) for each in as_tfds(directory))
    if mode == "append":
        assert after == [*before, (99, 2)]
        assert written.classes == {"owl": 10, "wren": 10, "crow": 1}
    else:
        assert after == before
        assert [int(each["label"]) for each in as_tfds(directory, "test")] == [2]
        assert written.classes == {"crow": 1}
    check_index(directory, split)


@pytest.mark.parametrize("case", ["text", "nested", "number"])
def test_append_to_labels_of_tfds(birds, case):
    kind = {"text": tfds.features.Text(), "nested": NAMED, "number": tfds.features.Scalar(np.int64)}
    labels = {"text": ["b", "a"], "nested": ["owl", "wren"], "number": [7, 5]}[case]
    nest = (lambda each: {"is": {"a": each}}) if case == "nested" else (lambda each: {"is": each})
    directory = birds(nest(kind[case]), [nest(label) for label in labels * 3])
    written = write(
        [nest(labels[0])], directory, mode="append", label="is/a" if case == "nested" else "is"
    )
    assert written.classes == {labels[0]: 4, labels[1]: 3}
    assert len(as_tfds(directory)) == 7
    check_index(directory)


def test_metadata_of_tfds_remains(birds):
    directory = birds({"x": tfds.features.Scalar(np.int64)}, [{"x": 1}])
    before = json.loads((directory / "dataset_info.json").read_text())
    write([{"x": 2}], directory, "test")
    after = json.loads((directory / "dataset_info.json").read_text())
    assert after["splits"][0] == before["splits"][0]
    assert {**after, "splits": []} == {**before, "splits": []}
    assert [split.name for split in info(directory).splits] == ["train", "test"]


# Appending to compressed shards.

COMPRESSED = {
    "GZIP": lambda path: None,
    "ZLIB": lambda path: None,
    # A single member that is too large to be read for each record, as of other writers.
    "GZIP, single member": lambda path: path.write_bytes(gzip.compress(gunzip(path), mtime=0)),
    "GZIP and plain": lambda path: path.write_bytes(gunzip(path)),
}


def gunzip(path):
    return gzip.decompress(path.read_bytes())


PARTS = slice(0, 60), slice(60, 90)
INDEX_STATES = {
    "present": lambda path: None,
    "missing": lambda path: path.unlink(),
    "corrupt": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"corrupt.\n"),
}


@pytest.mark.parametrize("state", INDEX_STATES)
@pytest.mark.parametrize("kind", COMPRESSED)
def test_append_to_compressed_shards(tmp_path, kind, state):
    """The compression is read from the shards, and every record can be read at random."""
    compression = kind[:4]
    size = (MAX_MEMBER_BYTES if "single" in kind else 1000) // 20
    data = {"x": np.arange(90), "label": np.arange(90) % 3}
    data["text"] = [bytes([n]) * size for n in range(90)]
    first, second = ({name: each[part] for name, each in data.items()} for part in PARTS)
    options = {"label": "label", "shuffle": False, "shards": 2}
    write(first, tmp_path, compression=compression, **options)
    COMPRESSED[kind](shard_paths(tmp_path)[0])
    if kind not in ("GZIP", "ZLIB"):  # the index of covey describes other shards
        covey.build_index(tmp_path, progress=False)
    for path in index_paths(tmp_path).values():
        INDEX_STATES[state](path)
    requested = {"compression": compression} if state == "missing" else {}
    for number in range(2):  # the second write uses the index of the first one
        part = {name: each[number::2] for name, each in second.items()}
        if number and state == "present":  # as the workers of an engine write shards
            write([*as_items(part)], tmp_path, mode="append", part="1/1", **options, **requested)
            covey.commit(tmp_path, progress=False)
        else:
            write(part, tmp_path, mode="append", **options, **requested)
    assert covey.verify(tmp_path, progress=False).problems == ()
    expected = [*range(60), *range(60, 90, 2), *range(61, 90, 2)]
    dataset = covey.open(tmp_path, split="train")
    order = np.random.default_rng(1).permutation(90).tolist()
    assert [int(dataset[at]["x"]) for at in order] == [expected[at] for at in order]
    assert [bytes(dataset[at]["text"]) for at in order] == [
        data["text"][expected[at]] for at in order
    ]
    paths = [[*map(str, shard_paths(tmp_path))]]
    if "plain" in kind:
        paths = [paths[0][:1], paths[0][1:]]
        assert tf.data.TFRecordDataset(paths.pop(0)).reduce(0, lambda n, _: n + 1) == 30
    with pytest.raises(DatasetError) as caught:
        other = "ZLIB" if compression == "GZIP" else "GZIP"
        write(second, tmp_path, mode="append", **options, compression=other)
    assert (caught.value.option, caught.value.found) == ("compression", other)
    theirs = tf.data.TFRecordDataset(paths[0], compression_type=compression)
    features = about(tmp_path).features
    found = [int(features.decode(each)["x"]) for each in theirs.as_numpy_iterator()]
    assert found == expected[-len(found) :]
    assert len(found) == (60 if "plain" in kind else 90)


@pytest.mark.parametrize("name", ["overwrite", "append"])
def test_tfds_reads_the_files_of_a_killed_writer(tmp_path, name, run):
    operation = OPERATIONS[name]
    operation.prepare(tmp_path / "before" / "birds")
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    operation.run(tmp_path / "after" / "birds")
    old, new = (xs(as_tfds(tmp_path / each / "birds")) for each in ("before", "after"))
    found = []
    for step in range(0, MAX_CHANGES, 12):
        directory = tmp_path / f"killed-{step}" / "birds"
        shutil.copytree(tmp_path / "before" / "birds", directory)
        if run(struck, step, "kill", partial(operation.run, directory)) is not None:
            break
        found.append(xs(as_tfds(directory)))
        assert found[-1] in (old, new)
    assert old in found
    assert new in found


def xs(examples):
    return sorted(int(each["x"]) for each in examples)


def test_tfds_changes_no_files(tmp_path):
    write([{"x": i, "label": i % 2} for i in range(9)], tmp_path, label="label")
    before = files(tmp_path)
    found = as_tfds(tmp_path)
    assert [tidy(each) for each in found] == read(tmp_path)
    assert files(tmp_path) == before
