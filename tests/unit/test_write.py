"""covey.write from end to end: examples, labels, order, shards, index and errors."""

import itertools
import os
import random
import sys

import numpy as np
import pytest
from written import (
    Numbered,
    about,
    as_items,
    check_index,
    column,
    files,
    index,
    info,
    read,
    shard_paths,
    tidy,
    write,
)

import covey
from covey import ClassLabel, Features, RecordReader, Tensor
from covey.errors import DatasetError, DuplicateKeyError, FeatureError, FormatError, SourceError
from covey.shuffle.runs import TABLE_DTYPE
from covey.writer import Serializer, TFRecordWriter
from covey.writing.options import WriteOptions
from covey.writing.plan import plan_cuts

SPECIES = ["wren", "owl", "crow", "jay", "tit"]
NAMED = {"label": ClassLabel(names=["a", "b"])}


pytestmark = pytest.mark.usefixtures("no_fsync")


def birds(count):
    """Examples with several types of features, identified by ``x``."""
    return [
        {
            "x": number,
            "song": np.arange(number % 4, dtype=np.float32),
            "place": {"name": f"place {number % 7}", "at": [number / 4, 0.5]},
            "species": SPECIES[number % len(SPECIES)],
            "id": f"bird {number}",
        }
        for number in range(count)
    ]


def by_x(examples):
    return sorted(examples, key=lambda example: example["x"])


# Forms of examples.

ROWS = [{"x": i, "y": [i / 2, 1.0], "word": f"w{i}", "label": "ab"[i % 2]} for i in range(30)]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
KINDS = [("x", "i8"), ("y", "f4", (2,)), ("word", "U3"), ("label", "U1")]
INPUTS = {
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "generator": lambda: (row for row in ROWS),
    "pairs": lambda: enumerate(ROWS),
    "columns": lambda: COLUMNS,
    "columns of arrays": lambda: {name: np.array(each) for name, each in COLUMNS.items()},
    "structured array": lambda: np.array([tuple(row.values()) for row in ROWS], KINDS),
    "source": lambda: covey.sources.Source("list", "birds", list(enumerate(ROWS)), length=30),
}


@pytest.mark.parametrize("examples", INPUTS)
def test_forms_of_examples(tmp_path, examples):
    written = write(INPUTS[examples](), tmp_path, label="label")
    assert by_x(read(tmp_path)) == [{**row, "label": "ab".index(row["label"])} for row in ROWS]
    assert (written.records, written.classes) == (30, {"a": 15, "b": 15})
    check_index(tmp_path)


def test_columns_and_items_give_the_same_files(tmp_path):
    write(ROWS, tmp_path / "a" / "birds", label="label")
    write(COLUMNS, tmp_path / "b" / "birds", label="label")
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.parametrize("kind", [list, iter])
def test_names_of_tuple_elements(tmp_path, kind):
    pairs = [([i, i + 1], "ab"[i % 2]) for i in range(10)]
    write(kind(pairs), tmp_path, names=("x", "label"), label="label", shuffle=False)
    assert column(tmp_path, "x") == [[i, i + 1] for i in range(10)]


def test_nested_columns(tmp_path):
    write({"a": {"b": [1, 2], "c": ["x", "y"]}, "d": [0, 1]}, tmp_path, shuffle=False)
    assert read(tmp_path) == [{"a": {"b": 1, "c": "x"}, "d": 0}, {"a": {"b": 2, "c": "y"}, "d": 1}]


def test_class_names_of_a_source(tmp_path):
    """Class names of a source are matched with those of the dataset, for items and for columns."""
    (tmp_path / "birds.csv").write_text("x,label\n1,wren\n2,owl\n")
    written = covey.write(tmp_path / "birds.csv", tmp_path / "birds", progress=False)
    assert (written.label, written.classes) == ("label", {"owl": 1, "wren": 1})
    np.savez(tmp_path / "more.npz", x=[5, 6], label=["crow", "owl"])
    (tmp_path / "more.csv").write_text("x,label\n5,crow\n6,owl\n")
    for name in ("more.npz", "more.csv"):
        source = covey.sources.open_source(tmp_path / name, label="label")
        written = write(source, tmp_path / "birds", name[5:])
        assert written.features["label"].names == ("owl", "wren", "crow")
        assert written.classes == {"owl": 1, "crow": 1}


def test_examples_are_not_changed(tmp_path):
    examples, columns = [{"x": 1, "label": "b"}, {"label": "a"}], {"label": ["b", "a"]}
    write(examples, tmp_path, "a", label="label", defaults={"x": 5})
    write(columns, tmp_path / "columns", "b", label="label")
    assert examples == [{"x": 1, "label": "b"}, {"label": "a"}]
    assert columns == {"label": ["b", "a"]}


NOT_EXAMPLES = [5, None, [1, 2], [[1, 2]], [(1, 2)]]
EMPTY = [[], iter([]), {}, {"x": []}, {"x": np.zeros((0, 2))}]


@pytest.mark.parametrize("examples", [*NOT_EXAMPLES, *EMPTY], ids=lambda each: repr(each)[:10])
def test_invalid_examples(tmp_path, examples):
    with pytest.raises(covey.CoveyError, match=r"example|names="):
        write(examples, tmp_path / "birds")
    assert not (tmp_path / "birds").exists()


# Features.


def test_declared_features(tmp_path):
    declared = {
        "x": "int32",
        "song": Tensor("float32", (None,)),
        "place": {"name": "str", "at": Tensor("float64", (2,))},
        "species": ClassLabel(names=SPECIES),
        "id": "str",
    }
    for kind in (list, iter):
        written = write(kind(birds(50)), tmp_path / kind.__name__, features=declared)
        assert written.features == Features(declared) == about(tmp_path / kind.__name__).features
        assert by_x(read(tmp_path / kind.__name__)) == [
            tidy({**each, "species": SPECIES.index(each["species"])}) for each in birds(50)
        ]
        assert written.classes == dict.fromkeys(SPECIES, 10)


def test_defaults_of_declared_features(tmp_path):
    features = {"x": "int64", "y": Tensor("float32", default=0.5)}
    write([{"x": 1}, {"x": 2, "y": 2.0}], tmp_path, features=features, shuffle=False)
    assert read(tmp_path) == [{"x": 1, "y": 0.5}, {"x": 2, "y": 2.0}]


def test_columns_of_another_encoder():
    """The native encoder rejects columns that were checked by another one."""
    one, other = (Features({"x": kind}).check_columns({"x": [1, 2]}) for kind in ("int8", "int64"))
    for function, arguments in [
        ("encode_rows", [np.arange(2, dtype=np.uint64)]),
        ("measure", []),
        ("encode", [0, 2, 1 << 20]),
    ]:
        with pytest.raises(ValueError, match="columns of another encoder"):
            getattr(one._encoder, function)(other._columns, *arguments)


def test_feature_names_are_strings(tmp_path, form):
    with pytest.raises(covey.CoveyError):
        write(form({1: [2]}), tmp_path / "birds")


# Labels.


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["wren", "owl", "wren"], {"owl": 1, "wren": 2}),
        ([3, -1, 3], {-1: 1, 3: 2}),
        ([True, False, True], {0: 1, 1: 2}),
        ([b"b", b"a", b"b"], {"a": 1, "b": 2}),
        ([np.str_("b"), "a", "b"], {"a": 1, "b": 2}),
        (["é", "z", "é"], {"z": 1, "é": 2}),
    ],
)
@pytest.mark.parametrize("sort_by_class", [False, True])
def test_kinds_of_labels(tmp_path, form, labels, classes, sort_by_class):
    columns = {"is/a": labels} if form is as_items else {"is": {"a": labels}}
    examples = form(columns)
    if form is as_items:
        examples = ({"is": {"a": example["is/a"]}} for example in examples)
    written = write(examples, tmp_path, label="is/a", sort_by_class=sort_by_class)
    assert list(written.classes.items()) == list(classes.items())
    feature = written.features["is/a"]
    if isinstance(feature, ClassLabel):
        assert feature.names == tuple(classes)
        (path,) = tmp_path.glob("*.labels.txt")
        assert path.read_text().split() == list(classes)
    check_index(tmp_path)


def test_declared_string_remains_a_string(tmp_path, form):
    labels = ["b", "a", "b"]
    features = {"label": "str"}
    written = write(form({"label": labels}), tmp_path, label="label", features=features, seed=3)
    assert sorted(column(tmp_path, "label")) == sorted(labels)
    assert written.classes == {"a": 1, "b": 2}
    assert about(tmp_path).label_strings == ("a", "b")
    check_index(tmp_path)


@pytest.mark.parametrize("known", ["declared", "appended"])
def test_integers_beside_names_are_class_ids(tmp_path, form, known):
    options = {"features": NAMED}
    if known == "appended":
        write({"label": ["a", "b"]}, tmp_path, label="label")
        options = {"mode": "append"}
    before = files(tmp_path)
    for wrong in [None, 7, 10**9, 0.5, ["a"]]:
        with pytest.raises(FeatureError) as caught:
            write(form({"label": ["a", wrong, "b"]}), tmp_path, **options)
        assert (caught.value.example, caught.value.feature) == (1, "label")
        assert files(tmp_path) == before
    write(form({"label": [1, "a", "b"]}), tmp_path, shuffle=False, **options)
    assert column(tmp_path, "label")[-3:] == [1, 0, 1]
    assert (tmp_path / "label.labels.txt").read_text() == "a\nb\n"


def test_unknown_class(tmp_path, form):
    with pytest.raises(FeatureError, match="unknown class 'q'; the label has 2 names") as caught:
        write(form({"label": ["a", "q"]}), tmp_path, features=NAMED)
    assert (caught.value.example, caught.value.feature) == (1, "label")


@pytest.mark.parametrize("names", [["", "b"], ["a\nb", "b"], [" a", "a"], ["a\r", "b"]])
@pytest.mark.parametrize("declared", [False, True])
def test_invalid_class_names(tmp_path, form, names, declared):
    features = {"label": ClassLabel(names=names)} if declared else None
    labels = [0, 1] if declared else names
    with pytest.raises(FeatureError, match="is not a valid class name") as caught:
        write(form({"label": labels}), tmp_path / "birds", label="label", features=features)
    assert caught.value.feature == "label"
    assert not (tmp_path / "birds").exists()


def test_labels_whose_class_names_have_the_same_file(tmp_path):
    features = {"a": {"b": ClassLabel(names=["x"])}, "a-b": ClassLabel(names=["y"])}
    with pytest.raises(DatasetError, match="two labels would have the same file"):
        write([{"a": {"b": 0}, "a-b": 0}], tmp_path / "birds", features=features, label=None)
    assert not (tmp_path / "birds").exists()


@pytest.mark.parametrize("label", ["species", "x", "y"])
def test_invalid_labels(tmp_path, form, label):
    with pytest.raises(DatasetError) as caught:
        write(form({"x": [0.5], "y": [["a", "b"]]}), tmp_path / "birds", label=label)
    assert (caught.value.option, caught.value.found) == ("label", label)
    assert not (tmp_path / "birds").exists()


def test_class_ids_that_exceed_64_bits(tmp_path, form):
    for labels in ([2**63], np.array([2, 2**63], np.uint64)):
        with pytest.raises(FeatureError, match="9223372036854775808") as caught:
            write(form({"label": labels}), tmp_path / "birds", label="label")
        assert caught.value.feature == "label"


# Order.

MANY = birds(120) + [{**each, "x": each["x"] + 0.5} for each in birds(20)]


@pytest.mark.parametrize(
    "options",
    [{"shards": 3}, {"sort_by_class": True}, {"shuffle": False}, {"compression": "GZIP"}],
    ids=str,
)
def test_memory_and_workers_do_not_change_the_files(tmp_path, options):
    for name, memory_limit, workers in [("a", 1 << 30, 1), ("b", 1, 1), ("c", 20_000, 3)]:
        more = {"memory_limit": memory_limit, "workers": workers, "label": "species"}
        write(iter(MANY), tmp_path / name / "birds", **more, **options)
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")
    check_index(tmp_path / "a" / "birds")
    if not options.get("shuffle", True):
        assert column(tmp_path / "a" / "birds", "x") == [each["x"] for each in MANY]


def test_processes_do_not_change_the_files(tmp_path):
    """Sources that can be pickled are read in processes, others in threads."""

    class Local(Numbered):
        """A class that other processes cannot import."""

    parameters = {"size": 400, "bad": (7, 100), "failing": (50,)}
    sources = {"one": Numbered(**parameters), "processes": Numbered(**parameters)}
    sources["threads"] = Local(**parameters)
    for name, source in sources.items():
        options = {"workers": 1 if name == "one" else 2, "memory_limit": 50_000}
        directory = tmp_path / name / "birds"
        written = write(source, directory, label="label", on_error="skip", **options)
        assert [each.record for each in written.skipped] == [7, 50, 100]
        assert "50 cannot be read" in written.skipped[1].reason
        assert "3 skipped" in str(written)
    assert sorted(column(tmp_path / "one" / "birds", "x")) == sorted({*range(400)} - {7, 50, 100})
    assert files(tmp_path / "processes") == files(tmp_path / "one") == files(tmp_path / "threads")
    for source, workers, example in [
        (Numbered(99, bad=(60,), failing=(61,)), 1, 60),
        (Local(99, bad=(60,), failing=(61,)), 2, 60),
        (Numbered(99, bad=(60,), failing=(50,)), 1, 50),
        (Numbered(99, bad=(60,), failing=(50,)), 2, 50),
    ]:
        with pytest.raises((FeatureError, SourceError)) as caught:
            write(source, tmp_path / "new" / "birds", workers=workers)
        assert caught.value.example == example
    assert not (tmp_path / "new").exists()


def test_shuffled_order_depends_on_the_seed(tmp_path, form):
    orders = []
    for seed in [0, 0, 1, 2**64 - 1, -5]:
        directory = tmp_path / str(len(orders))
        write(form({"x": [*range(200)]}), directory, seed=seed)
        orders.append(tuple(column(directory, "x")))
        assert sum(b == a + 1 for a, b in itertools.pairwise(orders[-1])) < 10
    assert orders[0] == orders[1]
    assert len(set(orders)) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(200))}


@pytest.mark.parametrize("kind", [str, int, lambda i: b"%d" % i])
def test_keys_determine_the_order(tmp_path, kind):
    pairs = [(kind(i), {"x": i, "label": "abc"[i % 3]}) for i in range(200)]
    shuffled = random.Random(0).sample(pairs, len(pairs))
    for name, examples in [("a", pairs), ("b", shuffled)]:
        write(examples, tmp_path / name / "birds", label="label", memory_limit=10_000)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_key_feature(tmp_path, form):
    numbers = [*range(50)]
    for name, order in [("a", numbers), ("b", numbers[::-1])]:
        ids = [f"bird {i}" for i in order]
        write(form({"id": ids, "x": order}), tmp_path / name / "birds", key="id")
    pairs = [(f"bird {i}", {"id": f"bird {i}", "x": i}) for i in numbers]
    write(pairs, tmp_path / "c" / "birds")
    assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")
    nested = {"of": {"id": ["a", "b"]}} if form is dict else [{"of": {"id": k}} for k in "ab"]
    assert write(nested, tmp_path / "nested", key="of/id").records == 2


@pytest.mark.parametrize(
    ("labels", "options", "sizes"),
    [
        ([i % 5 for i in range(1000)], {"shards": 5}, [200] * 5),
        ([i % 5 for i in range(1000)], {"shards": 5, "memory_limit": 5000}, [200] * 5),
        ([SPECIES[i % 5] for i in range(1000)], {"shards": 5, "memory_limit": 5000}, [200] * 5),
        ([0] * 90 + [1] * 10 + [2] * 110 + [3] * 5, {"shards": 2}, [100, 115]),
        ([0] * 90 + [1] * 10 + [2] * 110 + [3] * 5, {"shard_bytes": 4000}, [90, 10, 115]),
        ([0] * 10 + [1, 2], {"shards": 3}, [10, 1, 1]),
        ([0] * 10, {"shards": 2}, [5, 5]),  # more shards than classes
    ],
    ids=["classes", "spilled", "strings", "unequal", "bytes", "small", "one class"],
)
def test_sort_by_class(tmp_path, form, labels, options, sizes):
    columns = {"x": [*range(len(labels))], "label": labels}
    written = write(form(columns), tmp_path, label="label", sort_by_class=True, **options)
    found = column(tmp_path, "label")
    assert found == sorted(found)
    assert [shard.records for shard in written.shards] == sizes
    first = column(tmp_path, "x")[: sizes[0]]
    assert first != sorted(first)
    check_index(tmp_path)


def test_sort_by_class_needs_a_label(tmp_path, form):
    with pytest.raises(DatasetError) as caught:
        write(form({"x": [1, 2]}), tmp_path / "birds", sort_by_class=True)
    assert (caught.value.option, caught.value.remedy) == ("sort_by_class", "pass label=")
    assert not (tmp_path / "birds").exists()


# Keys.


@pytest.mark.parametrize(
    "options",
    [{}, {"sort_by_class": True}, {"shuffle": False}, {"workers": 2}, {"memory_limit": 5000}],
    ids=str,
)
def test_duplicate_keys(tmp_path, form, options):
    ids = [f"bird {i}" for i in range(300)]
    columns = {"id": [*ids, "bird 17"], "x": [*range(301)], "label": [0] * 300 + [1]}
    with pytest.raises(DuplicateKeyError) as caught:
        write(form(columns), tmp_path / "birds", key="id", label="label", **options)
    key = "bird 17" if form is dict else None  # an iterator cannot be read again
    assert (caught.value.key, caught.value.examples) == (key, (17, 300))
    assert not (tmp_path / "birds").exists()


def test_duplicate_keys_when_features_change(tmp_path):
    pairs = [(i, {"x": i}) for i in range(500)] + [(3, {"x": 0.5})]
    with pytest.raises(DuplicateKeyError, match="examples 3 and 500 both have the key 3"):
        write(pairs, tmp_path / "birds", memory_limit=5_000)


INVALID_KEYS = [1.5, None, 2**70, "\ud800", ("a",)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("features", [None, {"x": "int64"}])
def test_invalid_keys(tmp_path, features, workers):
    for key, position in itertools.product(INVALID_KEYS, [0, 2]):
        pairs = [(f"bird {i}", {"x": i}) for i in range(5)]
        pairs[position] = (key, {"x": position})
        with pytest.raises(FeatureError, match="the key") as caught:
            write(pairs, tmp_path / "birds", features=features, workers=workers)
        assert caught.value.example == position
    assert not (tmp_path / "birds").exists()
    pairs = [(key, {"x": number}) for number, key in enumerate(["a", *INVALID_KEYS, "b", "c"])]
    options = {"features": features, "workers": workers, "on_error": "skip", "shuffle": False}
    written = write(pairs, tmp_path, **options)
    assert [each.record for each in written.skipped] == [1, 2, 3, 4, 5]
    assert column(tmp_path, "x") == [0, 6, 7]


def test_keys_of_some_examples(tmp_path):
    with pytest.raises(FeatureError, match="have keys, others do not"):
        write([("a", {"x": 1}), {"x": 2}], tmp_path / "birds")


# Shards.


def test_file_names(tmp_path):
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
    directory = tmp_path / "birds" / "2.1.0"
    write([{"x": 1}], directory, name="owls", description="one")
    assert (info(directory).name, info(directory).version) == ("owls", "2.1.0")
    for split, mode, given, expected in [
        ("test", "error", "", "one"),
        ("train", "append", "two", "two"),
        ("train", "overwrite", "", "two"),
    ]:
        with pytest.raises(DatasetError) as caught:
            write([{"x": 1}], directory, split, mode=mode, name="wrens")
        assert (caught.value.option, caught.value.found) == ("name", "wrens")
        write([{"x": 1}], directory, split, mode=mode, description=given)
        assert info(directory).description == expected


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [100]),
        ({"shards": 3}, [33, 33, 34]),
        ({"records_per_shard": 30}, [30, 30, 30, 10]),
        ({"records_per_shard": 1000}, [100]),
        ({"shards": 1000}, [1] * 100),
        ({"shard_bytes": 1}, [1] * 100),
    ],
)
def test_sizes_of_shards(tmp_path, form, options, sizes):
    written = write(form({"x": np.arange(100)}), tmp_path, **options)
    assert [shard.records for shard in written.shards] == sizes
    assert sorted(column(tmp_path, "x")) == list(range(100))
    check_index(tmp_path)


def test_shard_bytes(tmp_path, form):
    written = write(
        form({"x": [b"." * (i % 300) for i in range(2000)]}), tmp_path, shard_bytes=50_000
    )
    sizes = [shard.bytes for shard in written.shards]
    assert len(sizes) == -(-sum(sizes) // 50_000)
    assert max(sizes) - min(sizes) < 1000
    values = [b"." * size for size in [10, 5000, 10, 10]]  # one is larger than a shard
    written = write({"x": values}, tmp_path / "large", shard_bytes=1000, shuffle=False)
    assert sum(shard.records for shard in written.shards) == 4
    assert all(shard.records for shard in written.shards)
    check_index(tmp_path / "large")


def test_at_most_one_shard_per_record():
    huge = np.array([(0, 0, 2, 1 << 50)], TABLE_DTYPE)  # more bytes than any memory has
    options = WriteOptions(split="train", shard_bytes=1)
    assert plan_cuts(huge, options).ends.tolist() == [1 << 49, 1 << 50]


# The index and the result.


@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_index_locates_every_record(tmp_path, compression):
    write(birds(300), tmp_path, label="species", compression=compression, shards=2)
    check_index(tmp_path)
    features, rows, found = about(tmp_path).features, index(tmp_path), read(tmp_path)
    for number in [0, 149, 150, 299]:
        row = rows[number]
        with RecordReader(shard_paths(tmp_path)[row["shard"]]) as reader:
            record = reader.read_at(row["offset"], row["inner_offset"] if compression else 0)
        assert len(record) == row["length"]
        assert tidy(features.decode(record)) == found[number]


def test_write_result(tmp_path):
    written = write(birds(50), tmp_path / "birds", label="species", shards=2)
    paths = shard_paths(tmp_path / "birds")
    assert (written.path, written.split) == (str(tmp_path / "birds"), "train")
    assert [shard.name for shard in written.shards] == [path.name for path in paths]
    assert [shard.bytes for shard in written.shards] == [path.stat().st_size for path in paths]
    assert written.bytes == sum(path.stat().st_size for path in paths)
    assert (written.records, written.label, written.skipped) == (50, "species", ())
    assert written.classes == dict.fromkeys(sorted(SPECIES), 10)
    assert (written.splits, written.unshared_classes) == ({"train": written}, {})
    (split,) = info(tmp_path / "birds").splits
    assert (split.shard_lengths, split.num_bytes) == ((25, 25), written.bytes)
    assert "50 examples" in str(written)
    assert "5 classes of 'species'" in str(written)


def test_split_without_a_label(tmp_path):
    written = write([{"x": 1}], tmp_path)
    assert (written.label, written.classes) == (None, {})
    assert "label" not in index(tmp_path).dtype.names
    assert not list(tmp_path.glob("*class*"))


def test_progress(tmp_path, capfd, monkeypatch):
    covey.write([{"x": 1}], tmp_path, split="a", label=None, progress=False)
    covey.write([{"x": 1}], tmp_path, split="b")
    assert capfd.readouterr() == ("", "")
    covey.write([{"x": 1}] * 10, tmp_path, split="c", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "10" in err
    monkeypatch.setattr(sys, "stderr", None)
    for split, progress in [("d", None), ("e", True)]:
        covey.write([{"x": 1}], tmp_path, split=split, progress=progress)


# Errors. The directory is not changed.


def failing(count, error):
    yield from birds(count)
    raise error


@pytest.mark.parametrize("count", [0, 20, 300])
@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"memory_limit": 20_000}])
def test_source_that_raises(tmp_path, count, options):
    write(birds(9), tmp_path / "old" / "birds", "test", label="species")
    before = files(tmp_path)
    for directory in [tmp_path / "old" / "birds", tmp_path / "new" / "birds"]:
        with pytest.raises(SourceError, match="ValueError: text") as caught:
            write(failing(count, ValueError("text")), directory, **options)
        assert caught.value.example == count
        assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(KeyboardInterrupt):
            write(failing(count, KeyboardInterrupt()), directory, **options)
    assert files(tmp_path) == before


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"memory_limit": 5000}])
@pytest.mark.parametrize("features", [None, {"x": "int64"}])
def test_example_that_does_not_match(tmp_path, options, features):
    """The first of several errors is raised."""

    def pairs():
        for i in range(500):
            yield f"bird {i}", {"x": "no" if i == 234 else i}
        raise ValueError

    with pytest.raises(FeatureError, match=r"\(key 'bird 234'\)") as caught:
        write(pairs(), tmp_path / "birds", features=features, **options)
    assert (caught.value.example, caught.value.feature) == (234, "x")
    assert not (tmp_path / "birds").exists()


def test_row_that_does_not_match(tmp_path):
    with pytest.raises(FeatureError) as caught:
        write({"x": [1, 2, "no", 4]}, tmp_path / "birds", features={"x": "int64"})
    assert (caught.value.example, caught.value.feature) == (2, "x")
    assert not (tmp_path / "birds").exists()


def test_missing_feature(tmp_path):
    examples = [{"x": 1, "y": 1}] * 30 + [{"x": 1}]
    with pytest.raises(FeatureError, match="default") as caught:
        write(examples, tmp_path / "birds")
    assert caught.value.feature == "y"
    assert "30" in str(caught.value)
    with pytest.raises(FeatureError) as caught:
        write(examples, tmp_path / "birds", features={"x": "int64", "y": "int64"})
    assert (caught.value.example, caught.value.feature) == (30, "y")


@pytest.mark.parametrize(
    ("examples", "options"),
    [
        ([{"x": 1}, 5, {"x": 2}], {}),
        ([{"x": 1}, None, {"x": 2}], {}),
        ([{"x": 1}, {"y": 1}, {"x": 2}], {"features": {"x": "int64"}}),
        ([{"x": 1, "id": "a"}, {"x": 3}, {"x": 2, "id": "b"}], {"key": "id"}),
        ([{"x": 1, "id": "a"}, {"x": 3, "id": 1.5}, {"x": 2, "id": "b"}], {"key": "id"}),
        ([(1, 2), (1,), (2, 2)], {"names": ("x", "y")}),
        ([{"x": 1}, SourceError("no", path="a.csv", line=7), {"x": 2}], {}),
    ],
    ids=["number", "none", "other", "no key", "invalid key", "short", "source"],
)
def test_skip_invalid_examples(tmp_path, examples, options):
    with pytest.raises(covey.CoveyError):
        write(examples, tmp_path / "birds", **options)
    assert not (tmp_path / "birds").exists()
    written = write(examples, tmp_path, on_error="skip", shuffle=False, **options)
    assert column(tmp_path, "x") == [1, 2]
    assert [each.record for each in written.skipped] == [1]


def test_skip_all_examples(tmp_path):
    with pytest.raises(DatasetError, match=r"no examples to write .*2 were skipped: .*'x'"):
        write([{"x": "a"}] * 2, tmp_path / "b", features={"x": "int64"}, on_error="skip")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("mode", ["replace"]),
        ("sort_by_class", ["label"]),
        ("shuffle", [1]),
        ("on_error", ["ignore"]),
        ("memory_limit", [0, "512M", None]),
        ("workers", [0, True, 1.5]),
        ("shards", [0, 2.5]),
        ("records_per_shard", [0]),
        ("shard_bytes", [0]),
        ("compression", ["brotli"]),
        ("compression_level", [10]),
        ("seed", ["a", 2**64]),
        ("name", ["a/b", ""]),
        ("names", ["x", ["x", "x"]]),
        ("label", [1]),
        ("key", [1]),
    ],
)
def test_invalid_options(tmp_path, option, values):
    for value in values:
        with pytest.raises(DatasetError) as caught:
            write([{"x": i} for i in range(9)], tmp_path / "birds", **{option: value})
        assert (caught.value.option, caught.value.found) == (option, value)
    assert files(tmp_path) == {}


def test_shards_and_records_per_shard(tmp_path):
    with pytest.raises(DatasetError) as caught:
        write([{"x": 1}], tmp_path / "birds", shards=2, records_per_shard=2)
    assert caught.value.option == "shards"


@pytest.mark.parametrize(
    ("options", "feature"),
    [({"features": {"x": "int77"}}, "x"), ({"key": "id"}, "id"), ({"defaults": {"y": 1}}, "y")],
)
def test_options_that_do_not_match_the_examples(tmp_path, options, feature):
    with pytest.raises(FeatureError) as caught:
        write([{"x": i} for i in range(9)], tmp_path / "birds", **options)
    assert caught.value.feature == feature
    assert files(tmp_path) == {}


@pytest.mark.parametrize("split", ["", "a/b", "all", "..", "a b", "-", 5, "a" * 300])
def test_invalid_split_names(tmp_path, split):
    with pytest.raises(FormatError, match="name of a split"):
        write([{"x": 1}], tmp_path / "birds", split)
    assert files(tmp_path) == {}


# Paths.


def test_invalid_paths(tmp_path):
    (tmp_path / "file").write_text("no")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    before = sorted(os.listdir(tmp_path))
    for path, reason in [
        ("file", "it is a file; must be a directory"),
        ("file/train", "it is a file; must be a directory"),
        ("link", "it is a broken symbolic link; must be a directory"),
        ("link/train", "it is a broken symbolic link; must be a directory"),
        ("new/" + "a" * 250, "File name too long"),
    ]:
        with pytest.raises(DatasetError, match=reason):
            write([{"x": 1}], tmp_path / path)
    with pytest.raises(DatasetError) as caught:
        write([{"x": 1}], "")
    assert caught.value.option == "path"
    assert sorted(os.listdir(tmp_path)) == before


def test_link_to_a_directory(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "birds").symlink_to(tmp_path / "real")
    write([{"x": 1}], tmp_path / "birds")
    assert column(tmp_path / "real", "x") == [1]


@pytest.mark.parametrize("workers", [1, 2])
def test_source_that_changes_the_current_directory(tmp_path, workers, monkeypatch):
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


def test_datum_generator_that_changes_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)

    def examples(split):
        yield "a", {"x": 1}
        os.chdir(tmp_path / "there")
        yield "b", {"x": 2}

    TFRecordWriter(examples, Serializer(), "birds", "train", 2).create_records()
    assert info(tmp_path / "birds").splits[0].num_examples == 2
    assert os.listdir(tmp_path / "there") == []
