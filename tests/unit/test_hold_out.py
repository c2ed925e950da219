"""Division of a source: a second split that hashes choose, or splits by a feature."""

import csv
import itertools
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import about, check_index, column, files, read, write

import covey
from covey import ClassLabel, HoldOut, Tensor
from covey.errors import (
    DatasetError,
    DatasetExistsError,
    DuplicateKeyError,
    FeatureError,
    FormatError,
)
from covey.sources import Source, SourceSplits, media
from covey.writing.commit import Staging

NAMES = ("crow", "owl", "robin", "wren", "finch", "gull", "hawk", "ibis")
FRACTION = HoldOut(fraction=0.3)
KINDS = {
    "fraction": FRACTION,
    "by a feature": HoldOut(fraction=0.3, by="x"),
    "number of classes": HoldOut(classes=3),
    "fraction of classes": HoldOut(classes=0.3),
}


pytestmark = pytest.mark.usefixtures("no_fsync")


def items(count, first=0):
    return [(f"bird {n}", {"x": n // 4, "label": NAMES[n % 8]}) for n in range(first, count)]


def columns(count):
    keys, examples = zip(*items(count), strict=True)
    return {
        "x": np.array([example["x"] for example in examples]),
        "label": [example["label"] for example in examples],
        "id": list(keys),
    }


def by_split(directory, name="x"):
    """The values of a feature in both splits."""
    return tuple(sorted(column(directory, name, split)) for split in ("train", "val"))


def both(directory, name="x"):
    """The values of a feature in both splits together."""
    return sorted(itertools.chain(*by_split(directory, name)))


def classes(directory):
    """The class names of both splits."""
    names = getattr(about(directory).features["label"], "names", None)
    return tuple(
        {label if names is None else names[label] for label in column(directory, "label", split)}
        for split in ("train", "val")
    )


# The choice.


@pytest.mark.parametrize(
    ("kind", "sort_by_class"), [*zip(KINDS, [True, False, True, False], strict=True)]
)
def test_every_example_is_in_one_split(tmp_path, kind, sort_by_class):
    """The same files for any memory limit and number of workers, and for columns."""
    options = {"hold_out": KINDS[kind], "label": "label", "sort_by_class": sort_by_class}
    written = write(iter(items(160)), tmp_path / "items" / "birds", shards=2, **options)
    train, val = by_split(tmp_path / "items" / "birds")
    assert sorted(train + val) == sorted(example["x"] for _, example in items(160))
    assert (written.records, written.splits["val"].records) == (len(train), len(val))
    assert (written.split, written.splits["val"].split) == ("train", "val")
    assert sum(written.classes.values()) == len(train)
    assert "split 'val'" in str(written)
    if kind in ("fraction", "by a feature"):
        assert 24 < len(val) < 72
    if kind == "by a feature":  # groups are not divided
        assert {*train}.isdisjoint(val)
    check_index(tmp_path / "items" / "birds")
    check_index(tmp_path / "items" / "birds", "val")
    for memory_limit, workers in [(1, 1), (2000, 2)]:
        directory = tmp_path / str(memory_limit)
        more = {"memory_limit": memory_limit, "workers": workers, "shards": 2}
        write(iter(items(160)), directory / "birds", **options, **more)
        assert files(directory) == files(tmp_path / "items")
    write(columns(160), tmp_path / "columns", key="id", **options)
    assert by_split(tmp_path / "columns") == (train, val)


@settings(max_examples=12)
@given(
    names=st.sets(st.text(max_size=8), min_size=40, max_size=60),
    count=st.integers(20, 39),
    fraction=st.floats(0.2, 0.8),
    kind=st.sampled_from(["key", "by", "classes"]),
)
def test_choice_does_not_depend_on_other_examples(names, count, fraction, kind):
    names = sorted(name for name in names if name == name.strip() and name.isprintable() and name)
    hold_out = {
        "key": HoldOut(fraction=fraction),
        "by": HoldOut(fraction=fraction, by="name"),
        "classes": HoldOut(classes=fraction),
    }[kind]

    def held_out(names):
        pairs = [(name, {"name": name, "label": name}) for name in names]
        with tempfile.TemporaryDirectory() as directory:
            try:
                write(pairs, directory, label="label", hold_out=hold_out)
            except DatasetError:  # a split would be empty
                return None
            return {*column(Path(directory), "name", "val")}

    some, every = held_out(names[:count]), held_out(names)
    if some is not None and every is not None:
        assert some == every.intersection(names[:count])


def test_larger_fraction_holds_out_a_superset(tmp_path):
    found = []
    for fraction in (0.1, 0.3):
        hold_out = HoldOut(fraction=fraction)
        write([{"x": n} for n in range(500)], tmp_path / str(fraction), hold_out=hold_out)
        found.append({*column(tmp_path / str(fraction), "x", "val")})
    assert found[0] < found[1]


def test_seed_of_the_choice_and_seed_of_the_order(tmp_path):
    rows = {"x": np.arange(1000)}
    found = {}
    for seeds in [(0, 0), (1, 0), (0, 1)]:
        hold_out, directory = HoldOut(fraction=0.5, seed=seeds[0]), tmp_path / str(seeds)
        write(rows, directory, hold_out=hold_out, seed=seeds[1])
        found[seeds] = column(directory, "x", "val")
    first, other, order = found.values()
    assert 150 < len({*first} & {*other}) < 350
    assert order != first
    assert {*order} == {*first}


def test_key_is_the_position_or_a_feature(tmp_path):
    rows = [{"x": n} for n in range(300)]
    forms = {
        "positions": (rows, {}),
        "pairs": (enumerate(rows), {}),
        "key": (rows, {"key": "x"}),
        "by": ([(f"k{n}", row) for n, row in enumerate(rows)], {}),
    }
    for name, (examples, options) in forms.items():
        hold_out = HoldOut(fraction=0.3, by="x" if name == "by" else None)
        write(examples, tmp_path / name, hold_out=hold_out, **options)
    assert len({tuple(by_split(tmp_path / name)[1]) for name in forms}) == 1


@pytest.mark.parametrize("stored", ["ClassLabel", "str"])
@pytest.mark.parametrize("form", ["items", "columns"])
def test_number_of_classes(tmp_path, form, stored):
    declared = {"x": "int64", "label": "str"} | ({} if form == "items" else {"id": "str"})
    options = {"label": "label", "features": declared if stored == "str" else None}
    examples = items(80) if form == "items" else columns(80)
    write(examples, tmp_path, hold_out=HoldOut(classes=3), **options)
    train, val = classes(tmp_path)
    assert (len(train), len(val), train & val) == (5, 3, set())
    assert about(tmp_path).features == about(tmp_path, "val").features
    for split in ("train", "val"):
        check_index(tmp_path, split)


def test_new_class_displaces_at_most_one(tmp_path):
    def held_out(names, directory):
        write({"label": names}, directory, label="label", hold_out=HoldOut(classes=10))
        return classes(directory)[1]

    names = [f"class {n}" for n in range(100)]
    before = held_out(names, tmp_path / "before")
    for more in range(5):
        assert len(before - held_out([*names, f"new {more}"], tmp_path / str(more))) <= 1


@pytest.mark.parametrize("hold_out", [HoldOut(classes=7), HoldOut(fraction=0.3, by="label")])
@pytest.mark.parametrize("form", ["items", "columns"])
def test_class_is_identified_by_name(tmp_path, hold_out, form):
    names = tuple(f"class {n}" for n in range(30))
    found = []
    for each in (names, names[::-1]):
        features, directory = {"label": ClassLabel(names=each)}, tmp_path / each[0]
        labels = [n % 30 for n in range(90)]
        examples = {"label": labels} if form == "columns" else [{"label": n} for n in labels]
        write(examples, directory, features=features, hold_out=hold_out)
        found.append(classes(directory)[1])
    assert found[0] == found[1]


def test_unlabelled_examples_are_not_held_out(tmp_path):
    features = {"label": ClassLabel(names=("a", "b"))}
    examples = [{"label": n % 3 - 1} for n in range(30)]
    write(examples, tmp_path, features=features, hold_out=HoldOut(classes=1))
    train, val = map(set, by_split(tmp_path, "label"))
    assert -1 in train
    assert len(val) == 1
    with pytest.raises(DatasetError, match="2 of 2 classes would be held out"):
        write(examples, tmp_path, "more", features=features, hold_out=HoldOut(classes=2, split="x"))


# One schema and one commit.


def test_features_are_inferred_from_all_examples(tmp_path):
    examples = [{"x": 0.5, "y": [1] * (n % 3), "label": "ab"[n % 2]} for n in range(300)]
    examples[250]["x"] = 2**25 + 1  # not exact in float32
    for hold_out in (FRACTION, HoldOut(classes=1)):
        directory = tmp_path / str(hold_out.classes)
        options = {"label": "label", "memory_limit": 2000}
        written = write(iter(examples), directory, hold_out=hold_out, **options)
        assert written.features["x"] == Tensor("float64")
        assert written.splits["val"].features == written.features
        assert both(directory) == sorted(each["x"] for each in examples)
        check_index(directory)


@pytest.mark.parametrize("stored", ["ClassLabel", "str"])
def test_append_to_both_splits(tmp_path, stored):
    """Class ids of the old records remain, although the splits have other old strings."""
    features = {"x": "int64", "label": "str"} if stored == "str" else None
    options = {"label": "label", "features": features}
    write([{"x": 0, "label": "wren"}], tmp_path, **options)
    write([{"x": 0, "label": "owl"}, {"x": 0, "label": "gull"}], tmp_path, "val", **options)
    written = write(items(200), tmp_path, mode="append", hold_out=FRACTION, **options)
    assert (written.records + written.splits["val"].records) == 203
    counts = defaultdict(int)
    for each in (written, written.splits["val"]):
        for name, count in each.classes.items():
            counts[name] += count
    assert counts == {name: 25 + (name in ("wren", "owl", "gull")) for name in NAMES}
    for split in ("train", "val"):
        check_index(tmp_path, split)
    assert covey.verify(tmp_path).is_valid


def test_overwrite_both_splits_with_other_features(tmp_path):
    write(items(50), tmp_path, label="label", hold_out=FRACTION)
    write([{"y": n} for n in range(50)], tmp_path, mode="overwrite", hold_out=FRACTION)
    assert both(tmp_path, "y") == [*range(50)]
    with pytest.raises(DatasetError, match="existing splits have"):
        write([{"x": 1}], tmp_path, "test", features={"x": "int64"})


def test_overwrite_one_of_the_splits_and_create_the_other(tmp_path):
    write([{"x": 1}], tmp_path, "val")
    write([{"x": n} for n in range(50)], tmp_path, mode="overwrite", hold_out=FRACTION)
    assert both(tmp_path) == [*range(50)]


@pytest.mark.parametrize("split", ["train", "val"])
def test_existing_split_is_not_replaced(tmp_path, split):
    write([{"x": 1}], tmp_path, split)
    before = files(tmp_path)
    with pytest.raises(DatasetExistsError):
        write(iter([]), tmp_path, hold_out=FRACTION)
    assert files(tmp_path) == before


def test_another_writer_of_the_held_out_split(tmp_path):
    other = Staging(tmp_path, "val")
    other.open()
    with pytest.raises(DatasetError, match="another process is writing split 'val'"):
        write(items(50), tmp_path, hold_out=FRACTION)
    other.abort()
    write(items(50), tmp_path, hold_out=FRACTION)

    def examples():
        for key, example in items(50):
            with pytest.raises(DatasetError, match="another process is writing split 'val'"):
                write([example], tmp_path / "new", "val")
            yield key, example

    write(examples(), tmp_path / "new", hold_out=FRACTION)
    assert len(read(tmp_path / "new", "val")) + len(read(tmp_path / "new")) == 50


def test_failure_leaves_neither_split(tmp_path):
    with pytest.raises(DuplicateKeyError):
        write([*items(50), *items(50)], tmp_path / "birds", hold_out=FRACTION)
    assert files(tmp_path) == {}


def test_skipped_examples(tmp_path):
    examples = [{"x": "bad" if n in (7, 30) else n} for n in range(50)]
    written = write(examples, tmp_path, hold_out=FRACTION, on_error="skip")
    assert [each.record for each in written.skipped] == [7, 30]
    assert both(tmp_path) == sorted({*range(50)} - {7, 30})


# Splits that the values of a feature name.

PARTS = ("train", "test", "val")


def parted(count=60):
    """Rows with a column of splits."""
    return [{"x": n, "split": PARTS[n % 7 % 3], "label": NAMES[n % 5]} for n in range(count)]


def as_csv(rows, path):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def as_columns(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def as_parquet(rows, path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(as_columns(rows)), path)
    return path


FORMS = {
    "items": lambda rows, directory: rows,
    "pairs": lambda rows, directory: list(enumerate(rows)),
    "function": lambda rows, directory: partial(iter, rows),
    "columns": lambda rows, directory: as_columns(rows),
    "CSV": lambda rows, directory: as_csv(rows, directory / "birds.csv"),
    "Parquet": lambda rows, directory: as_parquet(rows, directory / "birds.parquet"),
    "list": lambda rows, directory: [partial(iter, rows[:20]), partial(iter, rows[20:])],
}


@pytest.mark.parametrize("form", FORMS)
def test_values_of_a_feature_are_the_splits(tmp_path, form):
    """Each split has the records of a write of its examples alone, in every form."""
    rows = parted()
    examples = FORMS[form](rows, tmp_path)
    written = covey.write(examples, tmp_path / "one", split_by="split", progress=False)
    assert list(written.splits) == ["train", "val", "test"]
    expected = {part: [row for row in rows if row["split"] == part] for part in PARTS}
    for part, own in expected.items():
        assert sorted(column(tmp_path / "one", "x", part)) == [row["x"] for row in own]
        assert {*column(tmp_path / "one", "split", part)} == {part}
        assert sum(written.splits[part].classes.values()) == len(own)
        check_index(tmp_path / "one", part)
    options = {"split_by": "split", "memory_limit": 2000, "workers": 2, "progress": False}
    covey.write(examples, tmp_path / "again" / "one", **options)
    assert files(tmp_path / "again" / "one") == files(tmp_path / "one")


def test_integers_and_class_names_are_names_of_splits(tmp_path):
    rows = [{"fold": n % 3, "kind": n % 2} for n in range(12)]
    features = {"fold": "int64", "kind": ClassLabel(names=("old", "new"))}
    options = {"features": features, "label": "kind", "progress": False}
    for examples in (rows, as_columns(rows)):
        written = covey.write(examples, tmp_path, split_by="fold", mode="overwrite", **options)
        assert list(written.splits) == ["0", "1", "2"]
        written = covey.write(examples, tmp_path, split_by="kind", mode="overwrite", **options)
        assert list(written.splits) == ["new", "old"]


def test_append_and_overwrite_by_a_feature(tmp_path):
    options = {"split_by": "split", "progress": False}
    covey.write(parted(), tmp_path, **options)
    with pytest.raises(DatasetExistsError):
        covey.write(parted(), tmp_path, **options)
    more = [{**row, "x": -1} for row in parted(21)]
    written = covey.write(more, tmp_path, mode="append", **options)
    assert sum(each.records for each in written.splits.values()) == 81
    written = covey.write(more[:1], tmp_path, mode="overwrite", **options)
    assert list(written.splits) == ["train"]
    assert written.kept_splits == ("val", "test")
    assert covey.verify(tmp_path).is_valid


def test_images_of_a_table_are_read_once(tmp_path, monkeypatch):
    gif = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")
    rows = [{"file_name": f"{n}.gif", **row} for n, row in enumerate(parted(9))]
    for row in rows:
        (tmp_path / row["file_name"]).write_bytes(gif)
    as_csv(rows, tmp_path / "metadata.csv")
    read = []
    monkeypatch.setattr(media, "read_file", lambda path, limit: read.append(path) or gif)
    with pytest.raises(FeatureError, match=r"the name of a split is '0\.gif'"):
        covey.write(tmp_path, tmp_path / "out", split_by="file_name", label="label", progress=False)
    assert read == []
    covey.write(tmp_path, tmp_path / "out", split_by="split", label="label", progress=False)
    assert sorted(read) == [str(tmp_path / row["file_name"]) for row in rows]


def faulty(value, name="split"):
    rows = parted(9)
    rows[5] = {**rows[5], name: value}
    return rows


@pytest.mark.parametrize("form", ["items", "columns"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "the value is missing"),
        (None, "the value is missing"),
        (float("nan"), "the value is missing"),
        ("a b", "the name of a split is 'a b'"),
        ("all", "the name of a split is 'all'"),
        (0.5, "the value 0.5 is of type float"),
        (True, "the value True is of type bool"),
        ([1], "is of type list"),
    ],
)
def test_values_that_are_not_splits(tmp_path, form, on_error, value, reason):
    examples = faulty(value) if form == "items" else as_columns(faulty(value))
    with pytest.raises(FeatureError) as caught:
        covey.write(
            examples, tmp_path / "birds", split_by="split", on_error=on_error, progress=False
        )
    assert reason in caught.value.reason
    assert (caught.value.feature, caught.value.example) == ("split", 5)
    assert not (tmp_path / "birds").exists()


def test_default_of_a_missing_split(tmp_path):
    options = {"split_by": "split", "defaults": {"split": "val"}, "progress": False}
    written = covey.write(faulty(None), tmp_path, **options)
    assert {split: each.records for split, each in written.splits.items()} == {
        "train": 4,
        "val": 2,
        "test": 3,
    }


@pytest.mark.parametrize(
    ("examples", "options", "field"),
    [
        (parted(), {"split": "train"}, "allowed"),
        (parted(), {"hold_out": FRACTION}, "allowed"),
        (iter(parted()), {}, "remedy"),
        (parted(), {"split_by": "spilt"}, "allowed"),
        (as_columns(parted()), {"split_by": "spilt"}, "allowed"),
        ([{"split": f"s{n}", "label": n} for n in range(101)], {}, "allowed"),
        (
            SourceSplits({split: partial(Source, "x", "x", parted()) for split in "ab"}),
            {},
            "allowed",
        ),
        ([], {}, "reason"),
    ],
)
def test_write_that_cannot_be_divided_by_a_feature(tmp_path, examples, options, field):
    with pytest.raises(DatasetError) as caught:
        covey.write(
            examples, tmp_path / "out", **{"split_by": "split", "progress": False, **options}
        )
    assert caught.value.option == "split_by"
    assert getattr(caught.value, field)
    assert not (tmp_path / "out").exists()


def test_source_that_changes_between_the_passes(tmp_path):
    passes = iter([[], [], ["train", "test"], ["train", "val"]])

    def examples():
        return iter([{"x": 1, "split": split} for split in next(passes)])

    with pytest.raises(FeatureError, match="the source was changed") as caught:
        covey.write(examples, tmp_path / "out", split_by="split", label=None, progress=False)
    assert (caught.value.feature, caught.value.example) == ("split", 1)


# Errors.


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "hold_out"),
        ({"fraction": 0.5, "classes": 1}, "hold_out"),
        ({"fraction": 0.0}, "hold_out.fraction"),
        ({"fraction": 1}, "hold_out.fraction"),
        ({"fraction": float("nan")}, "hold_out.fraction"),
        ({"classes": 1.5}, "hold_out.classes"),
        ({"classes": 0}, "hold_out.classes"),
        ({"classes": True}, "hold_out.classes"),
        ({"classes": 1, "by": "x"}, "hold_out.by"),
        ({"fraction": 0.5, "seed": 0.5}, "hold_out.seed"),
    ],
    ids=str,
)
def test_invalid_options(options, option):
    with pytest.raises(DatasetError) as caught:
        HoldOut(**options)
    assert caught.value.option == option


def test_invalid_name_of_the_split():
    with pytest.raises(FormatError):
        HoldOut(fraction=0.5, split="a/b")


@pytest.mark.parametrize("form", ["items", "columns"])
@pytest.mark.parametrize(
    ("hold_out", "option", "reason"),
    [
        (HoldOut(fraction=1e-9), "hold_out.fraction", "0 of 20 examples would be held out"),
        (HoldOut(fraction=1 - 1e-9), "hold_out.fraction", "20 of 20 examples would be held out"),
        (HoldOut(classes=8), "hold_out.classes", "8 of 8 classes would be held out"),
        (HoldOut(classes=1e-9), "hold_out.classes", "0 of 8 classes would be held out"),
        (HoldOut(fraction=0.5, by="y"), "hold_out.by", "must be one of 'x', 'label'"),
        (HoldOut(fraction=0.5, by="song"), "hold_out.by", "must be one of 'x', 'label'"),
        (HoldOut(fraction=0.5, split="train"), "hold_out.split", "the name of both splits"),
        ("val", "hold_out", "must be a covey.HoldOut"),
    ],
    ids=str,
)
def test_hold_out_that_does_not_match_the_examples(tmp_path, form, hold_out, option, reason):
    examples = [{**example, "song": 0.5} for _, example in items(20)]
    if form == "columns":
        examples = {name: [each[name] for each in examples] for name in examples[0]}
    with pytest.raises(DatasetError, match=reason) as caught:
        write(examples, tmp_path / "birds", label="label", hold_out=hold_out)
    assert caught.value.option == option
    assert files(tmp_path) == {}


def test_held_out_classes_need_a_label(tmp_path):
    for examples in ([{"x": 1}] * 9, {"x": [1] * 9}):
        with pytest.raises(DatasetError, match="there is no label feature") as caught:
            write(examples, tmp_path / "birds", hold_out=HoldOut(classes=1))
        assert caught.value.option == "hold_out.classes"
