"""covey.open: what opens, which records a split string means, and how examples are had."""

import json
import os
import shutil
import sys

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened, put, put_numbers
from schemas import datasets, same
from written import records, shard_paths, tidy, write

import covey
from covey import CoveyError, Features, Image, Ragged, Sparse, Tensor
from covey.arrays import RaggedArray, SparseArray
from covey.errors import (
    CorruptRecordError,
    DatasetError,
    ExampleError,
    FeatureError,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def birds(tmp_path):
    """A dataset of covey's: 20 train examples in three shards, 7 test examples in one."""
    path = tmp_path / "birds"
    train = [{"x": n, "species": ["owl", "wren", "jay"][n % 3]} for n in range(20)]
    test = [{"x": n, "species": ["wren", "jay"][n % 2]} for n in range(20, 27)]
    write(train, path, label="species", shuffle=False, shards=3)
    write(test, path, "test", label="species", shuffle=False)
    return path


# What opens.


@pytest.mark.parametrize(
    "spell", [str, lambda path: path, lambda path: f"{path}/", "file://{}".format]
)
def test_a_directory_of_covey(birds, spell):
    assert numbers(opened(spell(birds), split="train")) == list(range(20))


def test_the_description_of_a_dataset_stands_for_it(birds):
    assert numbers(opened(birds / "dataset_info.json", split="test")) == list(range(20, 27))


def test_a_relative_path_stays_what_it_was(birds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ds = opened("birds", split="train")
    files = opened("birds/birds-test.tfrecord-*")
    monkeypatch.chdir("/")
    assert numbers(ds) == list(range(20))
    assert numbers(files) == list(range(20, 27))


def test_of_several_versions_the_newest(tmp_path):
    for number, version in enumerate(["1.0.0", "10.0.0", "9.2.0", "old"]):
        write([{"x": number}], tmp_path / "birds" / version)
    assert numbers(opened(tmp_path / "birds")) == [1]
    assert numbers(opened(tmp_path / "birds/9.2.0")) == [2]


def test_a_directory_of_several_datasets_is_none_of_them(tmp_path):
    for number, config in enumerate(["large", "small"]):
        write(
            [{"x": number, "label": config}], tmp_path / "birds" / config / "1.0.0", label="label"
        )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DatasetError, match=r"large.*small"):
        opened(tmp_path / "birds")
    assert sorted(tmp_path.rglob("*")) == before
    assert numbers(opened(tmp_path / "birds/small")) == [1]


def test_names_that_look_like_patterns(tmp_path):
    directory = tmp_path / "a [1]*"
    write([{"x": 3, "label": "owl"}], directory / "1.0.0", label="label")
    ds = opened(directory)
    assert (numbers(ds), ds.classes.names) == ([3], ("owl",))
    put_numbers(directory / "q?.tfrecord", [5])
    assert numbers(opened(directory / "q?.tfrecord")) == [5]


@pytest.mark.parametrize(
    "name", ["x.tfrec", "x.tfrecord", "x.tfrecords", "x.TFRecord", "x.tfrecord-00000-of-00001"]
)
def test_names_of_record_files(directory, name):
    put_numbers(directory / name, range(4))
    (directory / "README").write_text("not records")
    assert numbers(opened(directory)) == numbers(opened(directory / name)) == [0, 1, 2, 3]


def test_names_that_say_nothing(directory):
    put_numbers(directory / "a", range(4))
    put_numbers(directory / "b.bin", range(4, 6))
    (directory / "notes").write_text("not records at all")
    assert numbers(opened(directory)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "name",
    [
        "é ü.tfrecord",
        "a\nb.tfrecord",
        "a\\b.tfrecord",
        "%41.tfrecord",
        os.fsdecode(b"\xff.tfrecord"),
    ],
)
def test_odd_names(directory, name):
    put_numbers(directory / name, range(4))
    for path in (directory, directory / name, [directory / name]):
        assert numbers(opened(path)) == [0, 1, 2, 3]
        assert numbers(opened(path)) == [0, 1, 2, 3]  # by the index, if it was kept


def test_files_in_directories_in_the_order_of_their_names(directory):
    for number, name in enumerate(["b/z.tfrecord", "a.tfrecord", "b/c/d.tfrecord", "c.tfrec"]):
        put_numbers(directory / name, [number])
    assert numbers(opened(directory)) == [1, 2, 0, 3]


def test_files_of_a_pattern(directory):
    for number, name in enumerate(["b/z.tfrecord", "a.tfrecord", "b/c/d.tfrecord", "c.tfrec"]):
        put_numbers(directory / name, [number])
    assert numbers(opened(directory / "*.tfrec*")) == [1, 3]
    assert numbers(opened(f"{directory}/**/*.tfrecord")) == [1, 2, 0]
    assert numbers(opened(f"{directory}/[bc]/?.tfrecord")) == [0]


def test_a_list_of_files_in_its_own_order(directory):
    paths = [put_numbers(directory / name, [n]) for n, name in enumerate(["b/x", "a/x", "a/b/x"])]
    assert numbers(opened(paths)) == [0, 1, 2]
    assert numbers(opened([str(path) for path in reversed(paths)])) == [2, 1, 0]
    assert numbers(opened(iter(paths[:1]))) == [0]


def test_lists_do_not_share_an_index_with_other_lists(directory):
    paths = [put_numbers(directory / f"{n}.tfrecord", range(n, n + 3)) for n in (0, 3, 6)]
    chosen = [[0], [0, 1], [1, 0], [0, 1, 2], [2], [1, 2]]
    for _ in range(2):
        for which in chosen:
            expected = [3 * n + k for n in which for k in range(3)]
            assert numbers(opened([paths[n] for n in which])) == expected
        assert numbers(opened(directory)) == list(range(9))


def test_what_lies_beside_records_is_left_alone(directory):
    put_numbers(directory / "a.tfrecord", [1, 2])
    for name in ("a.tfrecord.idx", "a.idx", "a.json", "a.txt", "a.npy", ".hidden.tfrecord"):
        (directory / name).write_bytes(b"0 30\n30 30\n")
    (directory / ".covey-old.partial").mkdir()
    (directory / ".covey-old.partial/x.tfrecord").write_bytes(b"junk")
    assert numbers(opened(directory)) == numbers(opened(directory / "*")) == [1, 2]


def test_links(directory, tmp_path):
    put_numbers(tmp_path / "elsewhere/x", [1, 2])
    (directory / "a.tfrecord").symlink_to(tmp_path / "elsewhere/x")
    (directory / "again").symlink_to(directory)
    (tmp_path / "link").symlink_to(directory)
    assert numbers(opened(tmp_path / "link")) == [1, 2]


def test_empty_files(directory):
    put_numbers(directory / "a.tfrecord", [])
    ds = opened(directory)
    assert (len(ds), list(ds), ds[:], ds.raw[:], dict(ds.features)) == (0, [], {}, [], {})
    put_numbers(directory / "b.tfrecord", [1, 2])
    put_numbers(directory / "c.tfrecord", [])
    put_numbers(directory / "d.tfrecord", [3])
    assert numbers(opened(directory)) == [1, 2, 3]
    with pytest.raises(IndexError):
        ds[0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "nowhere: there is no such file or directory"),
        ("nowhere/*.tfrecord", "no file matches this pattern"),
        ("*.gz", "no file matches this pattern"),
        ("empty", "neither a dataset .* nor a TFRecord file"),
        (["a.tfrecord", "b.tfrecord"], "b.tfrecord: there is no such file"),
        (["a.tfrecord", "a.tfrecord"], "a.tfrecord: the file is listed twice"),
        (["a.tfrecord", "empty"], "empty: .*is a directory"),
        ([], "the list of files to open is empty"),
    ],
)
def test_nothing_to_open(directory, monkeypatch, path, message):
    monkeypatch.chdir(directory)
    (directory / "empty").mkdir()
    put_numbers(directory / "a.tfrecord", [1])
    with pytest.raises(DatasetError, match=message):
        opened(path)


@pytest.mark.parametrize("path", [None, 3, [3], ""])
def test_no_path(directory, monkeypatch, path):
    monkeypatch.chdir(directory)
    put_numbers(directory / "a.tfrecord", [1])
    with pytest.raises((TypeError, CoveyError)):
        opened(path)


def test_a_missing_shard_is_named(birds):
    path = shard_paths(birds)[1]
    path.unlink()
    with pytest.raises(DatasetError, match=f"{path.name}: the shard is missing"):
        opened(birds, split="train")
    assert len(opened(birds, split="test")) == 7


def test_files_that_are_no_records(directory):
    (directory / "a.tfrecord").write_bytes(b"this is some text, and not a TFRecord file")
    with pytest.raises(CorruptRecordError, match=r"a.tfrecord: record 0 at byte 0"):
        opened(directory)


def test_records_that_are_no_examples(directory):
    with covey.RecordWriter(directory / "a.tfrecord") as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(ExampleError, match=r"a.tfrecord: record 0: .*not a tf.train.Example"):
        opened(directory)


# Splits.


def test_splits_that_names_of_files_tell(directory):
    for name, part in {"train-0": [0, 1], "train-1": [2], "x_test": [3], "val.0": [4]}.items():
        put_numbers(directory / f"{name}.tfrecord", part)
    assert numbers(opened(directory, split="train")) == [0, 1, 2]
    assert numbers(opened(directory, split="test")) == [3]
    assert numbers(opened(directory, split="val+train[1:]")) == [4, 1, 2]
    assert sorted(numbers(opened(directory, split="all"))) == [0, 1, 2, 3, 4]
    with pytest.raises(DatasetError, match=r"splits .*'train'.*pass split="):
        opened(directory)


def test_files_without_splits_can_be_cut_all_the_same(directory):
    put_numbers(directory / "a.tfrecord", range(6))
    put_numbers(directory / "b.tfrecord", range(6, 10))
    assert numbers(opened(directory, split="all")) == list(range(10))
    assert numbers(opened(directory, split="all[:80%]")) == list(range(8))
    assert numbers(opened(directory, split="all[-2:]")) == [8, 9]
    assert numbers(opened(directory, split="all[1shard]")) == [6, 7, 8, 9]


def test_the_only_split_need_not_be_named(directory):
    put_numbers(directory / "train-0.tfrecord", range(3))
    assert numbers(opened(directory)) == numbers(opened(directory, split="train")) == [0, 1, 2]


@pytest.mark.parametrize("split", ["nix", "train[:200]", "train[", "", 3, ["train"]])
def test_no_such_split(birds, split):
    with pytest.raises(DatasetError, match="split"):
        opened(birds, split=split)


def test_a_split_that_is_not_asked_for_is_not_touched(directory):
    put_numbers(directory / "train.tfrecord", range(3))
    (directory / "test.tfrecord").write_bytes(b"damaged")
    assert numbers(opened(directory, split="train")) == [0, 1, 2]


def test_an_empty_split_fits_any_other(directory):
    put_numbers(directory / "train.tfrecord", range(3))
    put_numbers(directory / "test.tfrecord", [])
    for split in ("train+test", "test+train"):
        ds = opened(directory, split=split)
        assert (numbers(ds), ds.labels.tolist()) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("lengths", [[], ["0"]])
def test_a_split_without_records(birds, lengths):
    path = birds / "dataset_info.json"
    content = json.loads(path.read_text())
    template = content["splits"][0]["filepathTemplate"]
    empty = {"name": "none", "shardLengths": lengths, "numBytes": "0", "filepathTemplate": template}
    content["splits"].append(empty)
    path.write_text(json.dumps(content))
    if lengths:
        (birds / "birds-none.tfrecord-00000-of-00001").write_bytes(b"")
    ds = opened(birds, split="none")
    assert (len(ds), list(ds), ds.raw[:], len(ds.classes), ds.labels.tolist()) == (0, [], [], 0, [])
    assert {name: column.shape for name, column in ds[:].items()} == {"x": (0,), "species": (0,)}
    joined = opened(birds, split="none+test")
    assert (numbers(joined), len(joined.where(label="jay"))) == (list(range(20, 27)), 3)


def test_splits_whose_features_differ_in_length(directory):
    kind = {"v": Tensor("int64", (None,))}
    put(directory / "train.tfrecord", [{"v": [1, 2]}, {"v": [3, 4]}], kind)
    put(directory / "test.tfrecord", [{"v": [5, 6, 7]}], kind)
    ds = opened(directory, split="train+test")
    assert ds[:]["v"].tolist() == [[1, 2], [3, 4], [5, 6, 7]]
    assert opened(directory, split="train")[:]["v"].shape == (2, 2)


def test_splits_with_incompatible_features(directory):
    put(directory / "train.tfrecord", [{"a": 1}], {"a": "int64"})
    put(directory / "test.tfrecord", [{"b": 1}], {"b": "int64"})
    with pytest.raises(DatasetError, match="the splits have different features") as caught:
        opened(directory, split="train+test")
    assert (caught.value.path, caught.value.feature) == (str(directory), "a")
    assert "features=" in caught.value.remedy
    put(directory / "val.tfrecord", [{"a": 1.5}], {"a": "float32"})
    with pytest.raises(DatasetError, match=r"int64.* in one schema and .*float32") as caught:
        opened(directory, split="train+val")
    assert caught.value.feature == "a"


SPLITS = {"train": list(range(20)), "test": list(range(20, 27))}
bounds = st.one_of(st.just(""), st.integers(-7, 7).map(str))
terms = st.one_of(
    st.sampled_from(["train", "test", "train[:80%]", "test[50%:]", "train[1shard]"]),
    st.builds("{}[{}:{}]".format, st.sampled_from(list(SPLITS)), bounds, st.integers(-7, 7)),
)
ids = st.integers(-30, 30)
keys = st.one_of(
    ids,
    st.builds(slice, *[st.one_of(st.none(), ids)] * 2, st.sampled_from([None, 1, 2, -1, -3])),
    st.lists(ids, max_size=6),
)


@pytest.fixture(scope="module", params=[None, "GZIP"])
def prepared(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("prepared") / "birds"
    for split, part in SPLITS.items():
        examples = [{"x": n, "label": n % 3} for n in part]
        shards = 3 if split == "train" else 1
        write(examples, path, split, label="label", shuffle=False, shards=shards,
              compression=request.param)  # fmt: skip
    return path


def expected_numbers(spec):
    """Return the numbers that a split string selects, computed with slices of lists."""
    found = []
    for term in spec.split("+"):
        name, _, selector = term.rstrip("]").partition("[")
        part = SPLITS[name]
        match selector:
            case "":
                found += part
            case ":80%":
                found += part[: round(len(part) * 0.8)]
            case "50%:":
                found += part[round(len(part) * 0.5) :]
            case "1shard":
                found += part[6:13]
            case _:
                begin, end = (int(each) if each else None for each in selector.split(":"))
                found += part[begin:end]
    return found


def chosen(values, key):
    """Return the values at a key of `Dataset.__getitem__`, computed with a list."""
    if isinstance(key, list):
        return [values[each] for each in key]
    return values[key]


@settings(max_examples=150)
@given(st.lists(terms, min_size=1, max_size=3).map("+".join), st.lists(keys, max_size=4))
def test_splits_and_keys_select_the_same_records_as_lists(prepared, spec, tried):
    values = expected_numbers(spec)
    with opened(prepared, split=spec) as ds:
        assert [each["x"] for each in ds] == values
        assert len(ds) == len(values)
        assert ds.labels.tolist() == [each % 3 for each in values]
        for key in tried:
            try:
                expected = chosen(values, key)
            except IndexError:
                given = key if isinstance(key, list) else [key]
                wrong = next(each for each in given if not -len(values) <= each < len(values))
                message = f"record id {wrong} is out of range; .* {len(values)}$"
                for read in (ds.__getitem__, ds.raw.__getitem__, ds.select):
                    with pytest.raises(IndexError, match=message):
                        read(key)
                continue
            assert ds[key]["x"].tolist() == expected
            assert numbers(ds.select(key)) == (
                expected if isinstance(expected, list) else [expected]
            )


# Access.


@pytest.fixture
def ten(directory):
    put_numbers(directory / "a.tfrecord", range(6))
    put_numbers(directory / "b.tfrecord", range(6, 10))
    return opened(directory)


class Three:
    def __index__(self):
        return 3


@pytest.mark.parametrize(
    "key",
    [3, -7, np.int64(3), np.uint8(3), np.int8(-7), np.uint64(3), np.array(3), Three()],
    ids=lambda key: type(key).__name__,
)
def test_one_example(ten, key):
    assert tidy(ten[key]) == {"x": 3, "label": 0}
    assert ten.raw[key] == ten.raw[3]
    assert isinstance(ten.raw[key], bytes)


MASK = [n in (2, 5) for n in range(10)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (slice(2, 5), [2, 3, 4]),
        (slice(None, None, -3), [9, 6, 3, 0]),
        (slice(np.int64(2), np.int8(-6)), [2, 3]),
        (slice(20, 30), []),
        ([5, 3, 5], [5, 3, 5]),
        ((5, 3), [5, 3]),
        (range(8, 10), [8, 9]),
        (np.array([5, -1], np.int8), [5, 9]),
        (np.array([5, 3, 1, 0], np.uint64)[::2], [5, 1]),
        ([], []),
        (np.array([]), []),
        (MASK, [2, 5]),
        (np.array(MASK), [2, 5]),
        ([False] * 10, []),
    ],
    ids=str,
)
def test_many_examples(ten, key, expected):
    columns = ten[key]
    assert (columns["x"].tolist(), columns["x"].dtype) == (expected, np.int64)
    assert ten.raw[key] == [ten.raw[n] for n in expected]
    assert numbers(ten.select(key)) == expected


@pytest.mark.parametrize(
    "key",
    [10, -11, 2**63, -(2**63), 2**70, -(2**70), np.uint64(2**63), [0, 10], [-11], [2**63], [2**70],
     MASK[1:], np.ones((1, 10), bool), [True, False]],
    ids=str,
)  # fmt: skip
def test_no_such_record(ten, key):
    for broken in (ten, ten.raw):
        with pytest.raises(IndexError):
            broken[key]
    with pytest.raises(IndexError):
        ten.select(key)


@pytest.mark.parametrize(
    "key",
    [1.0, "1", b"1", None, [None], [1.5], ["1"], {1}, {1: 1}, [[1]], [[1], [1, 2]],
     np.ones((1, 1), int),
     np.float64(1), ..., (slice(1), 2)],
    ids=str,
)  # fmt: skip
def test_no_key(ten, key):
    with pytest.raises(TypeError):
        ten[key]
    with pytest.raises(TypeError):
        ten.raw[key]


def test_one_truth_value_is_no_number(ten):
    for key in (True, np.bool_(False)):
        with pytest.raises((IndexError, TypeError)):
            ten[key]


def test_going_through_all(ten):
    assert [each["x"] for each in ten] == list(range(10))
    assert [each["x"] for each in reversed(ten)] == list(range(9, -1, -1))
    assert list(ten.raw) == [ten.raw[n] for n in range(10)]
    assert len(ten.raw) == 10
    first, second = iter(ten), iter(ten)
    assert (next(first)["x"], next(first)["x"], next(second)["x"]) == (0, 1, 0)


def test_going_through_more_than_are_decoded_at_once(directory):
    put_numbers(directory / "a.tfrecord", range(1000))
    ds = opened(directory)
    assert [each["x"] for each in ds] == list(range(1000))
    assert [ds.features.decode(each)["x"] for each in ds.raw] == list(range(1000))


def test_raw_is_what_is_stored(birds):
    ds = opened(birds, split="train")
    assert ds.raw[:] == records(birds)
    assert ds.raw[[5, -1]] == [records(birds)[5], records(birds)[-1]]


def test_columns(birds):
    ds = opened(birds, split="train[:4]")
    assert tidy(ds.columns()) == {"x": [0, 1, 2, 3], "species": [1, 2, 0, 1]}
    assert tidy(ds.columns(["species"])) == tidy(ds.columns("species")) == {"species": [1, 2, 0, 1]}
    with pytest.raises((FeatureError, KeyError), match="nix"):
        ds.columns(["nix"])


def test_columns_do_not_touch_the_bytes_of_others(directory):
    good, bad = Features({"a": "int64", "b": "int64"}), Features({"a": "int64", "b": "str"})
    with covey.RecordWriter(directory / "x.tfrecord") as writer:
        writer.write(good.encode({"a": 1, "b": 2}))
        writer.write(bad.encode({"a": 3, "b": "text"}))
    ds = opened(directory, features=good)
    assert ds.columns(["a"])["a"].tolist() == [1, 3]
    with pytest.raises(ExampleError, match=r"x.tfrecord: record 1 .*feature 'b'"):
        ds.columns()


def test_choosing_again_and_again(birds):
    ds = opened(birds, split="test+train[5:]")
    some = ds.select([3, 1, 20, 1, -1])
    assert numbers(some) == [23, 21, 18, 21, 19]
    assert numbers(some.select([0, -1])) == [23, 19]
    assert numbers(some.select(slice(None, None, -1)), [0, 1]) == [19, 21]
    assert numbers(some.where(label="jay")) == [23, 21, 21]
    assert some.labels.tolist() == [0, 0, 1, 0, 2]
    assert (some.classes.names, some.classes.counts.tolist()) == (("jay", "owl", "wren"), [3, 1, 1])
    assert numbers(ds.select(4)) == [24]
    assert numbers(ds.select([])) == []


def test_shapes_of_what_is_said(birds):
    ds = opened(birds, split="train")
    assert repr(ds) == "<covey.Dataset: 20 examples of x, species, 3 classes of 'species'>"
    assert repr(ds.classes) == "<3 classes, 6 to 7 records each>"
    assert list(ds.features) == ["x", "species"]


@pytest.mark.parametrize("options", [{}, {"mmap": False}, {"verify": False}, {"threads": 1}])
@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_every_way_to_read(tmp_path, compression, options):
    examples = [{"x": n, "label": n % 3, "pad": "p" * (n % 50)} for n in range(500)]
    write(examples, tmp_path, shards=3, shuffle=False, compression=compression, label="label")
    ds = opened(tmp_path, **options)
    mixed = np.random.default_rng(0).integers(0, 500, 200)
    assert numbers(ds, mixed) == mixed.tolist()
    assert ds[mixed]["pad"].tolist() == ["p" * (n % 50) for n in mixed.tolist()]
    assert ds.raw[mixed] == [records(tmp_path)[n] for n in mixed]
    assert numbers(ds.where(label=1)) == list(range(1, 500, 3))
    assert tidy(ds[7]) == {"x": 7, "label": 1, "pad": "p" * 7}


def test_splits_of_different_compression(tmp_path):
    path = tmp_path / "birds"
    for n, compression in enumerate([None, "GZIP", "ZLIB"]):
        examples = [{"x": 10 * n + k, "label": k} for k in range(10)]
        write(examples, path, f"s{n}", label="label", shuffle=False, compression=compression)
    ds = opened(path, split="s1[5:]+s0+s2[:3]+s1[:2]")
    assert numbers(ds) == [*range(15, 20), *range(10), *range(20, 23), 10, 11]
    assert numbers(ds, [-1, 0, 6, 16]) == [11, 15, 1, 21]
    assert ds.labels.tolist() == [each % 10 for each in numbers(ds)]


# Features.


@settings(max_examples=40)
@given(datasets(odd=True), st.sampled_from([None, "GZIP"]))
def test_any_features(tmp_path_factory, dataset, compression):
    features, examples = dataset
    directory = tmp_path_factory.mktemp("any")
    write(examples, directory, features=features, shuffle=False, compression=compression, shards=2)
    with opened(directory) as ds:
        assert ds.features == features
        stored = [features.decode(record) for record in records(directory)]
        columns = ds[:]
        for row, expected in enumerate(stored):
            assert agree(tidy(ds[row]), tidy(expected))
            assert agree(tidy(row_of(columns, row)), tidy(expected))
    shutil.rmtree(directory)


def agree(found, expected):
    if isinstance(found, dict):
        return set(found) == set(expected) and all(agree(found[k], expected[k]) for k in found)
    return same(found, expected)


def row_of(column, row):
    return (
        {k: row_of(v, row) for k, v in column.items()} if isinstance(column, dict) else column[row]
    )


def test_nested_ragged_and_sparse(tmp_path):
    features = {
        "meta": {"place": {"lat": "float32"}, "tags": Tensor("str", (None,))},
        "songs": Ragged("int64", 2),
        "grid": Sparse("float32", (2, 3)),
    }
    grid = np.array([[0, 0, 1.5], [0, 2, 0]], np.float32)
    examples = [
        {
            "meta": {"place": {"lat": n + 0.5}, "tags": ["a"] * n},
            "songs": [[1] * k for k in range(n)],
            "grid": grid * n,
        }
        for n in range(4)
    ]
    write(examples, tmp_path, features=features, shuffle=False)
    ds = opened(tmp_path)
    assert ds[2]["meta"]["place"]["lat"] == 2.5
    assert ds[:]["meta"]["tags"].tolist() == [[], ["a"], ["a", "a"], ["a", "a", "a"]]
    assert ds[[3, 0]]["songs"].tolist() == [[[], [1], [1, 1]], []]
    assert isinstance(ds[:]["songs"], RaggedArray)
    assert isinstance(ds[1]["grid"], SparseArray)
    assert (ds[2]["grid"].to_dense() == grid * 2).all()
    assert list(ds.columns(["meta/place/lat"])) == ["meta"]


def test_names_with_slashes_that_nest_nothing(directory):
    features = {"image/encoded": "bytes", "image/class/label": "int64", "image/class/text": "str"}
    example = {"image/encoded": b"x", "image/class/label": 3, "image/class/text": "owl"}
    put(directory / "a.tfrecord", [example], features)
    ds = opened(directory, label="image/class/text")
    assert tidy(ds[0]) == {**example, "image/class/text": b"owl"}
    assert (ds.classes.names, ds.where(label="owl")[0]["image/encoded"]) == (("owl",), b"x")
    assert ds.columns(["image/class/label"])["image/class/label"].tolist() == [3]


def test_features_that_are_asked_for(directory):
    put(
        directory / "a.tfrecord",
        [{"x": [1, 2, 3, 4], "y": "é"}],
        {"x": Tensor("int64", (4,)), "y": "str"},
    )
    ds = opened(directory, features={"x": Tensor("int8", (2, 2)), "y": "str"})
    assert (ds[0]["x"].tolist(), ds[0]["x"].dtype, ds[0]["y"]) == ([[1, 2], [3, 4]], np.int8, "é")
    assert tidy(opened(directory)[0]) == {"x": [1, 2, 3, 4], "y": "é".encode()}
    assert tidy(opened(directory, features={"y": "bytes"})[0]) == {"y": "é".encode()}
    assert tidy(opened(directory)[0]) == {"x": [1, 2, 3, 4], "y": "é".encode()}


def test_features_that_do_not_match_the_records(directory):
    put_numbers(directory / "a.tfrecord", range(3))
    ds = opened(directory, features={"x": "str"})
    with pytest.raises(ExampleError, match="int64 list, expected a bytes list") as caught:
        ds[1]
    error = caught.value
    assert (error.path, error.record, error.feature) == (str(directory / "a.tfrecord"), 1, "x")
    with pytest.raises(FeatureError):
        opened(directory, features={"x": "no such type"})


def test_the_features_of_a_dataset_can_be_fewer(birds):
    ds = opened(birds, split="train", features={"x": "int64"})
    assert tidy(ds[4]) == {"x": 4}
    assert ds.labels.tolist() == [(n + 1) % 3 for n in range(20)]
    assert numbers(ds.where(label="owl"), slice(3)) == [0, 3, 6]


# Images.


def draw(n, shape=(4, 5, 3), dtype=np.uint8):
    return np.random.default_rng(n).integers(0, np.iinfo(dtype).max, shape, dtype)


def test_images_stay_encoded_unless_asked_for(tmp_path):
    write(
        [{"image": draw(n)} for n in range(3)],
        tmp_path,
        features={"image": Image((4, 5, 3))},
        shuffle=False,
    )
    assert opened(tmp_path)[0]["image"].startswith(b"\x89PNG")
    ds = opened(tmp_path, decode_images=True)
    assert (ds[1]["image"] == draw(1)).all()
    assert ds[:]["image"].shape == (3, 4, 5, 3)
    assert all((each["image"] == draw(n)).all() for n, each in enumerate(ds))
    assert ds[[]]["image"].shape == (0, 4, 5, 3)
    assert ds.raw[0] == opened(tmp_path).raw[0]
    assert ds.columns("image")["image"].dtype == np.uint8
    assert (ds.select([2])[0]["image"] == draw(2)).all()


def test_images_of_many_shapes(tmp_path):
    images = [draw(n, (n + 1, 3, channels)) for n, channels in enumerate([1, 3, 4, 1])]
    write(
        [{"image": each} for each in images], tmp_path, features={"image": Image()}, shuffle=False
    )
    ds = opened(tmp_path, decode_images=True)
    found = ds[:]["image"]
    assert [each.shape for each in found] == [each.shape for each in images]
    assert all((a == b).all() for a, b in zip(found, images, strict=True))
    assert (ds[2]["image"] == images[2]).all()
    assert ds[[0, 0]]["image"].shape == (2, 1, 3, 1)


def test_nested_images_of_16_bits(tmp_path):
    images = [draw(n, (2, 3, 1), np.uint16) for n in range(2)]
    features = {"a": {"b": Image((None, None, 1), "uint16"), "c": "int64"}}
    write(
        [{"a": {"b": each, "c": 1}} for each in images], tmp_path, features=features, shuffle=False
    )
    found = opened(tmp_path, decode_images=True)[:]["a"]
    assert (found["b"] == np.stack(images)).all()
    assert found["c"].tolist() == [1, 1]


def test_an_image_that_is_none_is_named(tmp_path):
    features = {"image": Image()}
    write([{"image": draw(0)}, {"image": b"no image"}], tmp_path, features=features, shuffle=False)
    ds = opened(tmp_path, decode_images=True)
    assert ds[0]["image"].shape == (4, 5, 3)
    with pytest.raises(CoveyError, match=r"record 1.*'image'|'image'.*record 1"):
        ds[:]


def test_without_pillow(tmp_path, monkeypatch):
    write([{"image": draw(0)}], tmp_path, features={"image": Image()})
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert opened(tmp_path)[0]["image"].startswith(b"\x89PNG")
    with pytest.raises(FeatureError, match=r"Pillow.* is not installed") as caught:
        opened(tmp_path, decode_images=True)[0]
    assert "pip install 'covey[images]'" in str(caught.value)


# Damage.


@pytest.mark.parametrize("mmap", [True, False])
def test_a_damaged_record_is_named(tmp_path, mmap):
    write([{"x": n, "pad": b"p" * 1000} for n in range(50)], tmp_path, shuffle=False)
    (path,) = shard_paths(tmp_path)
    content = bytearray(path.read_bytes())
    offset = 25 * (len(content) // 50)
    at = content.index(b"p" * 1000, offset)
    content[at + 500] ^= 1
    path.write_bytes(content)
    ds = opened(tmp_path, mmap=mmap)
    assert numbers(ds, [24, 26]) == [24, 26]
    for broken in (ds, ds.raw):
        with pytest.raises(CorruptRecordError) as caught:
            broken[[24, 25]]
        assert (caught.value.path, caught.value.record) == (str(path), 25)
        assert content[caught.value.offset : at].count(b"pad") == 1
    assert opened(tmp_path, mmap=mmap, verify=False)[25]["x"] == 25


def test_damaged_records_can_be_left_out(directory):
    path = put_numbers(directory / "a.tfrecord", range(6))
    put_numbers(directory / "b.tfrecord", range(6, 8))
    size = path.stat().st_size // 6
    for damaged, expected in [(0, [1, 2, 3, 4, 5, 6, 7]), (3, [1, 2, 4, 5, 6, 7])]:
        content = bytearray(path.read_bytes())
        content[damaged * size + 14] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptRecordError, match=r"a.tfrecord: record 0.*on_error='skip'"):
            opened(directory)
        with pytest.warns(covey.errors.SkippedRecordsWarning):
            ds = opened(directory, on_error="skip")
        assert numbers(ds) == expected
        assert ds.labels.tolist() == [n % 3 for n in expected]
        assert not list(directory.glob("covey-*"))


def test_on_error_has_two_values(directory):
    with pytest.raises(ValueError, match="on_error is 'ignore'"):
        opened(directory, on_error="ignore")


def test_how_far_indexing_is(directory, capsys):
    put_numbers(directory / "a.tfrecord", range(6))
    covey.open(directory, progress=True)
    assert "indexing" in capsys.readouterr().err
    covey.open(directory, progress=True)
    assert capsys.readouterr().err == ""


def test_wrong_record_counts_in_dataset_info(birds):
    path = birds / "dataset_info.json"
    path.write_text(path.read_text().replace('"7"', '"6"'))
    with pytest.raises(DatasetError, match=r"the shard has 7 records, .* declares 6") as caught:
        opened(birds, split="train+test")
    assert caught.value.path == str(birds / "birds-train.tfrecord-00001-of-00003")


def test_pictures_in_other_formats_are_decoded(directory, tmp_path):
    PIL.Image.fromarray(draw(1)).save(tmp_path / "x.bmp")
    put(directory / "a.tfrecord", [{"i": (tmp_path / "x.bmp").read_bytes()}], {"i": "bytes"})
    ds = opened(directory, features={"i": Image()}, decode_images=True)
    assert (ds[0]["i"] == draw(1)).all()
