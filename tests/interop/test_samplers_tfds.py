"""TFDatasetMultiShotMemorySampler: datasets that TFDS prepares."""

import os
import threading
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sampled import drawn, planned, repeat, run
from written import write

from covey.errors import CoveyError, DatasetError
from covey.samplers import TFDatasetMultiShotMemorySampler

T = tfds.features
NAMES = ["owl", "wren", "jay", "crow"]
TRAIN, TEST = 60, 20


class Flock:
    """Examples with their number in each feature."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": T.Image(shape=(4, 5, 3)),
            "photo": T.Image(shape=(None, None, 3)),
            "label": T.ClassLabel(names=NAMES),
            "number": np.int64,
            "vector": T.Tensor(shape=(3,), dtype=np.float32),
            "word": T.Text(),
            "size": np.float32,
            "nest": {"eggs": np.uint8, "kind": T.ClassLabel(num_classes=3)},
        }
        return tfds.core.DatasetInfo(builder=self, features=T.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(0, TRAIN),
            "test": self._generate_examples(TRAIN, TRAIN + TEST),
        }

    def _generate_examples(self, begin, end):
        for n in range(begin, end):
            yield (
                f"{n:03}",
                {
                    "image": np.full((4, 5, 3), n, np.uint8),
                    "photo": np.full((3 + n % 4, 4 + n % 3, 3), n, np.uint8),
                    "label": n % 4,
                    "number": n,
                    "vector": [n, n + 1, n + 2],
                    "word": f"word {n % 5}",
                    "size": n / 2,
                    "nest": {"eggs": n, "kind": n % 3},
                },
            )


class PreparedFlock(Flock, tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset that TFDS finds by its files only."""

    name = "prepared_flock"


class CataloguedFlock(Flock, tfds.core.GeneratorBasedBuilder):
    """A dataset in the catalogue of TFDS."""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    PreparedFlock(data_dir=path).download_and_prepare()
    return path


@pytest.fixture(scope="module")
def directory(data_dir):
    return data_dir / "prepared_flock" / "1.0.0"


@pytest.fixture
def flock(directory):
    """Return samplers of the directory that TFDS prepared."""

    def make(classes_per_batch=2, *arguments, **options):
        options = {"framework": "numpy", "progress": False, **options}
        return TFDatasetMultiShotMemorySampler(directory, classes_per_batch, *arguments, **options)

    return make


def numbers(sampler):
    """Return x of all examples, which are shuffled."""
    return sampler.get_slice()[0].tolist()


def read_by_tfds(directory, split="train"):
    """Return the examples as TFDS reads them, file by file."""
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    builder = tfds.builder_from_directory(directory)
    return list(tfds.as_numpy(builder.as_dataset(split=split, read_config=in_order)))


# Names and directories.


def test_examples_are_those_of_tfds(flock, directory):
    examples = {each["number"]: each for each in read_by_tfds(directory, "all")}
    expected = [examples[number] for number in numbers(flock(2, "number"))]
    assert len(expected) == TRAIN + TEST
    for key in ("image", "number", "vector", "size"):
        x, y = flock(2, key).get_slice()
        assert np.array_equal(x, np.stack([each[key] for each in expected]))
        assert x.dtype == expected[0][key].dtype
        assert y.tolist() == [each["label"] for each in expected]


def test_arguments(flock):
    sampler = flock()
    assert (sampler.num_examples, sampler.example_shape, len(sampler)) == (80, (4, 5, 3), 1000)
    assert sampler.class_list == [0, 1, 2, 3]
    sampler = flock(2, "number", "label", "train", 3, 7, [1, 2, 3], 5, lambda x, y: (-x, y), repeat,
                    4)  # fmt: skip
    assert (len(sampler), sampler.warmup, sampler.class_list) == (7, 4, [1, 2, 3])
    assert sampler.num_examples == 15
    for x, y in sampler:
        assert np.array_equal(-x % 4, y)
        assert sorted(Counter(y.tolist()).values()) == [9, 9]


WITHOUT_TENSORFLOW = """
import sys
for name in ("tensorflow", "tensorflow_datasets", "keras", "torch", "jax"):
    sys.modules[name] = None
import json
from covey.samplers import TFDatasetMultiShotMemorySampler

directory = sys.argv[1]
sampler = TFDatasetMultiShotMemorySampler(directory, 2, "number", seed=5, steps_per_epoch=9)
found = {"batches": [x.tolist() for x, _ in sampler]}
found["image"] = TFDatasetMultiShotMemorySampler(directory, 2)[0][0].shape
try:
    TFDatasetMultiShotMemorySampler("mnist", 2)
except ImportError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


def test_a_directory_is_read_without_tensorflow(directory, flock):
    found = run(WITHOUT_TENSORFLOW, directory)
    assert found["batches"] == drawn(flock(2, "number", seed=5, steps_per_epoch=9))
    assert found["image"] == [4, 4, 5, 3]
    assert "pip install" in found["error"]


def test_a_name_is_prepared_by_tfds(tmp_path):
    for _ in range(2):  # prepared by the first
        sampler = TFDatasetMultiShotMemorySampler(
            "catalogued_flock", 2, "number", data_dir=tmp_path, framework="numpy", progress=False
        )
        assert sorted(numbers(sampler)) == list(range(80))
    assert (tmp_path / "catalogued_flock" / "1.0.0" / "dataset_info.json").exists()
    with_version = TFDatasetMultiShotMemorySampler(
        "catalogued_flock:1.0.0", 2, "number", splits="test", data_dir=str(tmp_path)
    )
    assert with_version.num_examples == 20


@pytest.mark.parametrize("passes_data_dir", [True, False])
def test_a_name_of_a_directory_without_a_dataset(tmp_path, data_dir, monkeypatch, passes_data_dir):
    (tmp_path / "prepared_flock").mkdir()
    monkeypatch.chdir(tmp_path)
    if not passes_data_dir:
        tfds.core.add_data_dir(data_dir)
    try:
        sampler = TFDatasetMultiShotMemorySampler(
            "prepared_flock", 2, "number", data_dir=data_dir if passes_data_dir else None
        )
    finally:
        tfds.core.utils.file_utils.clear_registered_data_dirs()
    assert sampler.num_examples == 80


def test_relative_paths_and_datasets_of_covey(directory, tmp_path, monkeypatch):
    monkeypatch.chdir(directory.parent)
    for name in ("1.0.0", "./1.0.0"):
        assert TFDatasetMultiShotMemorySampler(name, 2, "number").num_examples == 80
    write(({"image": [n, n], "label": n % 3} for n in range(30)), tmp_path / "ours", label="label")
    sampler = TFDatasetMultiShotMemorySampler(tmp_path / "ours", 2, splits="train")
    assert (sampler.num_examples, sampler.example_shape) == (30, (2,))


def test_preprocess_fn_receives_arrays_and_may_return_tensors(flock):
    with pytest.raises(AttributeError) as caught:
        flock(2, preprocess_fn=lambda x, y: (x.numpy(), y))
    assert any("remove .numpy()" in note for note in caught.value.__notes__)

    def resize(image, label):
        return tf.image.resize(image, (2, 2), "nearest") / 255, tf.constant(label)

    sampler = flock(3, "photo", preprocess_fn=resize)
    x, y = sampler[0]
    assert (sampler.example_shape, x.dtype) == ((2, 2, 3), np.float32)
    assert np.array_equal(np.rint(x[:, 0, 0, 0] * 255) % 4, y)


# Splits and keys.


@pytest.mark.parametrize(
    ("splits", "count"),
    [("train", 60), (("test",), 20), (["test", "train"], 80), ("train[:50%]", 30),
     (["train[50%:]", "test"], 50), ("train[10:25]", 15), ("train+test", 80), ("all", 80),
     (["test", "test"], 40)],
    ids=str,
)  # fmt: skip
def test_splits(flock, directory, splits, count):
    sampler = flock(2, "number", splits=splits, examples_per_class_per_batch=1)
    listed = [splits] if isinstance(splits, str) else splits
    assert sampler.num_examples == count
    assert sorted(numbers(sampler)) == sorted(
        each["number"] for name in listed for each in read_by_tfds(directory, name)
    )


def test_nested_features_and_strings(flock):
    x, y = flock(2, "nest/eggs", "nest/kind").get_slice()
    assert np.array_equal(x % 3, y)
    assert x.dtype == np.uint8
    sampler = flock(2, "number", "word")
    assert sampler.class_list == [f"word {n}" for n in range(5)]
    assert all(f"word {x % 5}" == y for x, y in zip(*sampler[0], strict=True))
    x, y = flock(2, "word", "number", "train", 1)[0]
    assert x.tolist() == [f"word {n % 5}" for n in y]
    assert flock(2, "number", "word", class_list=["word 1", "word 3"]).num_examples == 32


# preprocess_fn.


def test_preprocess_fn_is_called_once_per_example_by_several_threads(flock, directory, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    lock, both, calls = threading.Lock(), threading.Barrier(2, timeout=60), []

    def record(x, y):
        with lock:
            calls.append((int(x), int(y), threading.get_ident()))
            is_early = len(calls) <= 2
        if is_early:  # two calls at a time
            both.wait()
        return x * 10, y

    sampler = flock(2, "number", preprocess_fn=record)
    assert sorted(number for number, _, _ in calls) == list(range(80))
    assert all(label == number % 4 for number, label, _ in calls)
    assert threading.get_ident() not in {thread for _, _, thread in calls}
    everything = [each["number"] for each in read_by_tfds(directory, "all")]
    expected = [[10 * everything[each] for each in ids] for ids in planned(sampler, range(9))]
    assert [x.tolist() for x, _ in (sampler[step] for step in range(9))] == expected
    assert len(calls) == 80


def test_preprocess_fn_may_reuse_its_result(flock):
    local = threading.local()

    def fill(x, y):
        if not hasattr(local, "result"):
            local.result = np.empty(2, np.int64)
        local.result[:] = x
        return local.result, y

    x, y = flock(2, "number", preprocess_fn=fill).get_slice()
    assert sorted(x[:, 1].tolist()) == list(range(80))
    assert np.array_equal(x[:, 0] % 4, y)


def test_preprocess_fn_changes_types(flock):
    def change(x, y):
        return {1: "one"}.get(int(x), "many"), "odd" if x % 2 else "even"

    x, y = flock(2, "number", preprocess_fn=change).get_slice()
    assert Counter(x.tolist()) == {"one": 1, "many": 79}
    assert Counter(y.tolist()) == {"odd": 40, "even": 40}


def test_progress(flock, capsys):
    flock(2, "number", progress=True)
    shown = capsys.readouterr()
    assert "100%" in shown.err
    assert "80/80" in shown.err
    assert shown.out == ""
    flock(2, "number", progress=False)
    assert capsys.readouterr().err == ""


# Errors.

KEYS = "'image', 'label', 'nest/eggs', 'nest/kind', 'number', 'photo', 'size', 'vector', 'word'"
RESULTS = (None, 5, (1,), (1, 2, 3), "xy", (None, 1), (1, None), {"x": 1, "y": 2})
REFUSED = [
    *(({"splits": each}, r"split.*'train', 'test'")
      for each in ("nope", ["train", "nope"], "train[", "", "train[:x%]")),
    ({"splits": []}, r"splits is \[\]"),
    ({"preprocess_fn": 3}, "preprocess_fn is 3"),
    ({"x_key": "img"}, f"x_key is 'img'; must be one of {KEYS}"),
    ({"y_key": "img"}, f"y_key is 'img'; must be one of {KEYS}"),
    ({"y_key": "size"}, "y has"),
    *(({"y_key": key}, "shape of y is") for key in ("vector", "image")),
    ({"x_key": "photo"}, "have different shapes.*preprocess_fn="),
    ({"preprocess_fn": lambda x, y: (np.zeros(int(x) % 3), y)}, "have different shapes"),
    *(({"preprocess_fn": lambda x, y, result=result: result if x == 33 else (x, y)},
       "preprocess_fn returned") for result in RESULTS),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused(flock, directory, options, message):
    with pytest.raises(CoveyError, match=message) as caught:
        flock(2, **{"x_key": "number", **options})
    assert isinstance(caught.value, ValueError)
    if "returned" in message:
        position = [each["number"] for each in read_by_tfds(directory)].index(33)
        assert caught.value.__notes__ == [f"in preprocess_fn of example {position}"]


@pytest.mark.parametrize("name", ["no_such_flock", "no such flock", "no_such_flock/config:1.0.0",
                                  "minst", "directory", "nowhere"])  # fmt: skip
def test_names_without_a_dataset(data_dir, tmp_path, name):
    is_path = name in ("directory", "nowhere")
    (tmp_path / "directory").mkdir()
    with pytest.raises(DatasetError, match=name) as caught:
        TFDatasetMultiShotMemorySampler(
            tmp_path / name if is_path else name, 2, data_dir=None if is_path else data_dir
        )
    if is_path:
        assert caught.value.path == str(tmp_path / name)
    else:
        assert caught.value.option == "dataset_name"
        assert caught.value.suggestion == {"minst": "mnist"}.get(name)
    assert "\n" not in str(caught.value)
