"""covey.write of tables, datasets and loaders of other libraries."""

from io import BytesIO

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
import tensorflow as tf
import torch
from PIL import Image as Pillow
from written import check_index, column, read, records, write

import covey
from covey import ClassLabel, Features, Image, Ragged, Sparse, Tensor
from covey.errors import DatasetError, FeatureError, SourceError

ROWS = [{"x": i, "y": [i / 2, 1.0], "word": f"w{i}", "label": "ab"[i % 2]} for i in range(30)]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


pytestmark = pytest.mark.usefixtures("no_fsync")


class TorchRows(torch.utils.data.Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        row = ROWS[index]
        return {**row, "x": torch.tensor(row["x"]), "y": torch.tensor(row["y"])}


class TorchStream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(ROWS)

    def __len__(self):
        return len(ROWS)


def arrow_stream():
    batches = pyarrow.table(COLUMNS).to_batches(max_chunksize=7)
    return pyarrow.RecordBatchReader.from_batches(batches[0].schema, batches)


INPUTS = {
    "pandas": lambda: pandas.DataFrame(COLUMNS),
    "pandas series": lambda: pandas.Series(ROWS, index=range(len(ROWS), 0, -1)),
    "polars": lambda: polars.DataFrame(COLUMNS),
    "arrow table": lambda: pyarrow.table(COLUMNS),
    "arrow chunks": lambda: pyarrow.Table.from_batches(pyarrow.table(COLUMNS).to_batches(7)),
    "arrow batch": lambda: pyarrow.record_batch(COLUMNS),
    "arrow stream": arrow_stream,
    "Hugging Face": lambda: datasets.Dataset.from_dict(COLUMNS),
    "Hugging Face stream": lambda: datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset(),
    "torch": TorchRows,
    "torch stream": TorchStream,
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices(
        {**COLUMNS, "y": np.array(COLUMNS["y"], np.float32)}
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(tmp_path, name):
    # Several workers would start processes for datasets that are accessible by index.
    for workers in (1, 2) if "stream" in name else (1,):
        directory = tmp_path / str(workers)
        written = write(INPUTS[name](), directory, label="label", shuffle=False, workers=workers)
        expected = [{**row, "label": "ab".index(row["label"])} for row in ROWS]
        if name == "tf.data":  # strings are byte strings there
            expected = [{**row, "word": row["word"].encode()} for row in expected]
        assert read(directory) == expected
        assert written.classes == {"a": 15, "b": 15}
        check_index(directory)


def test_pairs(tmp_path):
    """Tuples whose elements need names."""
    x, y = np.arange(20, dtype=np.float32).reshape(10, 2), np.arange(10) % 3
    pairs = {
        "torch": torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
        "tf.data": tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: x[0] >= 0),
        "ragged": tf.data.Dataset.from_tensor_slices((tf.RaggedTensor.from_tensor(x), y)),
    }
    for name, dataset in pairs.items():
        options = {"names": ("x", "label"), "label": "label", "shuffle": False}
        written = write(dataset, tmp_path / name, **options)
        assert column(tmp_path / name, "x") == x.tolist()
        assert written.classes == {0: 4, 1: 3, 2: 3}


def test_values_of_arrow(tmp_path):
    columns = {"l": [[1, 2], [3]], "s": ["a", "b"], "t": [True, False], "b": [b"a", b""]}
    write(pyarrow.record_batch(columns), tmp_path, shuffle=False)
    rows = zip(*columns.values(), strict=True)
    assert read(tmp_path) == [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize("make", [polars.DataFrame, pandas.DataFrame, pyarrow.table])
def test_structs(tmp_path, make):
    structs = [{"a": 1, "in": {"b": 2.5}}, {"a": 2, "in": {"b": 0.5}}]
    written = write(make({"st": structs, "x": [1, 2]}), tmp_path, shuffle=False)
    assert written.features == Features(
        {"st": {"a": "int64", "in": {"b": "float32"}}, "x": "int64"}
    )
    assert read(tmp_path) == [{"st": each, "x": x} for x, each in enumerate(structs, 1)]


@pytest.mark.parametrize(
    "table",
    [
        pyarrow.table({"x": [1, None, 3]}),
        pandas.DataFrame({"x": pandas.array([1, None, 3], "Int64")}),
        polars.DataFrame({"x": [1, None, 3]}),
    ],
    ids=["arrow", "pandas", "polars"],
)
def test_missing_values(tmp_path, table):
    with pytest.raises(FeatureError) as caught:
        write(table, tmp_path / "without")
    assert caught.value.feature == "x"
    write(table, tmp_path / "with", defaults={"x": 7}, shuffle=False)
    assert column(tmp_path / "with", "x") == [1, 7, 3]


def hugging_face():
    kinds = {"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["wren", "owl"])}
    columns = {"x": [1, 2, 3], "label": [0, 1, 1]}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize(("is_stream", "workers"), [(False, 1), (True, 1), (True, 2)])
def test_class_names_of_hugging_face(tmp_path, is_stream, workers):
    dataset = hugging_face().to_iterable_dataset() if is_stream else hugging_face()
    for split in ("train", "test"):
        written = write(dataset, tmp_path, split, label="auto", workers=workers)
        assert written.features["label"] == ClassLabel(names=("wren", "owl"))
        assert (written.label, written.classes) == ("label", {"wren": 1, "owl": 2})


def test_splits_of_hugging_face(tmp_path):
    splits = datasets.DatasetDict({"train": hugging_face(), "test": hugging_face().select([1])})
    written = covey.write(splits, tmp_path / "all", progress=False)
    assert {name: each.records for name, each in written.splits.items()} == {"train": 3, "test": 1}
    assert written.unshared_classes == {"train": ("wren",), "test": ()}
    opened = covey.open(tmp_path / "all", split="test")
    assert opened.features["label"] == ClassLabel(names=("wren", "owl"))
    covey.write(splits, tmp_path / "one", split="test", progress=False)
    assert len(covey.open(tmp_path / "one")) == 1


def test_ragged_and_sparse_tensors(tmp_path):
    lists = [[[1], [2, 3]], [[], [4]], [[5, 6], [7, 8]], []]
    dense = [[0.0, 1.5], [2.5, 0.0], [0.0, 0.0], [1.0, 1.0]]
    tensors = {
        "in": {"r": tf.ragged.constant(lists, dtype=tf.int64, ragged_rank=2)},
        "s": tf.sparse.from_dense(tf.constant(dense)),
    }
    written = write(tf.data.Dataset.from_tensor_slices(tensors), tmp_path, shuffle=False)
    assert written.features == Features(
        {"in": {"r": Ragged("int64")}, "s": Sparse("float32", (2,))}
    )
    assert [each["r"] for each in column(tmp_path, "in")] == lists
    found = [written.features.decode(record)["s"] for record in records(tmp_path)]
    assert [each.to_dense().tolist() for each in found] == dense


@pytest.mark.parametrize("workers", [1, 2])
def test_source_that_reuses_a_tensor(tmp_path, workers):
    def examples():
        x = torch.zeros(3, dtype=torch.int64)
        for number in range(50):
            x[:] = number
            yield {"x": x}

    write(examples(), tmp_path, shuffle=False, workers=workers)
    assert column(tmp_path, "x") == [[number] * 3 for number in range(50)]


def test_images_keep_their_bytes(tmp_path):
    out = BytesIO()
    Pillow.new("RGB", (4, 3), (1, 2, 3)).save(out, "PNG")
    features = {"image": Image(), "label": ClassLabel(["owl"])}
    write([{"image": out.getvalue(), "label": "owl"}], tmp_path, features=features)
    assert column(tmp_path, "image") == [out.getvalue()]


# Errors.


@pytest.mark.parametrize(
    ("examples", "reason"),
    [
        (polars.LazyFrame({"x": [1]}), r"LazyFrame; call collect\(\)"),
        (torch.utils.data.DataLoader([{"x": 1}]), "DataLoader of batches; pass its dataset"),
        (tf.data.Dataset.range(3).repeat(), r"is infinite; use take\(\)"),
        (pandas.DataFrame([[1, 2]], columns=["x", "x"]), "have the same name"),
    ],
    ids=["lazy", "loader", "infinite", "names"],
)
def test_invalid_inputs(tmp_path, examples, reason):
    with pytest.raises(DatasetError, match=reason) as caught:
        write(examples, tmp_path / "birds", names=("x",))
    assert caught.value.option == "examples"
    assert not (tmp_path / "birds").exists()


def test_dataset_that_fails(tmp_path):
    dataset = tf.data.Dataset.range(5).map(
        lambda x: {"x": tf.debugging.check_numerics(1 / tf.cast(3 - x, tf.float32), "no")}
    )
    with pytest.raises(SourceError, match="the source failed") as caught:
        write(dataset, tmp_path / "birds")
    assert caught.value.example == 3
    assert not (tmp_path / "birds").exists()


def test_dtypes_of_tf_data(tmp_path):
    dataset = tf.data.Dataset.from_tensor_slices({"y": np.ones((10, 2), np.float32)})
    assert write(dataset, tmp_path).features["y"] == Tensor("float32", (2,))
