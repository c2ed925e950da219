"""covey.write from end to end: examples of any form in, a dataset that is whole out."""

import errno
import itertools
import os
import random
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
from written import (
    Numbered,
    about,
    check_index,
    column,
    content,
    example_label,
    files,
    files_at_most,
    index,
    info,
    limit,
    read,
    replaced,
    shard_paths,
    tidy,
    write,
)

import covey
from covey import ClassLabel, Features, Image, Ragged, RecordReader, Tensor
from covey.errors import (
    CommittedError,
    DatasetError,
    DatasetExistsError,
    DuplicateKeyError,
    FeatureError,
    SourceError,
)
from covey.filenames import is_version_file

SPECIES = ["wren", "owl", "crow", "jay", "tit"]


def birds(count, first=0):
    """Examples of several kinds of features, each known by its number ``x``."""
    return [
        {
            "x": number,
            "song": np.arange(number % 4, dtype=np.float32),
            "place": {"name": f"place {number % 7}", "at": [number / 4, 0.5]},
            "species": SPECIES[number % len(SPECIES)],
            "id": f"bird {number}",
        }
        for number in range(first, first + count)
    ]


def by_x(examples):
    return sorted(examples, key=lambda example: example["x"])


def expected(examples, names=None):
    """Examples as they are read: species are numbers."""
    names = names or sorted({example["species"] for example in examples})
    return [tidy({**each, "species": names.index(each["species"])}) for each in examples]


# Forms of examples.

ROWS = [{"x": i, "y": [i / 2, 1.0], "word": f"w{i}", "label": "ab"[i % 2]} for i in range(30)]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}


def numpy_table():
    kinds = [("x", "i8"), ("y", "f4", (2,)), ("word", "U3"), ("label", "U1")]
    return np.array([tuple(row.values()) for row in ROWS], kinds)


def pandas_table():
    import pandas

    return pandas.DataFrame(COLUMNS)


def arrow_table():
    import pyarrow

    return pyarrow.table(COLUMNS)


def arrow_chunks():
    import pyarrow

    table = pyarrow.table(COLUMNS)
    return pyarrow.concat_tables([table.slice(0, 7), table.slice(7)])


def polars_table():
    import polars

    return polars.DataFrame(COLUMNS)


def hugging_face():
    import datasets

    return datasets.Dataset.from_dict(COLUMNS)


def hugging_face_stream():
    import datasets

    return datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset()


def torch_map():
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(ROWS)

        def __getitem__(self, number):
            row = ROWS[number]
            return {**row, "x": torch.tensor(row["x"]), "y": torch.tensor(row["y"])}

    return Rows()


def torch_stream():
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(ROWS)

    return Rows()


def source():
    return covey.sources.Source("made up", "nowhere", list(enumerate(ROWS)), length=len(ROWS))


FORMS = {
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "generator": lambda: (row for row in ROWS),
    "iterator": lambda: iter(ROWS),
    "pairs": lambda: enumerate(ROWS),
    "columns": lambda: COLUMNS,
    "columns of arrays": lambda: {name: np.array(each) for name, each in COLUMNS.items()},
    "structured array": numpy_table,
    "pandas": pandas_table,
    "arrow": arrow_table,
    "arrow in chunks": arrow_chunks,
    "polars": polars_table,
    "hugging face": hugging_face,
    "hugging face stream": hugging_face_stream,
    "torch": torch_map,
    "torch stream": torch_stream,
    "source": source,
}


@pytest.mark.parametrize("form", FORMS)
def test_examples_of_every_form(tmp_path, form):
    written = write(FORMS[form](), tmp_path, label="label")
    found = by_x(read(tmp_path))
    assert found == [{**row, "label": "ab".index(row["label"])} for row in ROWS]
    assert written.records == len(ROWS)
    assert written.classes == {"a": 15, "b": 15}
    check_index(tmp_path)


@pytest.mark.parametrize("kind", [list, iter])
def test_tuples_get_names(tmp_path, kind):
    pairs = [([i, i + 1], "ab"[i % 2]) for i in range(10)]
    write(kind(pairs), tmp_path, names=("x", "label"), label="label")
    assert sorted(column(tmp_path, "x")) == [[i, i + 1] for i in range(10)]


def test_a_torch_dataset_of_pairs(tmp_path):
    import torch

    tensors = torch.arange(20.0).reshape(10, 2), torch.arange(10) % 3
    dataset = torch.utils.data.TensorDataset(*tensors)
    written = write(dataset, tmp_path, names=("x", "label"), label="label")
    assert sorted(column(tmp_path, "x")) == tensors[0].tolist()
    assert written.classes == {0: 4, 1: 3, 2: 3}


def test_a_hugging_face_dataset_knows_its_classes(tmp_path):
    import datasets

    features = datasets.Features(
        {"x": datasets.Value("int64"), "label": datasets.ClassLabel(names=["wren", "owl"])}
    )
    dataset = datasets.Dataset.from_dict({"x": [1, 2, 3], "label": [0, 1, 1]}, features=features)
    written = write(dataset, tmp_path)
    assert written.features["label"] == ClassLabel(names=("wren", "owl"))
    assert (written.label, written.classes) == ("label", {"wren": 1, "owl": 2})


def test_a_source_has_a_label(tmp_path):
    (tmp_path / "birds.csv").write_text("name,label\na,owl\nb,wren\nc,owl\n")
    written = write(covey.sources.open_source(tmp_path / "birds.csv"), tmp_path / "data")
    assert (written.label, written.classes) == ("label", {"owl": 2, "wren": 1})


def test_columns_and_examples_give_the_same_files(tmp_path):
    write(ROWS, tmp_path / "a" / "birds", label="label")
    write(COLUMNS, tmp_path / "b" / "birds", label="label")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_nested_columns(tmp_path):
    write({"a": {"b": [1, 2], "c": ["x", "y"]}, "d": [0, 1]}, tmp_path, shuffle=False)
    assert read(tmp_path) == [
        {"a": {"b": 1, "c": "x"}, "d": 0},
        {"a": {"b": 2, "c": "y"}, "d": 1},
    ]


@pytest.mark.parametrize("form", ["arrow", "pandas"])
def test_missing_values_are_rejected(tmp_path, form):
    import pandas
    import pyarrow

    table = pyarrow.table({"x": [1, None, 3]})
    if form == "pandas":
        table = pandas.DataFrame({"x": pandas.array([1, None, 3], "Int64")})
    with pytest.raises(FeatureError, match="'x'"):
        write(table, tmp_path / "without")
    write(table, tmp_path / "with", defaults={"x": 7}, shuffle=False)
    assert column(tmp_path / "with", "x") == [1, 7, 3]


@pytest.mark.parametrize("examples", [5, None, "birds.csv", b"birds", [1, 2], [[1, 2]], ["ab"]])
def test_invalid_examples(tmp_path, examples):
    with pytest.raises(covey.CoveyError, match="example"):
        write(examples, tmp_path / "birds")
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("examples", [[], iter([]), {}, {"x": []}, {"x": np.zeros((0, 2))}])
def test_no_examples(tmp_path, examples):
    with pytest.raises(covey.CoveyError, match="no examples"):
        write(examples, tmp_path / "birds")
    assert not (tmp_path / "birds").exists()


# Features.


def declared():
    return Features(
        {
            "x": "int32",
            "song": Tensor("float32", (None,)),
            "place": {"name": "str", "at": Tensor("float64", (2,))},
            "species": ClassLabel(names=SPECIES),
            "id": "str",
        }
    )


@pytest.mark.parametrize("form", [list, iter])
def test_declared_features(tmp_path, form):
    written = write(form(birds(50)), tmp_path, features=declared())
    assert written.features == declared() == about(tmp_path).features
    assert by_x(read(tmp_path)) == expected(birds(50), SPECIES)
    assert written.classes == dict.fromkeys(SPECIES, 10)


def test_declared_features_may_be_a_dict(tmp_path):
    assert write([{"x": 1}], tmp_path, features={"x": "uint8"}).features["x"] == Tensor("uint8")


LATE = {
    "ints, then a float": ([*range(5000), 0.5, 7], Tensor("float32")),
    "big ints, then a float": ([2**40 + 1] * 1500 + [0.5], Tensor("float64")),
    "a float, then a big int": ([0.5] * 1500 + [2**24 + 1], Tensor("float64")),
    "bools, then an int": ([True, False] * 750 + [3], Tensor("int64")),
    "lengths": ([[1, 2]] * 1500 + [[1, 2, 3]], Tensor("int64", (None,))),
    "empty lists": ([[]] * 1500 + [[0.5]], Tensor("float32", (None,))),
    "rows of other lengths": ([[[1, 2], [3, 4]]] * 1500 + [[[1], [2, 3]]], Ragged("int64")),
    "strings, then bytes": (["a"] * 1500 + [b"\xff"], Tensor("bytes")),
    "images of other sizes": (
        [np.zeros((2, 2), np.float32)] * 1500 + [np.ones((3, 4), np.float32)],
        Tensor("float32", (None, None), encoding="bytes"),
    ),
    "small types, then wider": ([np.int8(1)] * 1500 + [np.int16(300)], Tensor("int16")),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", LATE)
def test_features_that_the_last_examples_change(tmp_path, case, workers):
    values, kind = LATE[case]
    examples = [{"x": value} for value in values]
    written = write(iter(examples), tmp_path, shuffle=False, memory_limit=200_000, workers=workers)
    assert written.features == Features.infer(examples) == Features({"x": kind})
    found, last = column(tmp_path, "x"), tidy({"x": values[-1]})["x"]
    first = [value.encode() if case == "strings, then bytes" else value for value in values[:-1]]
    assert found == [*map(tidy, first), last]
    check_index(tmp_path)


def test_inferred_features_are_those_of_infer(tmp_path):
    examples = birds(3000)
    written = write(iter(examples), tmp_path, label="species")
    assert dict(written.features) == {
        **Features.infer(examples),
        "species": ClassLabel(names=sorted(SPECIES)),
    }
    assert about(tmp_path).features == written.features


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_defaults_are_written_into_the_records(tmp_path, late, workers):
    examples = [{"x": 1, "y": [1, 2]}] * 1000 + [{"x": 2}] * 100
    examples = examples[::-1] if late else examples
    options = {"defaults": {"y": [8, 9]}, "shuffle": False, "workers": workers}
    written = write(iter(examples), tmp_path, **options)
    assert read(tmp_path) == [{"y": [8, 9], **example} for example in examples]
    assert written.features == Features.infer(examples, defaults={"y": [8, 9]})


def test_defaults_of_features_that_come_late(tmp_path):
    examples = [{"x": None}] * 50 + [{"x": 1}]
    write(examples, tmp_path, defaults={"x": 0}, shuffle=False)
    assert column(tmp_path, "x") == [0] * 50 + [1]


def test_defaults_of_declared_features(tmp_path):
    features = {"x": "int64", "y": Tensor("float32", default=0.5)}
    write([{"x": 1}, {"x": 2, "y": 2.0}], tmp_path, features=features, shuffle=False)
    assert read(tmp_path) == [{"x": 1, "y": 0.5}, {"x": 2, "y": 2.0}]


# Labels.


def test_strings_become_classes_sorted_by_name(tmp_path):
    written = write(birds(23), tmp_path, label="species")
    assert written.features["species"].names == tuple(sorted(SPECIES))
    assert (tmp_path / "species.labels.txt").read_text().split() == sorted(SPECIES)
    assert list(written.classes.items()) == [
        ("crow", 5), ("jay", 4), ("owl", 5), ("tit", 4), ("wren", 5),
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["examples", "columns"])
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([3, -1, 3], {-1: 1, 3: 2}),
        ([True, False, True], {0: 1, 1: 2}),
        ([b"b", b"a", b"b"], {"a": 1, "b": 2}),
        ([np.str_("b"), "a", "b"], {"a": 1, "b": 2}),
        (["é", "z", "é"], {"z": 1, "é": 2}),
    ],
)
def test_kinds_of_labels(tmp_path, form, labels, classes):
    examples = [{"label": label} for label in labels]
    written = write(examples if form == "examples" else {"label": labels}, tmp_path, label="label")
    assert written.classes == classes
    check_index(tmp_path)


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_a_declared_string_remains_a_string(tmp_path, form):
    labels = ["b", "a", "b"]
    examples = [{"label": label} for label in labels] if form == "examples" else {"label": labels}
    written = write(examples, tmp_path, label="label", features={"label": "str"}, shuffle=False)
    assert column(tmp_path, "label") == labels
    assert written.classes == {"a": 1, "b": 2}
    assert about(tmp_path).label_strings == ("a", "b")
    check_index(tmp_path)


@pytest.mark.parametrize("order", [False, True])
def test_a_nested_label(tmp_path, order):
    examples = [{"is": {"a": "ab"[i % 2]}, "x": i} for i in range(10)]
    assert write(examples, tmp_path, label="is/a", sort_by_class=order).classes == {"a": 5, "b": 5}
    check_index(tmp_path)


@pytest.mark.parametrize("names", [["", "b"], ["a\nb", "b"], [" a", "a"], ["a\r", "b"]])
def test_invalid_class_names(tmp_path, names):
    with pytest.raises(covey.CoveyError, match="label"):
        write([{"label": name} for name in names], tmp_path / "birds", label="label")
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("species", "must be one of the features x, y"),
        ("x", "must be a ClassLabel"),
        ("y", "must be a ClassLabel"),
    ],
)
def test_invalid_labels(tmp_path, label, reason):
    with pytest.raises(DatasetError, match=reason):
        write([{"x": 0.5, "y": ["a", "b"]}], tmp_path / "birds", label=label)
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_classes_beyond_64_bits(tmp_path, form):
    labels = np.array([2**63 + 1, 2], np.uint64)
    examples = [{"label": label} for label in labels] if form == "examples" else {"label": labels}
    with pytest.raises(FeatureError, match="9223372036854775809"):
        write(examples, tmp_path / "birds", label="label")


# Order.

MANY = birds(2000) + [{**each, "x": each["x"] + 0.5} for each in birds(300, first=5000)]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The files of MANY, written with much memory by one worker."""
    directory = tmp_path_factory.mktemp("many")
    write(iter(MANY), directory / "birds", label="species", shards=3)
    return files(directory)


@pytest.mark.parametrize(
    ("memory_limit", "workers"),
    [(1, 1), (20_000, 1), (200_000, 2), (1, 3), (20_000, 2), (1 << 30, 3)],
)
def test_memory_and_workers_do_not_change_a_byte(tmp_path, many, memory_limit, workers):
    options = {"label": "species", "shards": 3, "memory_limit": memory_limit, "workers": workers}
    write(iter(MANY), tmp_path / "birds", **options)
    assert files(tmp_path) == many


@pytest.mark.parametrize("options", [{"sort_by_class": True}, {"shuffle": False}, {"key": "id"}])
@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_memory_and_workers_with_other_options(tmp_path, options, compression):
    options = {**options, "label": "species", "compression": compression, "records_per_shard": 499}
    for name, memory_limit, workers in [("a", 1 << 30, 1), ("b", 20_000, 2)]:
        write(
            MANY, tmp_path / name / "birds", memory_limit=memory_limit, workers=workers, **options
        )
    assert files(tmp_path / "a") == files(tmp_path / "b")
    check_index(tmp_path / "a" / "birds")


@pytest.mark.parametrize("workers", [2, 3])
def test_processes_do_not_change_a_byte(tmp_path, workers):
    for name, examples, count in [
        ("list", [Numbered(3000)[i] for i in range(3000)], 1),
        ("numbered", Numbered(3000), 1),
        ("processes", Numbered(3000), workers),
    ]:
        write(
            examples, tmp_path / name / "birds", label="label", workers=count, memory_limit=50_000
        )
    assert files(tmp_path / "processes") == files(tmp_path / "list")
    assert files(tmp_path / "numbered") == files(tmp_path / "list")


def test_a_source_that_cannot_be_pickled_is_read_in_threads(tmp_path):
    class Local(Numbered):
        """A class that another process does not find."""

    write(Local(500), tmp_path, label="label", workers=2)
    assert sorted(column(tmp_path, "x")) == list(range(500))


def test_shuffled_is_shuffled_and_the_same_every_time(tmp_path):
    for name in "ab":
        write({"x": np.arange(1000)}, tmp_path / name / "birds")
    found = column(tmp_path / "a" / "birds", "x")
    assert sorted(found) == list(range(1000))
    # Neighbours are strangers: of 1,000 pairs about one is in order by chance.
    assert sum(b == a + 1 for a, b in itertools.pairwise(found)) < 10
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("form", [list, lambda rows: {"x": [row["x"] for row in rows]}])
def test_another_seed_gives_another_order(tmp_path, form):
    rows = [{"x": i} for i in range(100)]
    orders = []
    for seed in [0, 1, 2**64 - 1, -5]:
        write(form(rows), tmp_path / str(seed), seed=seed)
        orders.append(tuple(column(tmp_path / str(seed), "x")))
    assert len(set(orders)) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(100))}


@pytest.mark.parametrize(("memory_limit", "workers"), [(1, 1), (20_000, 2), (1 << 30, 1)])
def test_shuffle_false_keeps_the_order(tmp_path, memory_limit, workers):
    examples = birds(1500)
    write(iter(examples), tmp_path, shuffle=False, memory_limit=memory_limit, workers=workers)
    assert read(tmp_path) == [tidy(example) for example in examples]


@pytest.mark.parametrize("kind", [str, int, str.encode])
def test_keys_determine_the_order(tmp_path, kind):
    pairs = [
        (str(i).encode() if kind == str.encode else kind(i), {"x": i, "label": "abc"[i % 3]})
        for i in range(500)
    ]
    others = random.Random(0).sample(pairs, len(pairs))
    for name, examples in [("a", pairs), ("b", others)]:
        write(examples, tmp_path / name / "birds", label="label", memory_limit=10_000)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("form", ["examples", "columns", "pandas"])
def test_a_feature_may_be_the_key(tmp_path, form):
    def table(numbers):
        import pandas

        columns = {"id": [f"bird {i}" for i in numbers], "x": numbers}
        rows = [{"id": f"bird {i}", "x": i} for i in numbers]
        return {"examples": rows, "columns": columns, "pandas": pandas.DataFrame(columns)}[form]

    write(table([*range(100)]), tmp_path / "a" / "birds", key="id")
    write(table([*range(99, -1, -1)]), tmp_path / "b" / "birds", key="id")
    write(
        [(f"bird {i}", {"id": f"bird {i}", "x": i}) for i in range(100)], tmp_path / "c" / "birds"
    )
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_a_nested_feature_may_be_the_key(tmp_path, form):
    columns = {"of": {"id": ["a", "b"]}}
    rows = [{"of": {"id": "a"}}, {"of": {"id": "b"}}]
    assert write(rows if form == "examples" else columns, tmp_path, key="of/id").records == 2


def test_keys_of_different_types_are_different(tmp_path):
    assert write([(1, {"x": 1}), ("1", {"x": 2}), (b"1", {"x": 3})], tmp_path).records >= 2


@pytest.mark.parametrize("form", ["examples", "columns"])
@pytest.mark.parametrize("memory_limit", [20_000, 1 << 30])
def test_sort_by_class(tmp_path, form, memory_limit):
    labels = [SPECIES[i % 5] for i in range(2000)]
    columns = {"x": list(range(2000)), "species": labels}
    rows = [{"x": x, "species": species} for x, species in enumerate(labels)]
    examples = rows if form == "examples" else columns
    options = {"label": "species", "sort_by_class": True, "shards": 5, "memory_limit": memory_limit}
    written = write(examples, tmp_path, **options)
    found = column(tmp_path, "species")
    assert found == sorted(found)
    assert [shard.records for shard in written.shards] == [400] * 5
    first = column(tmp_path, "x")[:400]
    assert first != sorted(first)
    check_index(tmp_path)


@pytest.mark.parametrize("options", [{"shards": 2}, {"shard_bytes": 4000}])
def test_shards_end_where_classes_end(tmp_path, options):
    labels = [0] * 90 + [1] * 10 + [2] * 110 + [3] * 5
    write({"label": labels}, tmp_path, label="label", sort_by_class=True, **options)
    rows = index(tmp_path)
    for first, second in itertools.pairwise(range(int(rows["shard"].max()) + 1)):
        ends, begins = rows[rows["shard"] == first], rows[rows["shard"] == second]
        assert ends["label"][-1] < begins["label"][0]
    assert rows["shard"].max() >= 1


def test_shards_end_where_classes_end_even_if_unequal(tmp_path):
    labels = [0] * 10 + [1, 2]
    written = write({"label": labels}, tmp_path, label="label", sort_by_class=True, shards=3)
    assert [shard.records for shard in written.shards] == [10, 1, 1]


def test_more_shards_than_classes_cut_through_them(tmp_path):
    written = write({"label": [0] * 10}, tmp_path, label="label", sort_by_class=True, shards=2)
    assert [shard.records for shard in written.shards] == [5, 5]


@pytest.mark.parametrize("examples", [[{"x": 1}], {"x": [1, 2]}])
def test_sort_by_class_needs_a_label(tmp_path, examples):
    with pytest.raises(covey.CoveyError, match="there is no label feature; pass label="):
        write(examples, tmp_path / "birds", sort_by_class=True)
    assert not (tmp_path / "birds").exists()


# Keys that are there twice.


@pytest.mark.parametrize(
    "options",
    [{}, {"sort_by_class": True}, {"shuffle": False}, {"workers": 2}],
    ids=["hash", "class", "kept", "workers"],
)
@pytest.mark.parametrize("memory_limit", [20_000, 1 << 30])
def test_duplicate_keys(tmp_path, options, memory_limit):
    pairs = [(f"bird {i}", {"x": i, "label": i % 3}) for i in range(2500)]
    pairs[2400] = ("bird 17", {"x": 5, "label": 1})
    with pytest.raises(DuplicateKeyError, match=r"examples 17 and 2400.*'bird 17'") as caught:
        write(pairs, tmp_path / "birds", label="label", memory_limit=memory_limit, **options)
    assert (caught.value.key, caught.value.examples) == ("bird 17", (17, 2400))
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("options", [{}, {"sort_by_class": True}, {"shuffle": False}])
def test_duplicate_keys_of_columns(tmp_path, options):
    columns = {"id": [*map(str, range(300)), "17"], "label": [0] * 300 + [1]}
    with pytest.raises(DuplicateKeyError, match=r"examples 17 and 300.*'17'"):
        write(columns, tmp_path / "birds", key="id", label="label", **options)
    assert not (tmp_path / "birds").exists()


def test_duplicate_keys_when_features_change(tmp_path):
    pairs = [(i, {"x": i}) for i in range(500)] + [(3, {"x": 0.5})]
    with pytest.raises(DuplicateKeyError, match="examples 3 and 500 both have the key 3"):
        write(pairs, tmp_path / "birds", memory_limit=5_000)


@pytest.mark.parametrize("key", [0.5, None, 2**64, ("a",)])
def test_invalid_keys(tmp_path, key):
    with pytest.raises(FeatureError, match="key"):
        write([(key, {"x": 1})], tmp_path / "birds")


def test_some_examples_without_keys(tmp_path):
    with pytest.raises(FeatureError, match="have keys, others do not"):
        write([("a", {"x": 1}), {"x": 2}], tmp_path / "birds")


# Shards.


def test_names_are_those_of_tfds(tmp_path):
    write(birds(10), tmp_path / "sea-birds", label="species", shards=2)
    assert sorted(os.listdir(tmp_path / "sea-birds")) == [
        "dataset_info.json",
        "features.json",
        "sea_birds-train.by_class.npy",
        "sea_birds-train.classes.npy",
        "sea_birds-train.index.json",
        "sea_birds-train.index.npy",
        "sea_birds-train.tfrecord-00000-of-00002",
        "sea_birds-train.tfrecord-00001-of-00002",
        "species.labels.txt",
    ]


def test_name_version_and_description(tmp_path):
    write([{"x": 1}], tmp_path / "birds" / "2.1.0", name="owls", description="Of the night.")
    found = info(tmp_path / "birds" / "2.1.0")
    assert (found.name, found.version, found.description) == ("owls", "2.1.0", "Of the night.")


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [100]),
        ({"shards": 1}, [100]),
        ({"shards": 3}, [33, 33, 34]),
        ({"records_per_shard": 30}, [30, 30, 30, 10]),
        ({"records_per_shard": 100}, [100]),
        ({"records_per_shard": 1000}, [100]),
        ({"shards": 1000}, [1] * 100),
        ({"shard_bytes": 1}, [1] * 100),
    ],
)
@pytest.mark.parametrize("form", ["examples", "columns"])
def test_sizes_of_shards(tmp_path, options, sizes, form):
    examples = [{"x": i} for i in range(100)]
    columns = {"x": np.arange(100)}
    written = write(examples if form == "examples" else columns, tmp_path, **options)
    assert [shard.records for shard in written.shards] == sizes
    assert sorted(column(tmp_path, "x")) == list(range(100))
    check_index(tmp_path)


@pytest.mark.parametrize("form", [list, iter])
def test_shards_by_bytes_are_about_as_large(tmp_path, form):
    examples = [{"x": b"." * (i % 300)} for i in range(2000)]
    written = write(form(examples), tmp_path, shard_bytes=50_000)
    sizes = [shard.bytes for shard in written.shards]
    assert len(sizes) == -(-sum(sizes) // 50_000)
    assert max(sizes) - min(sizes) < 1000


def test_one_example_larger_than_a_shard(tmp_path):
    examples = [{"x": b"." * size} for size in [10, 5000, 10, 10]]
    written = write(examples, tmp_path, shard_bytes=1000, shuffle=False)
    assert sum(shard.records for shard in written.shards) == 4
    assert all(shard.records for shard in written.shards)
    check_index(tmp_path)


# Splits.


def test_another_split_does_not_change_the_first(tmp_path):
    write(birds(50), tmp_path, label="species", shards=2)
    before, times = files(tmp_path), {path: path.stat() for path in tmp_path.iterdir()}
    write(birds(20), tmp_path, "test", shards=2)
    after = files(tmp_path)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"dataset_info.json"}
    for path, stat in times.items():
        if path.name not in changed:
            assert path.stat().st_mtime_ns == stat.st_mtime_ns
            assert path.stat().st_ino == stat.st_ino
    assert [split.name for split in info(tmp_path).splits] == ["train", "test"]
    check_index(tmp_path, "test")


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_another_split_adds_classes(tmp_path, form):
    write([{"label": "owl"}, {"label": "wren"}], tmp_path, label="label")
    labels = ["wren", "crow", "jay", "owl"]
    examples = [{"label": label} for label in labels] if form == "examples" else {"label": labels}
    written = write(examples, tmp_path, "test", shuffle=False)
    assert written.features["label"].names == ("owl", "wren", "crow", "jay")
    assert (tmp_path / "label.labels.txt").read_text().split() == ["owl", "wren", "crow", "jay"]
    assert column(tmp_path, "label", "test") == [1, 2, 3, 0]
    assert sorted(column(tmp_path, "label", "train")) == [0, 1]
    check_index(tmp_path)
    check_index(tmp_path, "test")


def test_a_third_split_has_the_classes_of_the_second(tmp_path):
    for split, labels in [("a", ["x"]), ("b", ["z"]), ("c", ["y", "z"])]:
        written = write({"label": labels}, tmp_path, split, label="label", shuffle=False)
    assert written.features["label"].names == ("x", "z", "y")
    assert column(tmp_path, "label", "c") == [2, 1]


def test_another_split_must_have_the_same_features(tmp_path):
    write([{"x": 1, "y": 2}], tmp_path)
    before = files(tmp_path)
    with pytest.raises(FeatureError, match="example 0: feature 'x'"):
        write([{"x": "a", "y": 2}], tmp_path, "test")
    with pytest.raises(FeatureError, match=r"example 0: .*'y'"):
        write([{"x": 1}], tmp_path, "test")
    with pytest.raises(
        DatasetError, match=r"feature 'x': it is declared .*float32.*in the existing splits"
    ):
        write([{"x": 1, "y": 2}], tmp_path, "test", features={"x": "float32", "y": "int64"})
    assert files(tmp_path) == before


def test_another_split_may_not_rename_the_dataset(tmp_path):
    write([{"x": 1}], tmp_path, name="owls")
    with pytest.raises(DatasetError, match="name is 'wrens'; the name of the dataset is 'owls'"):
        write([{"x": 1}], tmp_path, "test", name="wrens")


@pytest.mark.parametrize("split", ["", "a/b", "all", "..", "a b", "-", 5])
def test_invalid_split_names(tmp_path, split):
    with pytest.raises(covey.errors.FormatError, match="name of a split"):
        write([{"x": 1}], tmp_path / "birds", split)
    assert not (tmp_path / "birds").exists()


# Modes.


def test_an_existing_split_is_an_error(tmp_path):
    write([{"x": 1}], tmp_path)
    before = files(tmp_path)
    with pytest.raises(DatasetExistsError, match=r"'train' exists.*overwrite.*append"):
        write([{"x": 2}], tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize("shards", [1, 3, 5])
def test_overwrite_gives_the_dataset_of_a_first_write(tmp_path, shards):
    overwritten, new = tmp_path / "a" / "birds", tmp_path / "b" / "birds"
    write(birds(50), overwritten, label="species", shards=3)
    before = files(overwritten)
    write(birds(9), overwritten, label="species", shards=shards, mode="overwrite")
    write(birds(9), new, label="species", shards=shards)
    assert content(overwritten) == content(new)
    # The files of the replaced version stay as they were, and no others.
    assert replaced(overwritten) == {n: d for n, d in before.items() if is_version_file(n)}
    assert len(files(overwritten)) == len(files(new)) + len(replaced(overwritten))


def test_overwrite_with_other_features_and_another_label(tmp_path):
    overwritten, new = tmp_path / "a" / "birds", tmp_path / "b" / "birds"
    write(birds(50), overwritten, label="species")
    write({"y": ["p", "q"]}, overwritten, label="y", mode="overwrite")
    write({"y": ["p", "q"]}, new, label="y")
    assert content(overwritten) == content(new)


def test_a_third_version_deletes_the_first_after_the_retention_time(tmp_path, monkeypatch):
    directory, versions = tmp_path / "birds", []
    for number, retention in enumerate([60, 60, 60, 0]):
        monkeypatch.setattr("covey.writing.versions.RETENTION_S", retention)
        write(birds(9 + number), directory, label="species", shards=2, mode="overwrite")
        versions.append({path.name for path in shard_paths(directory)})
        there = {path.name for path in directory.glob("*.tfrecord-*")}
        assert there == set().union(*(versions if retention else versions[-2:]))
    assert len(set().union(*versions)) == 8
    check_index(directory)


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("form", ["examples", "columns"])
def test_append_adds_whole_shards_under_new_names(tmp_path, compression, form):
    first, second = {"x": [0, 1, 2, 3], "label": [*"abca"]}, {"x": [4, 5], "label": [*"db"]}
    if form == "examples":
        first, second = (
            [dict(zip(each, row, strict=True)) for row in zip(*each.values(), strict=True)]
            for each in (first, second)
        )
    options = {"label": "label", "compression": compression, "shuffle": False}
    write(first, tmp_path, shards=2, name="birds", **options)
    before = files(tmp_path)
    old = [path.read_bytes() for path in shard_paths(tmp_path)]
    written = write(second, tmp_path, shards=2, mode="append", shuffle=False)
    (split,) = info(tmp_path).splits
    assert [path.name for path in shard_paths(tmp_path)] == [
        f"birds-train.{split.token}.tfrecord-0000{i}-of-00004" for i in range(4)
    ]
    assert replaced(tmp_path) == {n: d for n, d in before.items() if is_version_file(n)}
    assert len(list(tmp_path.glob("*.tfrecord-*"))) == 2 + 4
    assert [path.read_bytes() for path in shard_paths(tmp_path)[:2]] == old
    assert column(tmp_path, "x") == [0, 1, 2, 3, 4, 5]
    assert written.classes == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert written.records == 6
    assert len(written.shards) == 4
    check_index(tmp_path)


def test_append_to_nothing_is_a_first_write(tmp_path):
    write(birds(9), tmp_path / "a" / "birds", label="species", mode="append")
    write(birds(9), tmp_path / "b" / "birds", label="species")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_append_may_add_a_label(tmp_path):
    write([{"x": 1, "y": 5}], tmp_path)
    assert write([{"x": 2, "y": 5}], tmp_path, mode="append", label="x").classes == {1: 1, 2: 1}
    check_index(tmp_path)


@pytest.mark.parametrize("form", ["examples", "columns"])
def test_append_to_string_labels(tmp_path, form):
    write([{"label": "b"}], tmp_path, label="label", features={"label": "str"})
    second = [{"label": "a"}] if form == "examples" else {"label": ["a"]}
    assert write(second, tmp_path, mode="append").classes == {"b": 1, "a": 1}
    assert about(tmp_path).label_strings == ("b", "a")
    check_index(tmp_path)


@pytest.mark.parametrize("gone", ["index.npy", "index.json", "by_class.npy", "classes.npy"])
def test_append_without_an_index_builds_one(tmp_path, gone):
    write(birds(9), tmp_path, label="species")
    (tmp_path / f"{info(tmp_path).name}-train.{gone}").unlink()
    write(birds(9, first=9), tmp_path, mode="append", label="species")
    assert sorted(column(tmp_path, "x")) == list(range(18))
    check_index(tmp_path)


def test_append_after_a_shard_was_replaced_rebuilds_the_index(tmp_path):
    write({"x": [1, 2]}, tmp_path / "birds", label="x")
    write({"x": [7, 7, 9]}, tmp_path / "other" / "birds", label="x")
    (path,) = shard_paths(tmp_path / "birds")
    path.write_bytes(shard_paths(tmp_path / "other" / "birds")[0].read_bytes())
    written = write({"x": [5]}, tmp_path / "birds", mode="append")
    assert written.classes == {5: 1, 7: 2, 9: 1}
    check_index(tmp_path / "birds")


def test_append_keeps_the_compression(tmp_path):
    write([{"x": 1}], tmp_path, compression="GZIP")
    write([{"x": 2}], tmp_path, mode="append")
    assert about(tmp_path).compression == "GZIP"
    check_index(tmp_path)
    with pytest.raises(DatasetError, match=r"compression is 'ZLIB'; .* have compression GZIP"):
        write([{"x": 3}], tmp_path, mode="append", compression="ZLIB")


def test_shards_in_a_subdirectory_are_replaced_or_rejected(tmp_path):
    write([{"x": 1}], tmp_path)
    (path,) = shard_paths(tmp_path)
    (tmp_path / "shards").mkdir()
    path.rename(tmp_path / "shards" / path.name)
    text = (tmp_path / "dataset_info.json").read_text()
    (tmp_path / "dataset_info.json").write_text(text.replace('"{DATASET}', '"shards/{DATASET}'))
    assert column(tmp_path, "x") == [1]
    try:
        write([{"x": 2}], tmp_path, mode="overwrite")
    except covey.CoveyError:
        assert column(tmp_path, "x") == [1]
    else:
        assert column(tmp_path, "x") == [2]
    write([{"x": 3}], tmp_path, "test")
    assert not list(tmp_path.glob(".covey-*"))


# The index.


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_the_index_finds_every_record(tmp_path, compression):
    write(birds(1000), tmp_path, label="species", compression=compression, shards=2)
    check_index(tmp_path)
    features, rows, found = about(tmp_path).features, index(tmp_path), read(tmp_path)
    for number in [0, 1, 499, 500, 999]:
        row = rows[number]
        with RecordReader(shard_paths(tmp_path)[row["shard"]]) as reader:
            record = reader.read_at(row["offset"], row["inner_offset"] if compression else 0)
        assert len(record) == row["length"]
        assert tidy(features.decode(record)) == found[number]


def test_the_index_opens_as_a_map_in_any_python(tmp_path):
    write(birds(10), tmp_path, label="species")
    script = "import sys, numpy; print(numpy.load(sys.argv[1], mmap_mode='r').dtype.names)"
    (path,) = tmp_path.glob("*.index.npy")
    run = subprocess.run(
        [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "('shard', 'length', 'offset', 'label')"


def test_without_a_label_there_are_no_classes(tmp_path):
    written = write([{"x": 1}], tmp_path)
    assert (written.label, written.classes) == (None, {})
    assert "label" not in index(tmp_path).dtype.names
    assert not list(tmp_path.glob("*class*"))


# What is returned.


def test_write_result(tmp_path):
    written = write(birds(50), tmp_path / "birds", label="species", shards=2)
    paths = shard_paths(tmp_path / "birds")
    assert (written.path, written.split) == (str(tmp_path / "birds"), "train")
    assert [shard.name for shard in written.shards] == [path.name for path in paths]
    assert [shard.bytes for shard in written.shards] == [path.stat().st_size for path in paths]
    assert written.bytes == sum(path.stat().st_size for path in paths)
    assert (written.records, written.label, written.skipped) == (50, "species", ())
    assert written.classes == dict.fromkeys(sorted(SPECIES), 10)
    assert written.seconds > 0
    (split,) = info(tmp_path / "birds").splits
    assert split.shard_lengths == (25, 25)
    assert split.num_bytes == written.bytes
    assert "examples  50" in str(written)
    assert "5 of 'species'" in str(written)


def test_progress_option(tmp_path, capfd):
    covey.write([{"x": 1}], tmp_path, split="a", progress=False)
    covey.write([{"x": 1}], tmp_path, split="b")
    assert capfd.readouterr() == ("", "")
    covey.write([{"x": 1}] * 10, tmp_path, split="c", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "10" in err
    assert "\r" not in err


# Bad input. Nothing is left behind.


def boom(count):
    yield from birds(count)
    raise ValueError("boom")


@pytest.fixture
def there(tmp_path):
    """A dataset that must survive."""
    write(birds(9), tmp_path / "there" / "birds", "test", label="species")
    return tmp_path / "there" / "birds"


@pytest.mark.parametrize("count", [0, 20, 1000])
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"memory_limit": 20_000}])
def test_a_generator_that_raises(tmp_path, there, count, options):
    before = files(there)
    for directory in [there, tmp_path / "new" / "birds"]:
        with pytest.raises(SourceError, match=f"example {count}: .*ValueError: boom") as caught:
            write(boom(count), directory, **options)
        assert isinstance(caught.value.__cause__, ValueError)
    assert files(there) == before
    assert not (tmp_path / "new").exists()


def test_an_interrupt_leaves_no_files(tmp_path):
    def interrupted():
        yield from birds(20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(interrupted(), tmp_path / "new" / "birds", memory_limit=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"memory_limit": 20_000}])
@pytest.mark.parametrize("features", [None, {"x": "int64"}])
def test_an_example_that_does_not_fit(tmp_path, there, options, features):
    before = files(there)
    pairs = [(f"bird {i}", {"x": "no" if i == 1234 else i}) for i in range(2000)]
    with pytest.raises(FeatureError, match=r"example 1234: feature 'x': .* \(key 'bird 1234'\)"):
        write(pairs, tmp_path / "new" / "birds", features=features, **options)
    with pytest.raises(FeatureError, match="example 0"):
        write(pairs, there, **options)
    assert files(there) == before
    assert not (tmp_path / "new").exists()


def test_a_row_that_does_not_fit(tmp_path):
    with pytest.raises(FeatureError, match=r"(row|example) 2: feature 'x'"):
        write({"x": [1, 2, "no", 4]}, tmp_path / "birds", features={"x": "int64"})
    assert not (tmp_path / "birds").exists()


def test_an_example_that_lacks_a_feature(tmp_path):
    with pytest.raises(FeatureError, match=r"'y'.*default") as caught:
        write([{"x": 1, "y": 1}] * 30 + [{"x": 1}], tmp_path / "birds")
    assert "30" in str(caught.value)
    with pytest.raises(FeatureError, match=r"example 30: .*'y'"):
        write([{"x": 1, "y": 1}] * 30 + [{"x": 1}], tmp_path, features={"x": "int64", "y": "int64"})


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_of_several_errors_is_raised(tmp_path, workers):
    def examples():
        yield from [{"x": 1}] * 10
        yield {"x": "no"}
        yield from [{"x": 1}] * 300
        raise ValueError("boom")

    with pytest.raises(FeatureError, match="example 10: feature 'x'"):
        write(examples(), tmp_path / "birds", workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("features", [None, {"x": "int64", "label": "str"}])
def test_skipped_examples_are_listed(tmp_path, workers, features):
    source = Numbered(200, bad=(7, 100), failing=(50,))
    options = {"features": features, "label": "label", "workers": workers}
    written = write(source, tmp_path, on_error="skip", **options)
    assert sorted(column(tmp_path, "x")) == sorted({*range(200)} - {7, 50, 100})
    assert [each.record for each in written.skipped] == [7, 50, 100]
    assert "50 cannot be read" in written.skipped[1].reason
    assert "'x'" in written.skipped[0].reason
    assert "skipped   3" in str(written)
    check_index(tmp_path)


def test_indexed_examples_that_fail_are_errors(tmp_path):
    for source, reason in [
        (Numbered(99, bad=(60,)), "example 60: feature 'x'"),
        (Numbered(99, failing=(50,)), "example 50: .*OSError: 50 cannot be read"),
    ]:
        for workers in [1, 2]:
            with pytest.raises(covey.CoveyError, match=reason):
                write(source, tmp_path / "new" / "birds", workers=workers)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("examples", "options"),
    [
        ([{"x": 1}, 5, {"x": 2}], {}),
        ([{"x": 1}, None, {"x": 2}], {}),
        ([{"x": 1}, {"y": 1}, {"x": 2}], {"features": {"x": "int64"}}),
        ([{"x": 1, "id": "a"}, {"x": 3}, {"x": 2, "id": "b"}], {"key": "id"}),
        ([(1, 2), (1,), (2, 2)], {"names": ("x", "y")}),
        ([{"x": 1}, SourceError("no", path="a.csv", line=7), {"x": 2}], {}),
    ],
    ids=["number", "none", "other", "no key", "short", "source"],
)
def test_skip_every_kind_of_invalid_example(tmp_path, examples, options):
    written = write(examples, tmp_path, on_error="skip", shuffle=False, **options)
    assert column(tmp_path, "x") == [1, 2]
    assert [each.record for each in written.skipped] == [1]


def test_skipping_everything_is_an_error(tmp_path):
    with pytest.raises(DatasetError, match=r"no examples to write .*2 were skipped: .*'x'"):
        write([{"x": "a"}] * 2, tmp_path / "b", features={"x": "int64"}, on_error="skip")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "replace"},
        {"sort_by_class": "label"},
        {"shuffle": 1},
        {"on_error": "ignore"},
        {"memory_limit": 0},
        {"memory_limit": "512M"},
        {"workers": 0},
        {"workers": True},
        {"workers": 1.5},
        {"shards": 0},
        {"shards": 2.5},
        {"shards": 2, "records_per_shard": 2},
        {"records_per_shard": 0},
        {"shard_bytes": 0},
        {"compression": "brotli"},
        {"compression_level": 10},
        {"seed": "a"},
        {"name": "a/b"},
        {"name": ""},
        {"names": "x"},
        {"names": ["x", "x"]},
        {"label": 1},
        {"key": 1},
    ],
    ids=str,
)
def test_invalid_options(tmp_path, options):
    with pytest.raises(DatasetError) as caught:
        write([{"x": i} for i in range(9)], tmp_path / "new" / "birds", **options)
    assert caught.value.option == next(iter(options))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "feature"),
    [({"features": {"x": "int77"}}, "x"), ({"key": "id"}, "id"), ({"defaults": {"y": 1}}, "y")],
)
def test_options_that_do_not_match_the_examples(tmp_path, options, feature):
    with pytest.raises(FeatureError) as caught:
        write([{"x": i} for i in range(9)], tmp_path / "new" / "birds", **options)
    assert caught.value.feature == feature
    assert not (tmp_path / "new").exists()


def test_unknown_options(tmp_path):
    with pytest.raises(TypeError, match="shard_count"):
        write([{"x": 1}], tmp_path, shard_count=3)


def test_the_path_is_a_file(tmp_path):
    (tmp_path / "birds").write_text("no")
    for path in [tmp_path / "birds", tmp_path / "birds" / "train"]:
        with pytest.raises(DatasetError, match="birds: it is a file; must be a directory"):
            write([{"x": 1}], path)
    assert (tmp_path / "birds").read_text() == "no"


def test_the_callers_examples_are_not_changed(tmp_path):
    examples, columns = [{"x": 1, "label": "b"}, {"label": "a"}], {"label": ["b", "a"]}
    write(examples, tmp_path, "a", label="label", defaults={"x": 5})
    write(columns, tmp_path / "columns", "b", label="label")
    assert examples == [{"x": 1, "label": "b"}, {"label": "a"}]
    assert columns == {"label": ["b", "a"]}


# Disk and files.


@pytest.mark.parametrize("options", [{}, {"memory_limit": 200_000}, {"workers": 2, "shards": 2}])
def test_a_full_disk_leaves_the_old_dataset(tmp_path, there, options):
    before = files(there)
    examples = [{"x": np.full(1000, i), "label": i % 2} for i in range(400)]
    with limit(resource.RLIMIT_FSIZE, 150_000):
        for directory, split in [(there, "test"), (tmp_path / "new" / "birds", "train")]:
            with pytest.raises(DatasetError, match=r"failed: File too large.*nothing was changed"):
                write(examples, directory, split, label="label", mode="overwrite", **options)
    assert files(there) == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("where", ["link", "replace", "rename", "fsync", "unlink"])
def test_a_full_disk_leaves_the_old_or_the_new_dataset(tmp_path, there, where, monkeypatch):
    monkeypatch.setattr("covey.writing.versions.RETENTION_S", 0)
    write(birds(5), there, "test", label="species", mode="overwrite")
    before, real = visible(there), getattr(os, where)

    def overwrite(directory, allowed):
        """Let a system call fail, but for the first ``allowed`` times."""
        calls = itertools.count()

        def failing(*args, **kwargs):
            if next(calls) >= allowed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, where, failing)
            write(birds(7), directory, "test", label="species", mode="overwrite")

    outcomes = []
    # The first link finds out whether there are hard links.
    for allowed in range(int(where == "link"), 100):
        directory = shutil.copytree(there, tmp_path / str(allowed) / there.name)
        try:
            overwrite(directory, allowed)
            break
        except DatasetError as error:
            failure = error
        assert "No space left" in str(failure)
        if isinstance(failure, CommittedError):
            outcomes.append("committed")
            assert by_x(read(directory, "test")) == expected(birds(7))
        else:
            outcomes.append("failed")
            assert visible(directory) == before
        write(birds(3), directory, "other", label="species")
        assert not [name for name in os.listdir(directory) if name.startswith(".")]
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) >= ({"committed"} if where == "unlink" else {"failed"})
    assert by_x(read(directory, "test")) == expected(birds(7))


def visible(directory):
    """All files but those of staging directories, which readers ignore."""
    return {name: data for name, data in files(directory).items() if not name.startswith(".covey-")}


@pytest.mark.parametrize("options", [{}, {"sort_by_class": True}, {"workers": 2}, {"shards": 300}])
def test_few_files_are_open_at_once(tmp_path, options, monkeypatch):
    monkeypatch.setattr("covey.writing.encode.CHUNK_EXAMPLES", 4)  # every chunk becomes a run
    pairs = [(i, {"x": i, "label": i % 7}) for i in range(1200)]
    with files_at_most(64):
        write(iter(pairs), tmp_path, label="label", memory_limit=3_000, **options)
    assert sorted(column(tmp_path, "x")) == list(range(1200))


def test_no_files_stay_open(tmp_path):
    write(birds(50), tmp_path / "first", label="species")
    before = sorted(os.listdir("/proc/self/fd"))
    write(birds(50), tmp_path / "a", label="species", memory_limit=1, shards=3)
    with pytest.raises(SourceError):
        write(boom(50), tmp_path / "b", label="species", memory_limit=1)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_images_keep_their_bytes(tmp_path):
    from io import BytesIO

    from PIL import Image as Pillow

    out = BytesIO()
    Pillow.new("RGB", (4, 3), (1, 2, 3)).save(out, "PNG")
    examples = [{"image": out.getvalue(), "label": "owl"}]
    write(
        examples, tmp_path, label="label", features={"image": Image(), "label": ClassLabel(["owl"])}
    )
    assert example_label(read(tmp_path)[0], "image") == out.getvalue()


def test_a_source_is_matched_by_class_names(tmp_path):
    write([{"x": 1, "label": name} for name in ("wren", "owl")], tmp_path / "birds", label="label")
    np.savez(tmp_path / "more.npz", x=[5, 6], label=["crow", "owl"])
    more = covey.sources.open_source(tmp_path / "more.npz", label="label")
    written = write(more, tmp_path / "birds", "test")
    assert written.features["label"].names == ("owl", "wren", "crow")
    assert written.classes == {"owl": 1, "crow": 1}


def test_a_source_of_items_is_matched_by_class_names(tmp_path):
    write([{"x": 1, "label": name} for name in ("wren", "owl")], tmp_path / "birds", label="label")
    (tmp_path / "more.csv").write_text("x,label\n5,crow\n6,owl\n")
    written = write(covey.sources.open_source(tmp_path / "more.csv"), tmp_path / "birds", "test")
    assert written.classes == {"owl": 1, "crow": 1}
