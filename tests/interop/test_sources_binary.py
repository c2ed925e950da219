"""NPZ, Parquet, TFRecord and TFDS sources."""

import datetime
import decimal
import io
import json
import math
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow
from written import column, write

from covey import ClassLabel, Features, Image, Ragged, RecordWriter, Tensor, errors, repair
from covey.sources import from_tfds_builder, open_source

SourceError = errors.SourceError


def png():
    out = io.BytesIO()
    Pillow.new("L", (5, 5)).save(out, "PNG")
    return out.getvalue()


def split_errors(source):
    items = list(source.examples)
    good = [item for item in items if not isinstance(item, SourceError)]
    return good, [item for item in items if isinstance(item, SourceError)]


# NPZ.


@pytest.fixture
def npz(tmp_path):
    def save(**arrays):
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    return save


def test_arrays(npz):
    x = np.arange(24, dtype=np.uint8).reshape(3, 4, 2)
    source = open_source(npz(x=x, y=np.array(["owl", "wren", "owl"]), weight=np.ones(3), seed=7))
    assert source.features == {
        "x": Tensor("uint8", (4, 2), encoding="bytes"),
        "y": ClassLabel(names=("owl", "wren")),
        "weight": Tensor("float64"),
    }
    key, example = source.examples[2]
    assert (key, example["y"], example["x"].tolist()) == (2, "owl", x[2].tolist())
    assert list(source.columns) == ["x", "y", "weight"]
    block = source.features.encode_batch(source.columns)
    records = [source.features.encode(example) for _, example in source.examples]
    assert list(block) == records


def test_class_names_in_another_array(npz):
    source = open_source(
        npz(
            images=np.zeros((4, 2)),
            labels=np.array([0, 1, 2, 1], np.int16),
            alphabet=np.array([0, 0, 1, 1], np.int8),
            class_names=np.array(["a1", "a2", "b1"]),
            alphabet_names=np.array(["a", "b"]),
        )
    )
    assert source.features["labels"] == ClassLabel(names=("a1", "a2", "b1"))
    assert source.features["alphabet"] == ClassLabel(names=("a", "b"))
    assert list(source.columns) == ["images", "labels", "alphabet"]
    assert len(source.features.encode_batch(source.columns)) == 4


def test_arrays_of_splits(npz):
    arrays = {"x_train": np.zeros((3, 2)), "y_train": np.zeros(3, int)}
    path = npz(**arrays, x_test=np.zeros((2, 2)), y_test=np.zeros(2, int))
    source = open_source(path, split="test")
    assert (list(source.columns), source.length, source.label) == (["x", "y"], 2, "y")
    with pytest.raises(SourceError, match="split is None; must be one of 'test', 'train'"):
        open_source(path)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        ({"x": np.zeros(3), "y": np.zeros(2)}, "numbers of rows .'x' 3, 'y' 2., and 'x' does not"),
        ({"x": np.zeros(3, int), "x_names": np.array(["a"]), "z": np.ones(3)}, None),
        (
            {"x": np.ones(3, int), "x_names": np.array(["a"])},
            "'x_names' does not contain the class names",
        ),
        ({"x": np.array([1, None])}, "array 'x' cannot be read: Object arrays"),
        ({"x": np.zeros((0, 3))}, "the arrays have no rows"),
        ({"x": np.float64(3)}, "there is no array with rows"),
        ({"x": np.zeros(3, complex)}, "feature 'x'.* dtype complex128"),
        ({"y": np.zeros(2, int), "names": np.array(["a", "a", "b"])}, "the name 'a' occurs twice"),
    ],
)
def test_invalid_arrays(npz, arrays, what):
    path = npz(**arrays)
    if what is None:
        assert open_source(path).features["x"].names == ("a",)
        return
    with pytest.raises(SourceError, match=f"a.npz: .*{what}"):
        open_source(path)


def test_corrupt_npz(npz):
    path = npz(x=np.arange(1000))
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:2000])
    with pytest.raises(SourceError, match=r"a.npz: the archive cannot be read: "):
        open_source(path)
    data[3000] ^= 255
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"a.npz: array 'x' cannot be read: Bad CRC"):
        open_source(path)


# Parquet.


@pytest.fixture
def parquet(tmp_path):
    def save(table, name="a.parquet", **options):
        table = table if isinstance(table, pa.Table) else pa.table(table)
        pq.write_table(table, tmp_path / name, **options)
        return tmp_path / name

    return save


def test_columns_of_every_type(parquet):
    row = {
        "i": 3,
        "u": 7,
        "f": 0.5,
        "b": True,
        "s": "owl",
        "raw": b"\0\1",
        "list": [1, 2],
        "lists": [[1], []],
        "inner": {"a": 1, "b": "x"},
        "day": datetime.date(2024, 5, 6),
        "price": decimal.Decimal("1.50"),
        "name": "wren",
    }
    schema = pa.schema(
        {
            "i": pa.int64(),
            "u": pa.uint16(),
            "f": pa.float32(),
            "b": pa.bool_(),
            "s": pa.large_string(),
            "raw": pa.binary(),
            "list": pa.list_(pa.int64()),
            "lists": pa.list_(pa.list_(pa.int32())),
            "inner": pa.struct({"a": pa.int8(), "b": pa.string()}),
            "day": pa.date32(),
            "price": pa.decimal128(5, 2),
            "name": pa.dictionary(pa.int8(), pa.string()),
        }
    )
    source = open_source(parquet(pa.Table.from_pylist([row], schema)))
    assert source.features == Features(
        {
            "i": "int64",
            "u": "uint16",
            "f": "float32",
            "b": "bool",
            "s": "str",
            "raw": "bytes",
            "list": Tensor("int64", (None,)),
            "lists": Ragged("int32"),
            "inner": {"a": "int8", "b": "str"},
            "day": "str",
            "price": "str",
            "name": "str",
        }
    )
    ((key, example),) = source.examples
    assert (key, example) == (0, {**row, "day": "2024-05-06", "price": "1.50"})
    assert source.features.encode(example)


def test_type_that_is_inferred_from_values(parquet):
    source = open_source(parquet({"x": pa.array([[1, 2]], pa.list_(pa.int8(), 2)), "n": [None]}))
    assert source.features is None
    assert list(source.examples) == [(0, {"x": [1, 2]})]


def hugging_face(images, labels, names):
    image = pa.array([{"bytes": each, "path": "x.png"} for each in images])
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    info = json.dumps({"info": {"features": features}})
    table = pa.table({"image": image, "label": pa.array(labels, pa.int64())})
    return table.replace_schema_metadata({"huggingface": info})


def test_images_of_hugging_face(parquet):
    source = open_source(parquet(hugging_face([png(), None, b"x"], [1, 0, 1], ["owl", "wren"])))
    assert source.features == {"image": Image(), "label": ClassLabel(names=("owl", "wren"))}
    good, bad = split_errors(source)
    assert good == [(0, {"image": png(), "label": 1})]
    assert [(error.path, error.record, error.feature) for error in bad] == [
        (source.path, 1, "image"),
        (source.path, 2, "image"),
    ]


def test_nulls(parquet):
    columns = {"i": [1, None], "f": [None, 0.5], "s": [None, "x"], "l": [None, [1]]}
    source = open_source(parquet({**columns, "label": ["owl", None]}))
    assert source.features["i"] == Tensor("float64")
    assert source.features["label"] == ClassLabel(names=("owl",))
    ((_, example),), bad = split_errors(source)
    assert (example["i"], example["s"], example["l"]) == (1, "", [])
    assert math.isnan(example["f"])
    assert [(error.record, error.feature, error.reason) for error in bad] == [
        (1, "label", "the label is null")
    ]
    assert split_errors(open_source(parquet({"label": ["owl", ""]})))[1][0].reason == (
        "the label is empty"
    )


@pytest.mark.parametrize("has_statistics", [False, True])
def test_integers_beside_a_null(parquet, tmp_path, has_statistics):
    ids = [1234567890123456789 + i for i in range(29)]
    table = pa.table({"id": pa.array([None, *ids], pa.int64()), "flag": [None, *[True] * 29]})
    path = parquet(table, write_statistics=has_statistics)
    options = {"label": None, "shuffle": False}
    with pytest.raises(errors.CoveyError) as caught:
        write(path, tmp_path / "no default", **options)
    assert (caught.value.feature, "defaults=" in caught.value.remedy) == ("id", True)
    defaults = {"id": 7, "flag": False}
    written = write(path, tmp_path / "default", **options, defaults=defaults)
    assert dict(written.features) == {
        "id": Tensor("int64", default=7),
        "flag": Tensor("bool", default=False),
    }
    assert column(tmp_path / "default", "id") == [7, *ids]
    assert column(tmp_path / "default", "flag") == [False, *[True] * 29]
    kinds = {"id": Tensor("int64", default=7), "flag": Tensor("bool", default=False)}
    write(path, tmp_path / "features", **options, features=kinds)
    assert column(tmp_path / "features", "id") == [7, *ids]
    types = {"id": "str"}
    write(path, tmp_path / "types", **options, types=types, defaults={"flag": True})
    assert column(tmp_path / "types", "id") == ["", *map(str, ids)]


def test_floats_keep_their_declared_type(parquet, tmp_path):
    """Columns of Parquet have a type, as arrays of numpy have."""
    single = pa.array([0.1, 0.5], pa.float32())
    path = parquet({"single": single, "double": [0.1, 0.5], "list": [[0.1], [0.5, 0.25]]})
    written = write(path, tmp_path / "data", label=None, shuffle=False)
    assert dict(written.features) == {
        "single": Tensor("float32"),
        "double": Tensor("float64"),
        "list": Tensor("float64", (None,)),
    }
    assert column(tmp_path / "data", "double") == [0.1, 0.5]


def test_rows_of_many_groups_and_files(parquet, tmp_path):
    (tmp_path / "data").mkdir()
    for name, start in (("train-0", 0), ("train-1", 700), ("test-0", 5000)):
        table = {"x": list(range(start, start + 700))}
        parquet(table, f"data/{name}.parquet", row_group_size=100)
    source = open_source(tmp_path / "data", split="train")
    assert source.length == 1400
    assert list(source.examples) == [(i, {"x": i}) for i in range(1400)]
    assert open_source(str(tmp_path / "data" / "test*")).length == 700
    with pytest.raises(SourceError, match="split is None; must be one of 'test', 'train'"):
        open_source(tmp_path / "data")
    parquet({"y": [1]}, "data/train-2.parquet")
    with pytest.raises(
        SourceError, match=r"train-2.parquet: the columns differ from those of .*train-0"
    ):
        open_source(tmp_path / "data", split="train")


def test_corrupt_parquet(parquet, tmp_path):
    path = parquet({"x": list(range(20_000))}, row_group_size=10_000, compression="gzip")
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-100])
    with pytest.raises(SourceError, match="the file cannot be read: "):
        open_source(path)
    data[len(data) // 2 : len(data) // 2 + 1000] = bytes(1000)
    path.write_bytes(data)
    good, bad = split_errors(open_source(path))
    assert 0 < len(good) < 20_000
    assert [error.record for error in bad] == [len(good)]


def test_pyarrow_is_missing(parquet, monkeypatch):
    path = parquet({"x": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SourceError, match=r"requires pyarrow.*; run: pip install pyarrow"):
        open_source(path)


# TFRecords.


FEATURES = Features({"x": Tensor("int64", (None,)), "s": "str", "label": "int64"})


def write_records(path, numbers, **options):
    with RecordWriter(path, **options) as writer:
        for i in numbers:
            if isinstance(i, bytes):
                writer.write(i)
            else:
                example = {"x": np.arange(i % 3), "s": f"s{i}", "label": i % 2}
                writer.write(FEATURES.encode(example))
    return path


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_records(tmp_path, compression):
    write_records(tmp_path / "a.tfrecord", range(300), compression=compression)
    write_records(tmp_path / "b.tfrecord", range(300, 500), compression=compression)
    source = open_source(str(tmp_path / "*"))
    assert (source.kind, source.length, source.label) == ("TFRecords", 500, "label")
    assert source.features == {
        "label": Tensor("int64"),
        "s": Tensor("bytes"),
        "x": Tensor("int64", (None,), default=[]),
    }
    items = list(source.examples)
    assert [key for key, _ in items] == [f"a.tfrecord:{i}" for i in range(300)] + [
        f"b.tfrecord:{i}" for i in range(200)
    ]
    for i, (_, example) in enumerate(items):
        assert (example["s"], example["label"]) == (f"s{i}".encode(), i % 2)
        assert example["x"].tolist() == list(range(i % 3))
    assert source.features.encode(items[7][1])


@pytest.mark.parametrize("kind", ["checksum", "not an Example", "cut"])
def test_a_corrupt_record_is_an_error_of_the_source(tmp_path, kind):
    """covey repair writes the other records, which covey write then reads."""
    path = write_records(
        tmp_path / "a.tfrecord", [0, b"\xff\xff" if kind == "not an Example" else 1, 2]
    )
    data = bytearray(path.read_bytes())
    if kind == "checksum":
        data[-5] ^= 1
    path.write_bytes(data[:-3] if kind == "cut" else data)
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert (caught.value.path, caught.value.record) == (
        str(path),
        2 if kind != "not an Example" else 1,
    )
    assert "`covey repair`" in caught.value.remedy
    repair(path, tmp_path / "repaired", progress=False)
    assert open_source(tmp_path / "repaired").length == 2


def test_records_of_different_types(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", [1, Features({"s": "int64"}).encode({"s": 1})])
    with pytest.raises(SourceError, match=r"'s': record 0 .* bytes, record 1 .* int64"):
        open_source(path)


def test_sequence_examples_become_writable(tmp_path):
    import tensorflow as tf

    def ints(*values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    example = tf.train.SequenceExample()
    example.context.feature["label"].CopyFrom(ints(1))
    example.feature_lists.feature_list["one"].feature.extend([ints(1), ints(2)])
    example.feature_lists.feature_list["many"].feature.extend([ints(1), ints(2, 3)])
    path = write_records(tmp_path / "a.tfrecord", [example.SerializeToString()])
    source = open_source(path)
    ((_, found),) = source.examples
    again = source.features.decode(source.features.encode(found))
    assert again["one"].tolist() == [1, 2]
    assert again["many"].tolist() == [[1], [2, 3]]


# TFDS.


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    import tensorflow_datasets as tfds

    class Birds(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(5, 5, 1)),
                "species": tfds.features.ClassLabel(names=["owl", "wren"]),
                "nest": {"eggs": np.int64},
            }
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(features),
                supervised_keys=("image", "species"),
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples(7), "test": self._generate_examples(2)}

        def _generate_examples(self, count):
            for i in range(count):
                yield i, {"image": io.BytesIO(png()), "species": i % 2, "nest": {"eggs": i}}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        builder = Birds(data_dir=str(tmp_path_factory.mktemp("tfds")))
        builder.download_and_prepare()
    return builder


def test_prepared_directory(prepared):
    source = open_source(prepared.data_dir, split="train")
    assert (source.kind, source.length, source.label) == ("TFDS directory", 7, "species")
    assert source.features["species"] == ClassLabel(names=("owl", "wren"))
    items = list(source.examples)
    assert len({key for key, _ in items}) == 7
    assert all(example["image"] == png() for _, example in items)
    expected = prepared.as_dataset(split="train", shuffle_files=False).as_numpy_iterator()
    for (_, example), other in zip(items, expected, strict=True):
        assert example["species"] == other["species"]
        assert example["nest"]["eggs"] == other["nest"]["eggs"]
        assert source.features.encode(example)


def test_builder(prepared):
    assert from_tfds_builder(prepared, "test").length == 2
    with pytest.raises(SourceError, match=r"split is 'train\[:3\]'; must be one of"):
        from_tfds_builder(prepared, "train[:3]")


def test_builder_that_is_not_prepared(tmp_path):
    builder = SimpleNamespace(data_dir=str(tmp_path))
    with pytest.raises(SourceError, match=r"not prepared; call download_and_prepare\(\)"):
        from_tfds_builder(builder, "train")
    with pytest.raises(TypeError, match="builder is of type str; must be a TFDS builder"):
        from_tfds_builder("mnist", "train")


def copy(prepared, tmp_path):
    import shutil

    return shutil.copytree(prepared.data_dir, tmp_path / "copy")


def test_shard_with_too_few_records(prepared, tmp_path):
    directory = copy(prepared, tmp_path)
    shard = next(directory.glob("*-train*"))
    shard.write_bytes(next(directory.glob("*-test*")).read_bytes())
    with pytest.raises(SourceError, match="the shard has 2 records"):
        open_source(directory, split="train")


def test_corrupt_metadata(prepared, tmp_path):
    directory = copy(prepared, tmp_path)
    (directory / "dataset_info.json").write_text("{")
    with pytest.raises(SourceError, match=r"dataset_info.json"):
        open_source(directory, split="train")
