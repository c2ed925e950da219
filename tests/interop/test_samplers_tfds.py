"""Samplers of datasets of TFDS: prepared by it, read by covey."""

import threading
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sampled import drawn, most_memory, planned, run, twice
from written import write

from covey.samplers import TFDatasetMultiShotMemorySampler
from covey.samplers import tfds as module

T = tfds.features
NAMES = ["owl", "wren", "jay", "crow"]
TRAIN, TEST = 60, 20


class Flock:
    """Examples that have their number in each of their features."""

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
    """One that TFDS knows only by its files."""

    name = "prepared_flock"


class CataloguedFlock(Flock, tfds.core.GeneratorBasedBuilder):
    """One that TFDS knows by its code."""


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    PreparedFlock(data_dir=path).download_and_prepare()
    return path


@pytest.fixture(scope="module")
def directory(data_dir):
    return data_dir / "prepared_flock" / "1.0.0"


@pytest.fixture(params=["directory", "name"])
def flock(request, data_dir, directory):
    """Makes samplers of the flock, by its directory or by its name."""

    def make(classes_per_batch=2, *arguments, **options):
        options = {"framework": "numpy", "progress": False, **options}
        if request.param == "directory":
            return TFDatasetMultiShotMemorySampler(
                directory, classes_per_batch, *arguments, **options
            )
        return TFDatasetMultiShotMemorySampler(
            "prepared_flock", classes_per_batch, *arguments, data_dir=data_dir, **options
        )

    return make


def numbers(sampler):
    """The numbers of the examples that a sampler has, if that is what they are."""
    return sampler.get_slice()[0].tolist()


def judged(directory, split="train"):
    """The examples as TFDS reads them, file by file."""
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    builder = tfds.builder_from_directory(directory)
    return list(tfds.as_numpy(builder.as_dataset(split=split, read_config=in_order)))


# Reading.


def test_all_examples_of_the_splits_are_there_as_tfds_has_them(flock, directory):
    there = judged(directory) + judged(directory, "test")
    for key in ("image", "number", "vector", "size"):
        x, y = flock(2, key).get_slice()
        assert np.array_equal(x, np.stack([each[key] for each in there]))
        assert x.dtype == there[0][key].dtype
        assert y.tolist() == [each["label"] for each in there]


def test_batches_have_p_classes_with_k_examples_of_what_was_read(flock):
    sampler = flock(3, "number", "label", ["train", "test"], 4, 50)
    for x, y in sampler:
        assert np.array_equal(x % 4, y)
        assert sorted(Counter(y.tolist()).values()) == [4, 4, 4]
    images, y = flock(3, "image", "label", ["train", "test"], 4, 50)[0]
    again, _ = flock(3, "number", "label", ["train", "test"], 4, 50)[0]
    assert images.shape == (12, 4, 5, 3)
    assert images[:, 0, 0, 0].tolist() == again.tolist()


def test_images_and_labels_of_train_and_test_are_the_default(flock):
    sampler = flock()
    assert sampler.num_examples == TRAIN + TEST
    assert sampler.example_shape == (4, 5, 3)
    assert len(sampler) == 1000
    assert sampler.class_list == [0, 1, 2, 3]


def test_all_arguments_by_position(flock):
    def negate(x, y):
        return -x, y

    sampler = flock(2, "number", "label", "train", 3, 7, [1, 2, 3], 5, negate, twice, 4)
    assert (len(sampler), sampler.warmup, sampler.class_list) == (7, 4, [1, 2, 3])
    assert sampler.num_examples == 15
    x, y = sampler[0]
    assert len(x) == 18
    assert np.array_equal(-x % 4, y)


WITHOUT = """
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
    found["by name"] = str(error)
print(json.dumps(found))
"""


def test_a_directory_is_read_without_tensorflow(directory):
    found = run(WITHOUT, directory)
    sampler = TFDatasetMultiShotMemorySampler(
        directory, 2, "number", seed=5, steps_per_epoch=9, framework="numpy", progress=False
    )
    assert found["batches"] == drawn(sampler)
    assert found["image"] == [4, 4, 5, 3]
    assert "pip install" in found["by name"]


def test_a_name_whose_dataset_is_not_prepared_is_prepared(tmp_path):
    for _ in range(2):  # the second time it is there
        sampler = TFDatasetMultiShotMemorySampler(
            "catalogued_flock", 2, "number", data_dir=tmp_path, framework="numpy", progress=False
        )
        assert sorted(numbers(sampler)) == list(range(80))
    assert (tmp_path / "catalogued_flock" / "1.0.0" / "dataset_info.json").exists()
    by_version = TFDatasetMultiShotMemorySampler(
        "catalogued_flock:1.0.0", 2, "number", splits="test", data_dir=str(tmp_path)
    )
    assert by_version.num_examples == 20


@pytest.mark.parametrize("is_told", [True, False])
def test_a_directory_without_a_dataset_does_not_hide_a_name(
    tmp_path, data_dir, monkeypatch, is_told
):
    (tmp_path / "prepared_flock").mkdir()
    monkeypatch.chdir(tmp_path)
    if not is_told:
        tfds.core.add_data_dir(data_dir)
    try:
        sampler = TFDatasetMultiShotMemorySampler(
            "prepared_flock", 2, "number", data_dir=data_dir if is_told else None
        )
    finally:
        tfds.core.utils.file_utils.clear_registered_data_dirs()
    assert sampler.num_examples == 80


def test_a_directory_may_be_named_from_where_one_is(directory, monkeypatch):
    monkeypatch.chdir(directory.parent)
    for name in ("1.0.0", "./1.0.0", directory):
        assert TFDatasetMultiShotMemorySampler(name, 2, "number").num_examples == 80


def test_a_directory_that_covey_wrote_is_one_too(tmp_path):
    write(({"image": [n, n], "label": n % 3} for n in range(30)), tmp_path / "ours", label="label")
    sampler = TFDatasetMultiShotMemorySampler(tmp_path / "ours", 2, splits="train")
    assert sampler.num_examples == 30
    assert sampler.example_shape == (2,)


def test_reading_needs_hardly_more_memory_than_the_examples(tmp_path):
    x = np.zeros((3000, 4000), np.uint8)
    write({"image": x, "label": np.arange(3000) % 5}, tmp_path / "large", label="label")
    with most_memory() as bytes_more:
        sampler = TFDatasetMultiShotMemorySampler(
            tmp_path / "large", 2, splits="train", framework="numpy", progress=False
        )
        sampler[0]
    assert x.nbytes < bytes_more[0] < 1.5 * x.nbytes


# Splits and keys.


@pytest.mark.parametrize(
    ("splits", "count"),
    [
        ("train", 60),
        (["train"], 60),
        (("test",), 20),
        (["test", "train"], 80),
        ("train[:50%]", 30),
        (["train[50%:]", "test"], 50),
        ("train[10:25]", 15),
        ("train+test", 80),
        ("all", 80),
        (["test", "test"], 40),
    ],
    ids=str,
)
def test_splits_and_parts_of_them_are_those_of_tfds(flock, directory, splits, count):
    sampler = flock(2, "number", splits=splits, examples_per_class_per_batch=1)
    listed = [splits] if isinstance(splits, str) else splits
    assert sampler.num_examples == count
    assert numbers(sampler) == [
        each["number"] for name in listed for each in judged(directory, name)
    ]


@pytest.mark.parametrize("splits", ["nope", ["train", "nope"], "train[", "", "train[:x%]"], ids=str)
def test_a_split_that_is_not_there_is_a_value_error(flock, splits):
    with pytest.raises(ValueError, match=r"split.*'train', 'test'"):
        flock(2, "number", splits=splits)


def test_splits_that_are_none_are_refused(flock):
    with pytest.raises(ValueError, match="splits is"):
        flock(2, "number", splits=[])


@pytest.mark.parametrize("wrong", ["x_key", "y_key"])
def test_a_wrong_key_is_a_value_error_that_lists_those_there_are(flock, wrong):
    with pytest.raises(ValueError, match=f"{wrong} is 'img'") as caught:
        flock(2, **{"x_key": "number", wrong: "img"})
    for key in ("image", "photo", "label", "number", "vector", "word", "size", "nest"):
        assert repr(key)[:-1] in str(caught.value)


def test_nested_features_are_found_by_their_path(flock):
    x, y = flock(2, "nest/eggs", "nest/kind").get_slice()
    assert np.array_equal(x % 3, y)
    assert x.dtype == np.uint8


def test_texts_may_be_classes_and_examples(flock):
    sampler = flock(2, "number", "word")
    assert sampler.class_list == [f"word {n}" for n in range(5)]
    assert all(f"word {x % 5}" == y for x, y in zip(*sampler[0], strict=True))
    x, y = flock(2, "word", "number", "train", 1)[0]
    assert x.tolist() == [f"word {n % 5}" for n in y]
    assert flock(2, "number", "word", class_list=["word 1", "word 3"]).num_examples == 32


@pytest.mark.parametrize("key", ["size", "vector", "image"])
def test_what_is_no_class_is_refused_as_one(flock, key):
    with pytest.raises(ValueError, match="y"):
        flock(2, "number", key)


@pytest.mark.parametrize("name", ["no_such_flock", "no such flock", "no_such_flock/config:1.0.0"])
def test_a_name_that_nobody_knows_is_a_value_error(data_dir, name):
    with pytest.raises(ValueError, match=name):
        TFDatasetMultiShotMemorySampler(name, 2, data_dir=data_dir)


def test_a_directory_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises((ValueError, OSError), match=r"no such|there is no") as caught:
        TFDatasetMultiShotMemorySampler(tmp_path / "nowhere", 2)
    assert "nowhere" in str(caught.value)
    with pytest.raises(ValueError, match="neither a dataset"):
        TFDatasetMultiShotMemorySampler(tmp_path, 2)


# preprocess_fn


def test_images_of_different_sizes_are_resized_by_preprocess_fn(flock):
    def resize(image, label):
        return tf.image.resize(image, (2, 2), "nearest") / 255, label

    sampler = flock(3, "photo", preprocess_fn=resize)
    assert sampler.example_shape == (2, 2, 3)
    x, y = sampler[0]
    assert x.dtype == np.float32
    assert np.array_equal(np.rint(x[:, 0, 0, 0] * 255) % 4, y)


def test_images_of_different_sizes_need_a_preprocess_fn(flock):
    with pytest.raises(ValueError, match="preprocess_fn="):
        flock(3, "photo")[0]


def test_preprocess_fn_is_called_once_per_example_by_several_threads_at_once(flock, monkeypatch):
    monkeypatch.setattr(module, "cpu_count", lambda: 2)
    lock, both, calls = threading.Lock(), threading.Barrier(2, timeout=60), []

    def see(x, y):
        with lock:
            calls.append((int(x), int(y), threading.get_ident()))
            is_one_of_two = len(calls) <= 2
        if is_one_of_two:  # and waits for the other one
            both.wait()
        return x * 10, y

    sampler = flock(2, "number", preprocess_fn=see)
    assert sorted(calls)[0][:2] == (0, 0)
    assert sorted(number for number, _, _ in calls) == list(range(80))
    assert all(label == number % 4 for number, label, _ in calls)
    assert len({thread for _, _, thread in calls}) == 2
    assert threading.get_ident() not in {thread for _, _, thread in calls}
    before = len(calls)
    list(flock(2, "number", preprocess_fn=None, steps_per_epoch=3))
    assert drawn(sampler)[:9] == [[10 * n for n in ids] for ids in order(sampler, 9)]
    assert len(calls) == before


def order(sampler, steps):
    """The numbers that the examples of batches had in the dataset."""
    there = [number // 10 for number in numbers(sampler)]
    return [[there[each] for each in ids] for ids in planned(sampler, range(steps))]


def test_preprocess_fn_may_change_both(flock):
    def change(x, y):
        return {1: "one"}.get(int(x), "many"), "odd" if x % 2 else "even"

    x, y = flock(2, "number", preprocess_fn=change).get_slice()
    assert Counter(x.tolist()) == {"one": 1, "many": 79}
    assert Counter(y.tolist()) == {"odd": 40, "even": 40}


def test_preprocess_fn_may_give_tensors(flock):
    def change(x, y):
        return tf.constant(x, tf.float32), tf.constant(y)

    x, y = flock(2, "vector", preprocess_fn=change).get_slice()
    assert (x.dtype, x.shape) == (np.float32, (80, 3))
    assert np.array_equal(x[:, 0] % 4, y)


@pytest.mark.parametrize(
    "returned",
    [None, 5, (1,), (1, 2, 3), "xy", (None, 1), (1, None), {"x": 1, "y": 2}],
    ids=repr,
)
def test_a_preprocess_fn_that_gives_nonsense_is_told_so(flock, returned):
    with pytest.raises(ValueError, match="preprocess_fn"):
        flock(2, "number", preprocess_fn=lambda x, y: returned)


def test_examples_that_preprocess_fn_makes_different_are_refused(flock):
    with pytest.raises(ValueError, match="preprocess_fn="):
        flock(2, "number", preprocess_fn=lambda x, y: (np.zeros(int(x) % 3), y))[0]


@pytest.mark.parametrize("number", [0, 33, 70])
def test_an_error_of_preprocess_fn_says_where(flock, number):
    def fail(x, y):
        if x == number:
            raise OverflowError("too bright")
        return x, y

    place = numbers(flock(2, "number")).index(number)
    with pytest.raises(OverflowError, match="too bright") as caught:
        flock(2, "number", preprocess_fn=fail)
    assert caught.value.__notes__ == [f"in preprocess_fn of example {place}"]


def test_preprocess_fn_must_be_a_function(flock):
    with pytest.raises(ValueError, match="preprocess_fn is 3"):
        flock(preprocess_fn=3)


# Progress.


def test_progress_is_shown_on_standard_error(flock, capsys):
    flock(2, "number", progress=True)
    shown = capsys.readouterr()
    assert "100%" in shown.err
    assert "80.0/80.0" in shown.err
    assert shown.out == ""
    flock(2, "number", progress=False)
    assert capsys.readouterr().err == ""
