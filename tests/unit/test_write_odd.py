"""Odd examples and odd surroundings: what is meant is written, or the error says what is wrong."""

import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schemas import mixtures
from written import check_index, column, files, info, read, records, tidy, write

import covey
from covey import ClassLabel, Features, Ragged, Sparse, Tensor
from covey.compat.datum import Serializer, TFRecordWriter
from covey.errors import DatasetError, FeatureError, FormatError
from covey.writing.options import WriteOptions
from covey.writing.shards import plan_cuts

NAMED = {"label": ClassLabel(names=["a", "b"])}


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """The system outlives these tests, and loses nothing."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def as_form(form, columns):
    """The same examples as columns, or one by one."""
    if form == "columns":
        return columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# Sources that use their arrays again.


def the_same_array(count):
    x = np.zeros(3, np.int64)
    for number in range(count):
        x[:] = number
        yield {"x": x}


def the_same_dict(count):
    example = {}
    for number in range(count):
        example["x"] = [number] * 3
        yield example


def the_same_list(count):
    x = [0, 0, 0]
    for number in range(count):
        x[:] = [number] * 3
        yield {"x": x}


def the_same_buffer_in_pairs(count):
    x = np.zeros(3, np.int64)
    example = {"x": x}
    for number in range(count):
        x[:] = number
        yield f"bird {number}", example


def the_same_tensor(count):
    import torch

    x = torch.zeros(3, dtype=torch.int64)
    for number in range(count):
        x[:] = number
        yield {"x": x}


REUSING = [
    the_same_array, the_same_dict, the_same_list, the_same_buffer_in_pairs, the_same_tensor,
]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("features", [None, {"x": Tensor("int64", (3,))}])
@pytest.mark.parametrize("source", REUSING)
def test_a_source_may_reuse_its_arrays(tmp_path, source, features, workers):
    write(source(50), tmp_path, features=features, shuffle=False, workers=workers)
    assert column(tmp_path, "x") == [[number] * 3 for number in range(50)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_may_reuse_nested_arrays(tmp_path, workers):
    def examples():
        inner = {"x": np.zeros(2), "names": [""]}
        for number in range(50):
            inner["x"][:] = number
            inner["names"][0] = f"n{number}"
            yield {"of": inner}

    write(examples(), tmp_path, shuffle=False, workers=workers)
    assert read(tmp_path) == [{"of": {"x": [i, i], "names": [f"n{i}"]}} for i in range(50)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_source_may_reuse_arrays_in_tuples(tmp_path, workers):
    def examples():
        x = np.zeros(2, np.float32)
        for number in range(50):
            x[:] = number
            yield x, number

    write(examples(), tmp_path, names=("x", "y"), shuffle=False, workers=workers)
    assert read(tmp_path) == [{"x": [i, i], "y": i} for i in range(50)]


# Features that are found on the way.


@pytest.mark.parametrize("last", [[], [[]], [[1.5], []]])
@pytest.mark.parametrize("workers", [1, 2])
def test_ragged_integers_then_others(tmp_path, last, workers):
    examples = [{"x": [[], [7]]}] * 9 + [{"x": last}]
    written = write(iter(examples), tmp_path, shuffle=False, workers=workers)
    assert written.features == Features.infer(examples)
    assert read(tmp_path) == examples


@pytest.mark.parametrize("workers", [1, 2])
def test_ragged_float64_is_rejected(tmp_path, workers):
    examples = [{"x": [[], [7]]}] * 9 + [{"x": [[2**40 + 1], [0.5]]}]
    with pytest.raises(FeatureError, match=r"'x'.*float64"):
        write(iter(examples), tmp_path / "birds", workers=workers)
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_large_integers_that_a_worker_encodes(tmp_path, workers):
    late = [{"x": value, "y": 1} for value in [0, 2**24 + 1, 0.5]]
    examples = [{"y": 1}] * 60 + late
    written = write(iter(examples), tmp_path, defaults={"x": 0}, shuffle=False, workers=workers)
    assert written.features["x"] == Tensor("float64", default=0)
    assert column(tmp_path, "x") == [0] * 60 + [0, 2**24 + 1, 0.5]


@pytest.mark.parametrize(
    "last", [[[0]], [[1, 2]], [[1.5], [2.5]], [["a"]], [[[1]]], [[]], [[1], []]]
)
def test_empty_lists_then_nested_ones(tmp_path, last):
    examples = [{"x": []}] * 9 + [{"x": last}] * 2
    written = write(iter(examples), tmp_path, shuffle=False)
    assert written.features == Features.infer(examples)
    assert read(tmp_path) == examples


@pytest.mark.parametrize(
    ("values", "default"),
    [([[1], [1, 2]], [1, 2, 3]), ([1, 2.5], 1.5), (["a", b"b"], b"c"), ([[], [[1, 2], [3]]], [])],
)
def test_a_default_that_the_first_examples_do_not_fit(tmp_path, values, default):
    examples = [{"x": value, "y": 1} for value in values] + [{"y": 1}]
    options = {"defaults": {"x": default}}
    written = write(iter(examples), tmp_path, shuffle=False, **options)
    assert written.features == Features.infer(examples, **options)
    assert column(tmp_path, "x")[-1] == default


def as_read(value, kind):
    """A value as it is read from a feature of this type."""
    if kind == "bytes":
        return value.encode() if isinstance(value, str) else value
    if kind == "float64" and isinstance(value, int):
        return float(value)  # exact to 2**53, and beyond that the nearest
    return tidy({"x": value})["x"]


@given(
    mixture=mixtures(),
    workers=st.sampled_from([1, 1, 2]),
    at_once=st.sampled_from([1, 2, 3, 4096]),
    memory_limit=st.sampled_from([1, 1 << 20]),
)
def test_features_inferred_while_encoding_fit_all_examples(mixture, workers, at_once, memory_limit):
    examples, defaults = mixture
    options = {
        "defaults": defaults,
        "workers": workers,
        "memory_limit": memory_limit,
        "shuffle": False,
    }
    try:
        features = Features.infer(examples, defaults=defaults)
    except FeatureError:
        features = None
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch("covey.writing.encode.CHUNK_EXAMPLES", at_once),
        mock.patch("covey.writing.parallel.CHUNK_EXAMPLES", at_once),
    ):
        if features is None:
            with pytest.raises(FeatureError):
                write(iter(examples), directory, **options)
            return
        written = write(iter(examples), directory, **options)
        found = read(Path(directory))
    assert written.features == features
    for example, each in zip(examples, found, strict=True):
        assert {*each} == {*features}
        for name, value in each.items():
            given = example.get(name)
            given = defaults[name] if given is None else given
            assert value == as_read(given, features[name].dtype)


# What is left out does not depend on who works.

SKIPPING = {
    "strings among the first numbers": [
        {"x": 1},
        *[{"x": "t"}] * 5,
        *[{"x": i} for i in range(50)],
    ],
    "shapes": [{"x": [1]}, *[{"x": 2}] * 5, *[{"x": [i] * (i % 3)} for i in range(50)], {"x": 3}],
    "bad ones and wider ones": [{"x": "t" if i % 7 == 6 else i / (i % 5 + 1)} for i in range(90)],
    "names": [{"x": 1}, *[{"x": 1, "y": 2}] * 5, *[{"y": 1}] * 5, *[{"x": i} for i in range(20)]],
    "beyond 64 bits": [{"x": 2**63}, {"x": -1}, *[{"x": i} for i in range(50)], {"x": -2}],
}


def skipped_by_write(examples, directory, **options):
    written = write(iter(examples), directory, on_error="skip", shuffle=False, **options)
    return [each.record for each in written.skipped]


@pytest.mark.parametrize("case", SKIPPING)
def test_skip_is_the_same_for_any_workers(tmp_path, case):
    one, two, four = (
        skipped_by_write(SKIPPING[case], tmp_path / str(workers) / "birds", workers=workers)
        for workers in [1, 2, 4]
    )
    assert one == two == four != []
    assert files(tmp_path / "1") == files(tmp_path / "2") == files(tmp_path / "4")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_skip_keeps_examples_that_fit(tmp_path, workers):
    examples = SKIPPING["strings among the first numbers"]
    assert skipped_by_write(examples, tmp_path, workers=workers) == [1, 2, 3, 4, 5]
    assert column(tmp_path, "x") == [1, *range(50)]


GROWING = [*["a"] * 6, "zz", None, *["yy"] * 5]  # None is the one that does not fit


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("mode", ["append", "error"])
def test_skip_loses_no_new_class(tmp_path, mode, workers):
    write({"x": [1, 2], "label": ["a", "b"]}, tmp_path, label="label")
    examples = [{"x": 0, "label": each} if each else {"x": "bad", "label": "a"} for each in GROWING]
    split = "train" if mode == "append" else "test"
    options = {"split": split, "mode": mode, "workers": workers}
    assert skipped_by_write(examples, tmp_path, **options) == [7]
    names = (tmp_path / "label.labels.txt").read_text().split()
    found = [names[label] for label in column(tmp_path, "label", split)]
    assert sorted(found[-12:]) == sorted(each for each in GROWING if each)
    check_index(tmp_path, split)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_error_names_the_invalid_example_not_a_new_class(tmp_path, workers):
    write({"x": [1, 2], "label": ["a", "b"]}, tmp_path, label="label")
    examples = [{"x": 0, "label": each} if each else {"x": "bad", "label": "a"} for each in GROWING]
    with pytest.raises(FeatureError, match=r"^example 7: feature 'x'"):
        write(iter(examples), tmp_path, mode="append", workers=workers)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_class_ids_beside_new_class_names(tmp_path, workers):
    write({"label": ["a", "b"]}, tmp_path, label="label")
    examples = [{"label": label} for label in [1, "new"] * 8]
    write(iter(examples), tmp_path, "test", shuffle=False, workers=workers)
    assert column(tmp_path, "label", "test") == [1, 2] * 8


# Keys.

BAD_KEYS = [1.5, None, 2**70, "\ud800", ("a",)]


@pytest.mark.parametrize("features", [None, {"x": "int64"}])
@pytest.mark.parametrize("key", BAD_KEYS)
def test_an_invalid_key_is_reported_with_its_example(tmp_path, key, features):
    for place in [0, 2]:
        pairs = [(f"bird {i}", {"x": i}) for i in range(5)]
        pairs[place] = (key, {"x": place})
        with pytest.raises(FeatureError, match=f"^example {place}: the key"):
            write(pairs, tmp_path / "birds", features=features)
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("features", [None, {"x": "int64"}])
def test_invalid_keys_are_skipped(tmp_path, features, workers):
    keys = ["a", *BAD_KEYS, "b", "c"]
    pairs = [(key, {"x": number}) for number, key in enumerate(keys)]
    found = skipped_by_write(pairs, tmp_path, features=features, workers=workers)
    assert found == [1, 2, 3, 4, 5]
    assert column(tmp_path, "x") == [0, 6, 7]


@pytest.mark.parametrize("key", [1.5, "\ud800"])
def test_a_feature_that_is_an_invalid_key(tmp_path, key):
    examples = [{"x": 1, "id": "a"}, {"x": 2, "id": key}, {"x": 3, "id": "c"}]
    features = {"x": "int64", "id": "bytes"}
    with pytest.raises(FeatureError, match=r"^example 1: "):
        write(examples, tmp_path / "birds", key="id", features=features)
    assert skipped_by_write(examples, tmp_path / "birds", key="id", features=features) == [1]


# Tables, datasets and loaders.

STRUCTS = [{"a": 1, "b": 2.5}, {"a": 2, "b": 0.5}]


def structs_of(kind):
    if kind == "polars":
        import polars

        return polars.DataFrame({"st": STRUCTS, "x": [1, 2]})
    if kind == "pandas":
        import pandas

        return pandas.DataFrame({"st": STRUCTS, "x": [1, 2]})
    import pyarrow

    return pyarrow.table({"st": STRUCTS, "x": [1, 2]})


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow"])
def test_structs_keep_their_names_and_types(tmp_path, kind):
    written = write(structs_of(kind), tmp_path, shuffle=False)
    assert written.features == Features({"st": {"a": "int64", "b": "float32"}, "x": "int64"})
    assert read(tmp_path) == [{"st": each, "x": x} for x, each in enumerate(STRUCTS, 1)]


def test_structs_in_structs(tmp_path):
    import polars

    table = polars.DataFrame({"st": [{"in": {"a": 1}}, {"in": {"a": 2}}]})
    write(table, tmp_path, shuffle=False)
    assert read(tmp_path) == [{"st": {"in": {"a": 1}}}, {"st": {"in": {"a": 2}}}]


ARROW = {"x": [1, 2], "l": [[1, 2], [3]], "s": ["a", "b"], "t": [True, False], "b": [b"a", b""]}


def arrow_of(kind):
    import pyarrow

    batch = pyarrow.record_batch(ARROW)
    return (
        batch if kind == "batch" else pyarrow.RecordBatchReader.from_batches(batch.schema, [batch])
    )


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_arrow_batches_of_anything(tmp_path, kind):
    write(arrow_of(kind), tmp_path, shuffle=False)
    assert read(tmp_path) == as_form("examples", ARROW)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_torch_iterable_dataset_with_a_length(tmp_path, workers):
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return ({"x": i} for i in range(9))

        def __len__(self):
            return 9

    write(Rows(), tmp_path, shuffle=False, workers=workers)
    assert column(tmp_path, "x") == [*range(9)]


def hugging_face(labels=(0, 1, 1)):
    import datasets

    kinds = {"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["wren", "owl"])}
    columns = {"x": [*range(len(labels))], "label": list(labels)}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_hugging_face_stream_has_class_names(tmp_path, workers):
    written = write(hugging_face().to_iterable_dataset(), tmp_path, workers=workers)
    assert written.features["label"] == ClassLabel(names=("wren", "owl"))
    assert (written.label, written.classes) == ("label", {"wren": 1, "owl": 2})


def lazy_frame():
    import polars

    return polars.LazyFrame({"x": [1]})


def data_loader():
    import torch

    return torch.utils.data.DataLoader([{"x": 1}, {"x": 2}], batch_size=2)


def dataset_dict():
    import datasets

    return datasets.DatasetDict({"train": hugging_face(), "test": hugging_face()})


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lazy_frame, r"LazyFrame; call collect\(\)"),
        (data_loader, "DataLoader of batches; pass its dataset"),
        (dataset_dict, r"several splits: train, test; .*examples\['train'\]"),
    ],
)
def test_containers_of_examples_are_rejected(tmp_path, make, advice):
    with pytest.raises(DatasetError, match=advice):
        write(make(), tmp_path / "birds")
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("labels", [[2, 0, 1], [7, 8, 9], ["a", "b", "c"]])
def test_a_series_of_dicts_is_read_in_its_order(tmp_path, labels, workers):
    import pandas

    series = pandas.Series([{"x": 1}, {"x": 2}, {"x": 3}], index=labels)
    write(series, tmp_path, shuffle=False, workers=workers)
    assert column(tmp_path, "x") == [1, 2, 3]


def test_ragged_tensors(tmp_path):
    import tensorflow as tf

    lists = [[[1], [2, 3]], [[], [4]], [[5, 6], [7, 8]], []]
    tensors = {"in": {"r": tf.ragged.constant(lists, dtype=tf.int64, ragged_rank=2)}}
    written = write(tf.data.Dataset.from_tensor_slices(tensors), tmp_path, shuffle=False)
    assert written.features == Features({"in": {"r": Ragged("int64")}})
    assert [each["r"] for each in column(tmp_path, "in")] == lists


def test_sparse_tensors(tmp_path):
    import tensorflow as tf

    tensors = {"s": tf.sparse.from_dense(tf.constant([[0.0, 1.5], [2.5, 0.0], [0.0, 0.0]]))}
    written = write(tf.data.Dataset.from_tensor_slices(tensors), tmp_path, shuffle=False)
    assert written.features == Features({"s": Sparse("float32", (2,))})
    found = [written.features.decode(record)["s"] for record in records(tmp_path)]
    assert [each.to_dense().tolist() for each in found] == [[0, 1.5], [2.5, 0], [0, 0]]


def test_ragged_tensors_in_tuples(tmp_path):
    import tensorflow as tf

    tensors = tf.ragged.constant([[1.5], [], [2.5, 3.5]]), tf.range(3)
    dataset = tf.data.Dataset.from_tensor_slices(tensors)
    write(dataset, tmp_path, names=("r", "x"), shuffle=False)
    assert read(tmp_path) == [{"r": [1.5], "x": 0}, {"r": [], "x": 1}, {"r": [2.5, 3.5], "x": 2}]


# Labels.


@pytest.mark.parametrize("form", ["examples", "columns"])
@pytest.mark.parametrize("known", ["declared", "appended"])
def test_integers_beside_names_are_class_ids(tmp_path, form, known):
    examples, options = as_form(form, {"label": [1, "a", "b"]}), {"features": NAMED}
    if known == "appended":
        write({"label": ["a", "b"]}, tmp_path, label="label")
        options = {"mode": "append"}
    write(examples, tmp_path, shuffle=False, **options)
    assert column(tmp_path, "label")[-3:] == [1, 0, 1]
    assert (tmp_path / "label.labels.txt").read_text() == "a\nb\n"


@pytest.mark.parametrize("form", ["examples", "columns"])
@pytest.mark.parametrize("wrong", [None, 7, 10**9, 0.5, ["a"]])
@pytest.mark.parametrize("known", ["declared", "appended"])
def test_an_invalid_class_is_reported_with_its_example(tmp_path, form, known, wrong):
    examples, options = as_form(form, {"label": ["a", wrong, "b"]}), {"features": NAMED}
    if known == "appended":
        write({"label": ["a", "b"]}, tmp_path, label="label")
        options = {"mode": "append"}
    before = files(tmp_path)
    with pytest.raises(FeatureError, match=r"example 1: .*label"):
        write(examples, tmp_path, **options)
    assert files(tmp_path) == before


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_an_unknown_class_is_reported_with_its_example(tmp_path, form):
    with pytest.raises(FeatureError, match="unknown class 'q'; the label has 2 names") as caught:
        write(as_form(form, {"label": ["a", "q"]}), tmp_path, features=NAMED)
    assert (caught.value.example, caught.value.feature) == (1, "label")


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_a_class_id_that_is_too_large(tmp_path, form):
    with pytest.raises(FeatureError, match=r"'label'.* 9223372036854775808"):
        write(as_form(form, {"label": [2**63]}), tmp_path, label="label")


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_sort_by_class_without_a_label_is_one_error(tmp_path, form):
    with pytest.raises(
        DatasetError, match="sort_by_class is True; there is no label feature; pass label="
    ):
        write(as_form(form, {"x": [1]}), tmp_path, sort_by_class=True)


@pytest.mark.parametrize("name", ["x ", " x", "x\ny", "x\r", ""])
@pytest.mark.parametrize("form", ["examples", "columns"])
def test_invalid_declared_class_names(tmp_path, form, name):
    features = {"label": ClassLabel(names=[name, "y"])}
    with pytest.raises(FeatureError, match=r"'label': .* is not a valid class name") as caught:
        write(as_form(form, {"label": [0, 1]}), tmp_path / "birds", features=features)
    assert repr(name) in str(caught.value)
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("cell", ["x ", '"x\ny"'])
def test_invalid_class_names_of_a_table(tmp_path, cell):
    (tmp_path / "birds.csv").write_text(f"a,label\n1,{cell}\n2,y\n")
    with pytest.raises(FeatureError, match="is not a valid class name"):
        write(covey.sources.open_source(tmp_path / "birds.csv"), tmp_path / "birds")
    assert not (tmp_path / "birds").exists()


def test_labels_whose_class_names_have_the_same_file(tmp_path):
    features = {"a": {"b": ClassLabel(names=["x"])}, "a-b": ClassLabel(names=["y"])}
    with pytest.raises(DatasetError, match="two labels would have the same file"):
        write([{"a": {"b": 0}, "a-b": 0}], tmp_path / "birds", features=features)
    assert not (tmp_path / "birds").exists()


# Names.


def test_duplicate_names(tmp_path):
    with pytest.raises(DatasetError, match="names is"):
        write([(1, 2)], tmp_path / "birds", names=("a", "a"))
    assert not (tmp_path / "birds").exists()


def test_names_that_are_not_strings(tmp_path):
    """The same for both forms: taken, or refused by an error that says what a name is."""
    found = []
    for form in ["examples", "columns"]:
        try:
            found.append(write(as_form(form, {1: [2]}), tmp_path / form).features)
        except covey.CoveyError as error:
            found.append("missing" in str(error) or "refused")
    assert found in ([Features({"1": "int64"})] * 2, ["refused"] * 2)


def test_a_split_name_that_is_too_long_leaves_no_files(tmp_path):
    with pytest.raises(FormatError, match="at most 100 bytes"):
        write([{"x": 1}], tmp_path / "birds", "a" * 300)
    assert files(tmp_path) == {}


def test_a_directory_name_that_is_too_long_leaves_no_files(tmp_path):
    with pytest.raises(DatasetError, match="File name too long"):
        write([{"x": 1}], tmp_path / "new" / ("a" * 250))
    assert files(tmp_path) == {}


def test_a_description_remains_until_it_is_replaced(tmp_path):
    write([{"x": 1}], tmp_path, description="one")
    write([{"x": 1}], tmp_path, "test")
    assert info(tmp_path).description == "one"
    write([{"x": 1}], tmp_path, mode="append", description="two")
    assert info(tmp_path).description == "two"
    write([{"x": 1}], tmp_path, mode="overwrite", description="three")
    assert info(tmp_path).description == "three"


def test_an_overwritten_dataset_keeps_its_name(tmp_path):
    write([{"x": 1}], tmp_path, name="owls")
    with pytest.raises(DatasetError, match="name is 'wrens'; the name of the dataset is 'owls'"):
        write([{"x": 2}], tmp_path, name="wrens", mode="overwrite")
    assert column(tmp_path, "x") == [1]


# Surroundings.


@pytest.mark.parametrize("below", ["", "train"])
def test_a_broken_link(tmp_path, below):
    (tmp_path / "birds").symlink_to(tmp_path / "nothing")
    what = "birds: it is a broken symbolic link; must be a directory"
    with pytest.raises(DatasetError, match=what):
        write([{"x": 1}], tmp_path / "birds" / below)
    assert os.listdir(tmp_path) == ["birds"]


def test_a_link_to_a_directory_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "birds").symlink_to(tmp_path / "real")
    write([{"x": 1}], tmp_path / "birds")
    assert column(tmp_path / "real", "x") == [1]


@pytest.mark.parametrize("progress", [None, True])
def test_progress_without_stderr(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    covey.write([{"x": 1}], tmp_path, split="train", progress=progress)
    assert column(tmp_path, "x") == [1]


@pytest.mark.parametrize("workers", [1, 2])
def test_examples_that_change_the_current_directory(tmp_path, workers, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def examples():
        yield {"x": 1}
        os.chdir(tmp_path / "there")
        yield {"x": 2}

    written = write(examples(), "birds", memory_limit=1, workers=workers)
    assert written.path == "birds"
    assert sorted(column(tmp_path / "here" / "birds", "x")) == [1, 2]
    assert not list((tmp_path / "here" / "birds").glob(".*"))
    assert os.listdir(tmp_path / "there") == []


def test_a_datum_generator_that_changes_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)

    def examples(split):
        yield "a", {"x": 1}
        os.chdir(tmp_path / "there")
        yield "b", {"x": 2}

    TFRecordWriter(examples, Serializer(), "birds", "train", 2).create_records()
    assert info(tmp_path / "birds").splits[0].num_examples == 2
    assert os.listdir(tmp_path / "there") == []


# Shards.


class Huge:
    """Few records, and more bytes than there are in any memory."""

    records = 2
    bytes = 1 << 50


def test_there_are_no_more_shards_than_records():
    options = WriteOptions(split="train", shard_bytes=1)
    assert plan_cuts(Huge(), options).ends.tolist() == [1 << 49, 1 << 50]


def test_one_large_record_in_shards_of_a_byte(tmp_path):
    written = write({"x": [b"." * 3_000_000, b""]}, tmp_path, shard_bytes=1)
    assert [shard.records for shard in written.shards] == [1, 1]
    check_index(tmp_path)


def test_columns_of_other_features_are_rejected():
    kinds = [Features({"x": kind}) for kind in ["int8", "int64", "str", Tensor("int64", (2,))]]
    values = [np.ones(3, np.int8), np.ones(3, np.int64), ["a"] * 3, np.ones((3, 2), np.int64)]
    rows = [kind.check_columns({"x": x}) for kind, x in zip(kinds, values, strict=True)]
    numbers = np.arange(3, dtype=np.uint64)
    for one in rows:
        for other in rows:
            if one is not other:
                with pytest.raises(ValueError, match="columns of another encoder"):
                    one._encoder.encode_rows(other._columns, numbers)
                with pytest.raises(ValueError, match="columns of another encoder"):
                    one._encoder.measure(other._columns)
                with pytest.raises(ValueError, match="columns of another encoder"):
                    one._encoder.encode(other._columns, 0, 3, 1 << 20)
