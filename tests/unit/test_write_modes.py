"""covey.write to a directory that has a dataset: other splits, overwrite and append."""

import time

import pytest
from written import (
    about,
    check_index,
    column,
    content,
    files,
    info,
    replaced,
    shard_paths,
    write,
)

import covey
from covey.errors import DatasetError, DatasetExistsError, FeatureError
from covey.filenames import is_version_file

COLUMNS = {"x": [*range(9)], "label": [*"abcabcabc"]}


pytestmark = pytest.mark.usefixtures("no_fsync")


# Another split.


def test_other_splits_are_not_changed(tmp_path):
    write(COLUMNS, tmp_path, label="label", shards=2)
    before, states = files(tmp_path), {path: path.stat() for path in tmp_path.iterdir()}
    write(COLUMNS, tmp_path, "test", shards=2)
    after = files(tmp_path)
    assert {name for name in before if after[name] != before[name]} == {"dataset_info.json"}
    for path, stat in states.items():
        if path.name != "dataset_info.json":
            assert path.stat().st_mtime_ns == stat.st_mtime_ns
            assert path.stat().st_ino == stat.st_ino
    assert [split.name for split in info(tmp_path).splits] == ["train", "test"]
    check_index(tmp_path, "test")


def test_new_classes_of_other_splits(tmp_path, form):
    """Each split has the classes of those before it."""
    for split, labels, names in [
        ("a", ["owl", "wren"], ("owl", "wren")),
        ("b", ["wren", "crow", "owl"], ("owl", "wren", "crow")),
        ("c", ["ant", "crow"], ("owl", "wren", "crow", "ant")),
    ]:
        written = write(form({"label": labels}), tmp_path, split, label="label", shuffle=False)
        assert written.features["label"].names == names
        assert column(tmp_path, "label", split) == [names.index(label) for label in labels]
        assert (tmp_path / "label.labels.txt").read_text().split() == list(names)
    for split in "abc":
        check_index(tmp_path, split)


def test_features_of_other_splits(tmp_path, form):
    write({"x": [1], "y": [2]}, tmp_path)
    before = files(tmp_path)
    for columns, feature in [({"x": ["a"], "y": [2]}, "x"), ({"x": [1]}, "y")]:
        with pytest.raises(FeatureError) as caught:
            write(form(columns), tmp_path, "test")
        assert caught.value.feature == feature
    features = {"x": "float32", "y": "int64"}
    message = "existing splits have .*int64.*features has .*float32"
    with pytest.raises(DatasetError, match=message) as caught:
        write(form({"x": [1], "y": [2]}), tmp_path, "test", features=features)
    assert caught.value.feature == "x"
    assert files(tmp_path) == before


# The same split.


def test_existing_split(tmp_path):
    write([{"x": 1}], tmp_path)
    before = files(tmp_path)
    with pytest.raises(DatasetExistsError, match=r"'train' exists.*overwrite.*append"):
        write([{"x": 2}], tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "options",
    [{"shards": 1}, {"shards": 3}, {"shards": 5}, {"label": "x", "features": {"x": "int32"}}],
    ids=str,
)
def test_overwrite(tmp_path, options):
    """The dataset of a first write, and the files of the replaced version."""
    overwritten, new = tmp_path / "a" / "birds", tmp_path / "b" / "birds"
    write(COLUMNS, overwritten, label="label", shards=3)
    before = files(overwritten)
    columns = {"x": [1, 2, 1, 5, 7]}
    write(columns, overwritten, mode="overwrite", **options)
    write(columns, new, **options)
    assert content(overwritten) == content(new)
    assert replaced(overwritten) == {n: d for n, d in before.items() if is_version_file(n)}
    assert len(files(overwritten)) == len(files(new)) + 1 + len(replaced(overwritten))


def test_replaced_versions_are_deleted_after_the_retention_time(tmp_path, monkeypatch):
    versions, real = [], time.time
    for number in range(4):
        if number == 3:
            monkeypatch.setattr(time, "time", lambda: real() + 120)
        write({"x": [number]}, tmp_path, mode="overwrite", shards=1)
        versions.append({path.name for path in shard_paths(tmp_path)})
        assert {path.name for path in tmp_path.rglob("*.tfrecord-*")} == versions[-1]
        found = {name for name in replaced(tmp_path) if ".tfrecord-" in name}
        assert found == set().union(*(versions[-2:-1] if number == 3 else versions[:-1]))
    assert len(set().union(*versions)) == 4
    check_index(tmp_path)


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_append(tmp_path, form, compression):
    """Old shards are linked to new names, and the compression remains."""
    options = {"label": "label", "shuffle": False}
    first, second = {"x": [0, 1, 2, 3], "label": [*"abca"]}, {"x": [4, 5], "label": [*"db"]}
    write(form(first), tmp_path, shards=2, name="birds", compression=compression, **options)
    before, old = files(tmp_path), [path.read_bytes() for path in shard_paths(tmp_path)]
    written = write(form(second), tmp_path, shards=2, mode="append", **options)
    (split,) = info(tmp_path).splits
    assert [path.name for path in shard_paths(tmp_path)] == [
        f"birds-train.{split.token}.tfrecord-0000{i}-of-00004" for i in range(4)
    ]
    assert replaced(tmp_path) == {n: d for n, d in before.items() if is_version_file(n)}
    assert [path.read_bytes() for path in shard_paths(tmp_path)[:2]] == old
    assert column(tmp_path, "x") == [0, 1, 2, 3, 4, 5]
    assert written.classes == {"a": 2, "b": 2, "c": 1, "d": 1}
    assert (written.records, len(written.shards)) == (6, 4)
    check_index(tmp_path)
    with pytest.raises(DatasetError) as caught:
        write(form(second), tmp_path, mode="append", compression="ZLIB")
    assert (caught.value.option, caught.value.found) == ("compression", "ZLIB")


def test_append_to_an_empty_directory(tmp_path):
    write(COLUMNS, tmp_path / "a" / "birds", label="label", mode="append")
    write(COLUMNS, tmp_path / "b" / "birds", label="label")
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_append_with_another_label(tmp_path):
    write([{"x": 1, "y": 5}], tmp_path)
    assert write([{"x": 2, "y": 5}], tmp_path, mode="append", label="x").classes == {1: 1, 2: 1}
    check_index(tmp_path)


def test_append_to_string_labels(tmp_path, form):
    write({"label": ["b"]}, tmp_path, label="label", features={"label": "str"})
    assert write(form({"label": ["a"]}), tmp_path, mode="append").classes == {"b": 1, "a": 1}
    assert about(tmp_path).label_strings == ("b", "a")
    check_index(tmp_path)


@pytest.mark.parametrize("missing", ["index.npy", "index.json", "by_class.npy", "classes.npy"])
def test_append_without_an_index(tmp_path, missing):
    write(COLUMNS, tmp_path, label="label")
    (tmp_path / f"{info(tmp_path).name}-train.{missing}").unlink()
    write(COLUMNS, tmp_path, mode="append", label="label")
    assert sorted(column(tmp_path, "x")) == sorted([*range(9), *range(9)])
    check_index(tmp_path)


def test_append_after_a_shard_was_replaced(tmp_path):
    """The index of the old shards is rebuilt."""
    write({"x": [1, 2]}, tmp_path / "birds", label="x")
    write({"x": [7, 7, 9]}, tmp_path / "other" / "birds", label="x")
    (path,) = shard_paths(tmp_path / "birds")
    path.write_bytes(shard_paths(tmp_path / "other" / "birds")[0].read_bytes())
    written = write({"x": [5]}, tmp_path / "birds", mode="append")
    assert written.classes == {5: 1, 7: 2, 9: 1}
    check_index(tmp_path / "birds")


def test_shards_in_a_subdirectory(tmp_path):
    write([{"x": 1}], tmp_path)
    (path,) = shard_paths(tmp_path)
    (tmp_path / "shards").mkdir()
    path.rename(tmp_path / "shards" / path.name)
    text = (tmp_path / "dataset_info.json").read_text()
    (tmp_path / "dataset_info.json").write_text(text.replace('"{DATASET}', '"shards/{DATASET}'))
    assert column(tmp_path, "x") == [1]
    write([{"x": 2}], tmp_path, mode="overwrite")
    assert column(tmp_path, "x") == [2]
    write([{"x": 3}], tmp_path, "test")
    assert covey.verify(tmp_path).is_valid
    assert [path.name for path in tmp_path.glob(".covey-*")] == [".covey-old"]
