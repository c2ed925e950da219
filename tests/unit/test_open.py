"""covey.open: paths, split strings, keys, features and corrupt records."""

import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opened import numbers, opened, put, put_numbers
from schemas import agree, datasets
from written import records, shard_paths, tidy, write

import covey
from covey import Features, Tensor
from covey.errors import (
    CorruptRecordError,
    CoveyError,
    DatasetError,
    ExampleError,
    FeatureError,
)
from covey.schema.codec import row_of


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
    """A dataset with 20 train examples in three shards, and 7 test examples in one."""
    path = tmp_path / "birds"
    train = [{"x": n, "species": ["owl", "wren", "jay"][n % 3]} for n in range(20)]
    test = [{"x": n, "species": ["wren", "jay"][n % 2]} for n in range(20, 27)]
    write(train, path, label="species", shuffle=False, shards=3)
    write(test, path, "test", label="species", shuffle=False)
    return path


# Paths.


@pytest.mark.parametrize(
    "spell",
    [str, lambda path: path, "{}/".format, "file://{}".format, "{}/dataset_info.json".format],
)
def test_dataset_directory(birds, spell):
    assert numbers(opened(spell(birds), split="train")) == list(range(20))


def test_relative_path_after_chdir(birds, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ds = opened("birds", split="train")
    files = opened("birds/birds-test.tfrecord-*")
    monkeypatch.chdir("/")
    assert numbers(ds) == list(range(20))
    assert numbers(files) == list(range(20, 27))


def test_newest_version(tmp_path):
    for number, version in enumerate(["1.0.0", "10.0.0", "9.2.0", "old"]):
        write([{"x": number}], tmp_path / "birds" / version)
    assert numbers(opened(tmp_path / "birds")) == [1]
    assert numbers(opened(tmp_path / "birds/9.2.0")) == [2]


def test_directory_of_several_datasets(tmp_path):
    for number, config in enumerate(["large", "small"]):
        write([{"x": number}], tmp_path / "birds" / config / "1.0.0")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DatasetError, match=r"large.*small") as caught:
        opened(tmp_path / "birds")
    assert caught.value.path == str(tmp_path / "birds")
    assert sorted(tmp_path.rglob("*")) == before
    assert numbers(opened(tmp_path / "birds/small")) == [1]


@pytest.mark.parametrize(
    "name",
    ["x.tfrec", "x.tfrecord", "x.tfrecords", "x.TFRecord", "x.tfrecord-00000-of-00001", "x",
     "x.bin", "é ü.tfrecord", "a\nb.tfrecord", "a\\b.tfrecord", "%41.tfrecord", "q?[1]*.tfrecord",
     os.fsdecode(b"\xff.tfrecord")],
)  # fmt: skip
def test_file_names(directory, name):
    put_numbers(directory / name, range(4))
    (directory / "README").write_text("not a TFRecord file")
    for path in (directory, directory / name, [directory / name]):
        for _ in range(2):  # with a new index, and with the cached one
            assert numbers(opened(path)) == [0, 1, 2, 3]


def test_directory_name_with_pattern_characters(tmp_path):
    write([{"x": 3, "label": "owl"}], tmp_path / "a [1]*" / "1.0.0", label="label")
    ds = opened(tmp_path / "a [1]*")
    assert (numbers(ds), tuple(ds.classes)) == ([3], ("owl",))


def test_directories_patterns_and_lists_of_files(directory):
    names = ["b/z.tfrecord", "a.tfrecord", "b/c/d.tfrecord", "c.tfrec"]
    paths = [put_numbers(directory / name, [number]) for number, name in enumerate(names)]
    for path, expected in [
        (directory, [1, 2, 0, 3]),
        (directory / "*.tfrec*", [1, 3]),
        (f"{directory}/**/*.tfrecord", [1, 2, 0]),
        (f"{directory}/[bc]/?.tfrecord", [0]),
        (paths, [0, 1, 2, 3]),
        ([str(path) for path in reversed(paths)], [3, 2, 1, 0]),
        (iter(paths[:1]), [0]),
    ]:
        assert numbers(opened(path)) == expected


def test_each_list_of_files_has_its_own_index(directory):
    paths = [put_numbers(directory / f"{n}.tfrecord", range(n, n + 3)) for n in (0, 3, 6)]
    for _ in range(2):
        for which in ([0], [0, 1], [1, 0], [0, 1, 2], [2], [1, 2]):
            expected = [3 * n + k for n in which for k in range(3)]
            assert numbers(opened([paths[n] for n in which])) == expected
        assert numbers(opened(directory)) == list(range(9))


def test_sidecar_and_hidden_files_are_ignored(directory):
    put_numbers(directory / "a.tfrecord", [1, 2])
    for name in ("a.tfrecord.idx", "a.idx", "a.json", "a.txt", "a.npy", ".hidden.tfrecord"):
        (directory / name).write_bytes(b"0 30\n30 30\n")
    (directory / ".covey-old.partial").mkdir()
    (directory / ".covey-old.partial/x.tfrecord").write_bytes(b"junk")
    assert numbers(opened(directory)) == numbers(opened(directory / "*")) == [1, 2]


def test_symbolic_links(directory, tmp_path):
    put_numbers(tmp_path / "elsewhere/x", [1, 2])
    (directory / "a.tfrecord").symlink_to(tmp_path / "elsewhere/x")
    (directory / "again").symlink_to(directory)
    (tmp_path / "link").symlink_to(directory)
    assert numbers(opened(tmp_path / "link")) == [1, 2]


def test_empty_files(directory):
    put_numbers(directory / "a.tfrecord", [])
    ds = opened(directory)
    assert (len(ds), list(ds), ds[:], ds.raw[:], dict(ds.features)) == (0, [], {}, [], {})
    with pytest.raises(IndexError):
        ds[0]
    for name, part in {"b": [1, 2], "c": [], "d": [3]}.items():
        put_numbers(directory / f"{name}.tfrecord", part)
    assert numbers(opened(directory)) == [1, 2, 3]


@pytest.mark.parametrize(
    ("path", "where", "message"),
    [
        ("nowhere", "nowhere", "there is no such file or directory"),
        ("nowhere/*.tfrecord", "nowhere/*.tfrecord", "no file matches this pattern"),
        ("*.gz", "*.gz", "no file matches this pattern"),
        ("empty", "empty", "neither a dataset .* nor a TFRecord file"),
        (["a.tfrecord", "b.tfrecord"], "b.tfrecord", "there is no such file"),
        (["a.tfrecord", "a.tfrecord"], "a.tfrecord", "the file is listed twice"),
        (["a.tfrecord", "empty"], "empty", "it is a directory"),
        ([], None, "the list of files to open is empty"),
        ("", None, "the path to open is empty"),
    ],
)
def test_path_without_records(directory, monkeypatch, path, where, message):
    monkeypatch.chdir(directory)
    (directory / "empty").mkdir()
    put_numbers(directory / "a.tfrecord", [1])
    with pytest.raises(DatasetError, match=message) as caught:
        opened(path)
    found = caught.value.path
    assert found is None if where is None else found.endswith(where)


def test_missing_shard(birds):
    path = shard_paths(birds)[1]
    path.unlink()
    with pytest.raises(DatasetError, match="the shard is missing") as caught:
        opened(birds, split="train")
    assert caught.value.path == str(path)
    assert len(opened(birds, split="test")) == 7


def test_file_without_records_or_examples(directory):
    path = directory / "a.tfrecord"
    path.write_bytes(b"this is some text, and not a TFRecord file")
    with pytest.raises(CorruptRecordError) as corrupt:
        opened(directory)
    assert (corrupt.value.path, corrupt.value.record, corrupt.value.offset) == (str(path), 0, 0)
    with covey.RecordWriter(path) as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(ExampleError, match=r"not a tf.train.Example") as invalid:
        opened(directory)
    assert (invalid.value.path, invalid.value.record) == (str(path), 0)


# Splits.


def test_splits_in_file_names(directory):
    for name, part in {"train-0": [0, 1], "train-1": [2], "x_test": [3], "val.0": [4]}.items():
        put_numbers(directory / f"{name}.tfrecord", part)
    for split, expected in [
        ("train", [0, 1, 2]),
        ("test", [3]),
        ("val+train[1:]", [4, 1, 2]),
        ("all", [3, 0, 1, 2, 4]),
    ]:
        assert sorted(numbers(opened(directory, split=split))) == sorted(expected)
    with pytest.raises(DatasetError, match=r"splits .*'train'.*pass split="):
        opened(directory)
    for name in ("x_test", "val.0"):
        (directory / f"{name}.tfrecord").unlink()
    assert numbers(opened(directory)) == [0, 1, 2]  # the only split


def test_split_of_files_without_splits(directory):
    put_numbers(directory / "a.tfrecord", range(6))
    put_numbers(directory / "b.tfrecord", range(6, 10))
    for split, expected in [
        ("all", range(10)),
        ("all[:80%]", range(8)),
        ("all[-2:]", [8, 9]),
        ("all[1shard]", [6, 7, 8, 9]),
    ]:
        assert numbers(opened(directory, split=split)) == list(expected)


@pytest.mark.parametrize("split", ["nix", "train[:200]", "train[", "", 3, ["train"]])
def test_invalid_split(birds, split):
    with pytest.raises(DatasetError) as caught:
        opened(birds, split=split)
    assert caught.value.option == "split"


def test_other_splits_are_not_read(directory):
    put_numbers(directory / "train.tfrecord", range(3))
    (directory / "test.tfrecord").write_bytes(b"corrupt")
    assert numbers(opened(directory, split="train")) == [0, 1, 2]


def test_file_of_an_empty_split(directory):
    put_numbers(directory / "train.tfrecord", range(3))
    put_numbers(directory / "test.tfrecord", [])
    for split in ("train+test", "test+train"):
        ds = opened(directory, split=split)
        assert (numbers(ds), ds.labels.tolist()) == ([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("lengths", [[], ["0"]])
def test_declared_split_without_records(birds, lengths):
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


def test_features_of_several_splits(directory):
    lists = {"v": Tensor("int64", (None,))}
    put(directory / "train.tfrecord", [{"v": [1, 2]}, {"v": [3, 4]}], lists)
    put(directory / "test.tfrecord", [{"v": [5, 6, 7]}], lists)
    put(directory / "val.tfrecord", [{"v": 1.5}], {"v": "float32"})
    put(directory / "dev.tfrecord", [{"w": 1}], {"w": "int64"})
    assert opened(directory, split="train")[:]["v"].shape == (2, 2)
    ds = opened(directory, split="train+test")
    assert ds[:]["v"].tolist() == [[1, 2], [3, 4], [5, 6, 7]]
    for other in ("val", "dev"):
        with pytest.raises(DatasetError, match="the splits have different features") as caught:
            opened(directory, split=f"train+{other}")
        assert (caught.value.path, caught.value.feature) == (str(directory), "v")
        assert "features=" in caught.value.remedy


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


@settings(max_examples=80)
@given(st.lists(terms, min_size=1, max_size=3).map("+".join), st.lists(keys, max_size=4))
def test_splits_and_keys_select_the_same_records_as_lists(prepared, spec, tried):
    if not all(map(expected_numbers, spec.split("+"))):
        with pytest.raises(DatasetError, match="which are none"):
            opened(prepared, split=spec)
        return
    values = expected_numbers(spec)
    with opened(prepared, split=spec) as ds:
        assert [each["x"] for each in ds] == values
        assert len(ds) == len(values)
        assert ds.labels.tolist() == [each % 3 for each in values]
        for key in tried:
            listed = key if isinstance(key, list) else [key]
            outside = [] if isinstance(key, slice) else [
                each for each in listed if not -len(values) <= each < len(values)
            ]  # fmt: skip
            if outside:
                message = f"record id {outside[0]} is out of range; .* {len(values)}$"
                for read in (ds.__getitem__, ds.raw.__getitem__, ds.select):
                    with pytest.raises(IndexError, match=message):
                        read(key)
                continue
            expected = [values[each] for each in key] if isinstance(key, list) else values[key]
            assert ds[key]["x"].tolist() == expected
            assert numbers(ds.select(key)) == (
                expected if isinstance(expected, list) else [expected]
            )


# Keys.


@pytest.fixture
def ten(directory):
    put_numbers(directory / "a.tfrecord", range(6))
    put_numbers(directory / "b.tfrecord", range(6, 10))
    return opened(directory)


class GpuTensor(list):
    """Like a tensor of PyTorch on a GPU: with ``__index__``, and no array before ``cpu()``."""

    ndim = 1

    def __index__(self):
        raise TypeError("only integer tensors of a single element can be converted to an index")

    def __array__(self, *arguments, **options):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def detach(self):
        return self

    def cpu(self):
        return np.array(list(self))


class Three:
    def __index__(self):
        return 3


@pytest.mark.parametrize(
    "key",
    [3, -7, np.int64(3), np.uint8(3), np.int8(-7), np.uint64(3), np.array(3), Three()],
    ids=lambda key: type(key).__name__,
)
def test_key_of_one_example(ten, key):
    assert tidy(ten[key]) == {"x": 3, "label": 0}
    assert ten.raw[key] == ten.raw[3]
    assert isinstance(ten.raw[key], bytes)


MASK = [n in (2, 5) for n in range(10)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (slice(None, None, -3), [9, 6, 3, 0]),
        (slice(np.int64(2), np.int8(-6)), [2, 3]),
        (slice(20, 30), []),
        ((5, 3), [5, 3]),
        (range(8, 10), [8, 9]),
        (np.array([5, -1], np.int8), [5, 9]),
        (np.array([5, 3, 1, 0], np.uint64)[::2], [5, 1]),
        ([], []),
        (np.array([]), []),
        (MASK, [2, 5]),
        (np.array(MASK), [2, 5]),
        ([False] * 10, []),
        (GpuTensor([5, -1]), [5, 9]),
        (GpuTensor([5]), [5]),
        (GpuTensor(MASK), [2, 5]),
    ],
    ids=str,
)
def test_key_of_several_examples(ten, key, expected):
    columns = ten[key]
    assert (columns["x"].tolist(), columns["x"].dtype) == (expected, np.int64)
    assert ten.raw[key] == [ten.raw[n] for n in expected]
    assert numbers(ten.select(key)) == expected


@pytest.mark.parametrize(
    "key",
    [10, -11, 2**63, -(2**63), 2**70, -(2**70), np.uint64(2**63), [0, 10], [2**63],
     MASK[1:], np.ones((1, 10), bool), [True, False]],
    ids=str,
)  # fmt: skip
def test_key_out_of_range(ten, key):
    for use in (ten.__getitem__, ten.raw.__getitem__, ten.select):
        with pytest.raises(IndexError):
            use(key)


@pytest.mark.parametrize(
    "key",
    [1.0, "1", b"1", None, [None], [1.5], ["1"], {1}, {1: 1}, [[1]], [[1], [1, 2]],
     np.ones((1, 1), int), np.float64(1), ..., (slice(1), 2)],
    ids=str,
)  # fmt: skip
def test_key_of_another_type(ten, key):
    for use in (ten.__getitem__, ten.raw.__getitem__):
        with pytest.raises(TypeError):
            use(key)


@pytest.mark.parametrize("key", [True, np.bool_(False)])
def test_key_that_is_a_bool(ten, key):
    with pytest.raises((IndexError, TypeError)):
        ten[key]


def test_raw_records_and_columns(birds):
    ds = opened(birds, split="train")
    assert ds.raw[:] == records(birds)
    assert ds.raw[[5, -1]] == [records(birds)[5], records(birds)[-1]]
    assert [ds.features.decode(each)["x"] for each in ds.raw] == list(range(20))
    assert [each["x"] for each in reversed(ds)] == list(range(19, -1, -1))
    first, second = iter(ds), iter(ds)
    assert (next(first)["x"], next(first)["x"], next(second)["x"]) == (0, 1, 0)
    ds = opened(birds, split="train[:4]")
    assert tidy(ds.columns()) == {"x": [0, 1, 2, 3], "species": [1, 2, 0, 1]}
    assert tidy(ds.columns(["species"])) == tidy(ds.columns("species")) == {"species": [1, 2, 0, 1]}
    with pytest.raises((FeatureError, KeyError), match="nix"):
        ds.columns(["nix"])


def test_columns_decode_only_their_features(directory):
    good, bad = Features({"a": "int64", "b": "int64"}), Features({"a": "int64", "b": "str"})
    with covey.RecordWriter(directory / "x.tfrecord") as writer:
        writer.write(good.encode({"a": 1, "b": 2}))
        writer.write(bad.encode({"a": 3, "b": "text"}))
    ds = opened(directory, features=good)
    assert ds.columns(["a"])["a"].tolist() == [1, 3]
    with pytest.raises(ExampleError) as caught:
        ds.columns()
    assert (caught.value.record, caught.value.feature) == (1, "b")


def test_repr(birds):
    ds = opened(birds, split="train")
    assert repr(ds) == (
        "<covey.Dataset: 20 examples, 3 classes of 'species'>\n"
        "  x        int64\n"
        "  species  ClassLabel of 3 classes"
    )
    assert repr(ds.classes) == "<3 classes, 6 to 7 records each>"


@pytest.mark.parametrize("options", [{}, {"mmap": False, "threads": 1}, {"verify": False}])
@pytest.mark.parametrize("compression", [None, "GZIP", "ZLIB"])
def test_compression_and_reading_options(tmp_path, compression, options):
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
    for n, compression in enumerate([None, "GZIP", "ZLIB"]):
        examples = [{"x": 10 * n + k, "label": k} for k in range(10)]
        write(examples, tmp_path, f"s{n}", label="label", shuffle=False, compression=compression)
    ds = opened(tmp_path, split="s1[5:]+s0+s2[:3]+s1[:2]")
    assert numbers(ds) == [*range(15, 20), *range(10), *range(20, 23), 10, 11]
    assert numbers(ds, [-1, 0, 6, 16]) == [11, 15, 1, 21]
    assert ds.labels.tolist() == [each % 10 for each in numbers(ds)]
    everything = opened(tmp_path, split="s0+s1+s2")
    assert numbers(everything, [-1, 0, -11, -30]) == [29, 0, 19, 0]


# Features.


@settings(max_examples=25)
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


def test_flat_feature_names_with_slashes(directory):
    features = {"image/encoded": "bytes", "image/class/label": "int64", "image/class/text": "str"}
    example = {"image/encoded": b"x", "image/class/label": 3, "image/class/text": "owl"}
    put(directory / "a.tfrecord", [example], features)
    ds = opened(directory, label="image/class/text")
    assert tidy(ds[0]) == {**example, "image/class/text": b"owl"}
    assert (tuple(ds.classes), ds.where(label="owl")[0]["image/encoded"]) == (("owl",), b"x")
    assert ds.columns(["image/class/label"])["image/class/label"].tolist() == [3]


def test_declared_features(directory, birds):
    path = directory / "a.tfrecord"
    put(path, [{"x": [1, 2, 3, 4], "y": "é"}], {"x": Tensor("int64", (4,)), "y": "str"})
    ds = opened(directory, features={"x": Tensor("int8", (2, 2)), "y": "str"})
    assert (ds[0]["x"].tolist(), ds[0]["x"].dtype, ds[0]["y"]) == ([[1, 2], [3, 4]], np.int8, "é")
    for features, expected in [
        (None, {"x": [1, 2, 3, 4], "y": "é".encode()}),
        ({"y": "bytes"}, {"y": "é".encode()}),
    ]:
        assert tidy(opened(directory, features=features)[0]) == expected
    fewer = opened(birds, split="train", features={"x": "int64"})
    assert tidy(fewer[4]) == {"x": 4}
    assert fewer.labels.tolist() == [(n + 1) % 3 for n in range(20)]
    assert numbers(fewer.where(label="owl"), slice(3)) == [0, 3, 6]


def test_declared_features_that_do_not_match(directory):
    put_numbers(directory / "a.tfrecord", range(3))
    ds = opened(directory, features={"x": "str"})
    with pytest.raises(ExampleError, match="int64 list, expected a bytes list") as caught:
        ds[1]
    error = caught.value
    assert (error.path, error.record, error.feature) == (str(directory / "a.tfrecord"), 1, "x")
    with pytest.raises(FeatureError):
        opened(directory, features={"x": "no such type"})


# Corrupt records.


@pytest.mark.parametrize("mmap", [True, False])
def test_corrupt_record(tmp_path, mmap):
    examples = [{"x": n, "pad": b"p" * 1000} for n in range(50)]
    write(examples, tmp_path, shuffle=False, shards=2)
    path = shard_paths(tmp_path)[1]
    content = bytearray(path.read_bytes())
    at = content.index(b"p" * 1000, 10 * (len(content) // 25))
    content[at + 500] ^= 1
    path.write_bytes(content)
    ds = opened(tmp_path, mmap=mmap)
    assert numbers(ds, [34, 36]) == [34, 36]
    for use in (ds.__getitem__, ds.raw.__getitem__):
        for key in ([34, 35], [-15]):
            with pytest.raises(CorruptRecordError) as caught:
                use(key)
            assert (caught.value.path, caught.value.record) == (str(path), 10)
            assert content[caught.value.offset : at].count(b"pad") == 1
    assert opened(tmp_path, mmap=mmap, verify=False)[35]["x"] == 35


def test_skip_corrupt_records(directory):
    path = put_numbers(directory / "a.tfrecord", range(6))
    put_numbers(directory / "b.tfrecord", range(6, 8))
    size = path.stat().st_size // 6
    for corrupt, expected in [(0, [1, 2, 3, 4, 5, 6, 7]), (3, [1, 2, 4, 5, 6, 7])]:
        content = bytearray(path.read_bytes())
        content[corrupt * size + 14] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptRecordError) as caught:
            opened(directory)
        assert (caught.value.path, caught.value.record) == (str(path), 0)
        assert "on_error='skip'" in str(caught.value)
        with pytest.warns(covey.errors.SkippedRecordsWarning):
            ds = opened(directory, on_error="skip")
        assert numbers(ds) == expected
        assert ds.labels.tolist() == [n % 3 for n in expected]
        assert not list(directory.glob("covey-*"))
    with pytest.raises(CoveyError) as invalid:
        opened(directory, on_error="ignore")
    assert (invalid.value.option, invalid.value.found) == ("on_error", "ignore")


def test_progress_of_indexing(directory, capsys):
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
