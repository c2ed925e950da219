"""Maintenance of files that TensorFlow and TFDS wrote or judge, and of URLs."""

import json
import os
import random
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from corrupt_files import corrupt_files, example
from written import index, records, shard_paths, write

import covey
from covey.cli import main
from covey.index import index_names
from covey.storage import open_storage

NAMES = ("crow", "owl", "wren")


def verify(path, **options):
    return covey.verify(path, progress=False, **options)


def repair(path, output, **options):
    return covey.repair(path, output, progress=False, **options)


def is_example(record):
    try:
        tf.train.Example.FromString(record)
    except Exception:
        return False
    return True


def example_records(seed, count, sizes):
    """Different Examples of about these sizes."""
    rng = random.Random(seed)
    return [example(n=[n], x=[rng.randbytes(rng.choice(sizes))]) for n in range(count)]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return corrupt_files(tmp_path_factory.mktemp("corrupt"))


def test_examples_are_those_of_protobuf():
    made = tf.train.Example()
    made.features.feature["a"].int64_list.value.extend([1, -2])
    made.features.feature["b"].float_list.value.extend([0.5, 2.0])
    made.features.feature["c"].bytes_list.value.extend([b"x", b""])
    assert tf.train.Example.FromString(example(a=[1, -2], b=[0.5, 2.0], c=[b"x", b""])) == made


def test_tensorflow_stops_at_the_same_record(cases):
    def read(case):
        """Return the records that TensorFlow yields, and whether it raises at the end."""
        found = []
        try:
            dataset = tf.data.TFRecordDataset(str(case.path), case.compression or "")
            found.extend(dataset.as_numpy_iterator())
        except tf.errors.DataLossError:
            return found, True
        return found, False

    def is_right(case):
        found, raised = read(case)
        expected = case.survivors[: case.before]
        if case.first is None:
            return found == expected and not raised
        if case.compression is None:
            # TensorFlow takes less than a header for the end of the file.
            has_header = case.path.stat().st_size - case.first[1] >= 12
            return found == expected and raised == has_header
        # Of a stream it yields what is decompressed before the error; it ignores the end.
        ignored = "cut" in case.kind or "garbage-at-end" in case.kind
        return found == expected[: len(found)] and (raised or ignored)

    judged = [case for case in cases if "claim" not in case.kind]  # TensorFlow crashes on those
    assert [case.path.name for case in judged[::8] if not is_right(case)] == []


def test_records_that_are_not_examples_are_those_that_protobuf_rejects(cases):
    for case in cases[::9]:
        found = [p for p in verify(case.path).problems if "not a tf.train.Example" in p.reason]
        rejected = [record for record in case.survivors if not is_example(record)]
        assert len(found) == len(rejected), case.path.name


def test_valid_records_of_corrupt_files_are_repaired(tmp_path):
    cases = corrupt_files(tmp_path, example_records)
    # If the first bytes are corrupt, the compression is not detected.
    cases = [case for case in cases if case.compression is None or case.first != (0, 0)]
    wrong = []
    for number, case in enumerate(cases[::23]):
        new = tmp_path / str(number)
        survivors = [record for record in case.survivors if is_example(record)]
        if not survivors:
            with pytest.raises(covey.errors.DatasetError, match="no valid records"):
                repair(case.path, new)
            continue
        repaired = repair(case.path, new, threads=1)
        lost = [p for p in repaired.lost if "Example" not in p.reason]
        first = (lost[0].record, lost[0].offset) if lost else None
        if records(new) != survivors or first != case.first or not verify(new).is_valid:
            wrong.append(case.path.name)
    assert wrong == []


def test_verify_of_files_that_tensorflow_compressed(tmp_path):
    for name, compression in (("a", "GZIP"), ("b", "ZLIB"), ("c", "")):
        with tf.io.TFRecordWriter(str(tmp_path / f"{name}.tfrecord"), compression) as writer:
            for n in range(50):
                writer.write(example(label=[n % 4], x=[b"abc" * n]))
    covey.build_index(tmp_path, label="label", progress=False)
    report = verify(tmp_path)
    assert (report.problems, report.records) == ((), 150)


def test_tfds_opens_a_repaired_dataset(tmp_path):
    examples = [{"size": n, "species": NAMES[n % 3]} for n in range(60)]
    write(examples, tmp_path / "birds", label="species")
    offset = int(index(tmp_path / "birds")["offset"][3])
    with open(shard_paths(tmp_path / "birds")[0], "r+b") as file:
        file.seek(offset + 14)
        file.write(b"?")
    repair(tmp_path / "birds", tmp_path / "new")
    builder = tfds.builder_from_directory(tmp_path / "new")
    assert builder.info.splits["train"].num_examples == 59
    found = [each["size"] for each in tfds.as_numpy(builder.as_dataset(split="train"))]
    assert len(found) == 59
    assert set(found) < set(range(60))
    assert builder.info.features["species"].names == list(NAMES)


class Frames(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset with features that covey reads as their stored form."""

    VERSION = tfds.core.Version("1.0.0")
    name = "frames"
    pkg_dir_path = None

    def _info(self):
        features = {
            "caption": tfds.features.Text(),
            "words": tfds.features.Sequence(tfds.features.ClassLabel(names=["a", "b"])),
            "mask": tfds.features.LabeledImage(labels=3, shape=(4, 4, 1)),
            "label": tfds.features.ClassLabel(names=["crow", "owl"]),
            "both": tfds.features.Translation(languages=["en", "fr"]),
        }
        features = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=features, citation="Author (2020)")

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(9), "test": self._generate_examples(3)}

    def _generate_examples(self, count):
        for n in range(count):
            yield (
                n,
                {
                    "caption": f"bird {n}",
                    "words": ["a", "b"][: n % 3],
                    "mask": np.full((4, 4, 1), n % 3, np.uint8),
                    "label": n % 2,
                    "both": {"en": "bird", "fr": "oiseau"},
                },
            )


@pytest.fixture(scope="module")
def by_tfds(tmp_path_factory):
    tfds.disable_progress_bar()
    builder = Frames(data_dir=tmp_path_factory.mktemp("tfds"))
    builder.download_and_prepare()
    return os.fspath(builder.data_path)


def read_by_tfds(directory, split):
    read = tfds.builder_from_directory(directory).as_dataset(split=split)
    return [tf.nest.map_structure(repr, each) for each in tfds.as_numpy(read)]


@pytest.mark.parametrize("indexed", [False, True])
def test_repair_keeps_the_features_of_tfds(by_tfds, tmp_path, indexed):
    old, new = shutil.copytree(by_tfds, tmp_path / "1.0.0"), tmp_path / "new"
    if indexed:
        covey.build_index(old, progress=False)
    assert verify(old).is_valid
    repaired = repair(old, new)
    assert (repaired.records, repaired.lost) == (12, ())
    for name in ("features.json", "label.labels.txt", "words.labels.txt"):
        assert (new / name).read_bytes() == (old / name).read_bytes()
    assert verify(new).is_valid
    assert repaired.written[0].label == "label"
    for split in ("train", "test"):
        assert read_by_tfds(new, split) == read_by_tfds(old, split)


# URLs.


def upload(directory, url):
    storage = open_storage(url)
    for path in directory.iterdir():
        storage.upload(str(path), f"{url}/{path.name}")
    return storage


def run(capsys, *arguments, status=0):
    assert main([*map(str, arguments), "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_verify_and_repair_of_a_url(tmp_path, capsys):
    birds = tmp_path / "birds"
    write([{"size": n, "species": NAMES[n % 3]} for n in range(60)], birds, label="species")
    url, new = "memory://verify/birds", "memory://verify/new"
    storage = upload(birds, url)
    assert run(capsys, "verify", url, "--storage-option", "x=1")["valid"]
    (path,) = shard_paths(birds)
    data = bytearray(path.read_bytes())
    data[int(index(birds)["offset"][3]) + 14] ^= 1
    storage.write(f"{url}/{path.name}", bytes(data))
    rows = index_names("birds-train")["rows"]
    storage.write(f"{url}/{rows}", (birds / rows).read_bytes()[:-1])
    problems = run(capsys, "verify", url, status=1)["problems"]
    assert [(each["file"], each["record"]) for each in problems] == [(rows, None), (path.name, 3)]
    assert run(capsys, "repair", url, "--output", new)["records"] == 59
    assert run(capsys, "verify", new)["valid"]
    assert main(["repair", f"{url}/", "--output", url]) == 1
    assert "must be a directory outside" in capsys.readouterr().err


def test_index_of_a_url(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "source"
    source.mkdir()
    with covey.RecordWriter(source / "x.tfrecord") as writer:
        for n in range(6):
            writer.write(example(x=[n], kind=[NAMES[n % 3].encode()]))
    storage = upload(source, "memory://index")
    url = "memory://index/x.tfrecord"

    def names():
        return {storage.name(each) for each in storage.list("memory://index")}

    def split(*arguments):
        return run(capsys, *arguments)["splits"]["all"]

    # An index in the cache is copied to the shards.
    with covey.open(url, progress=False):
        pass
    assert names() == {"x.tfrecord"}
    assert split("info", url)["index"] == "fresh"
    assert not split("index", url)["built"]
    parts = index_names("x-52d584dfce9f")
    assert names() == {"x.tfrecord", parts["rows"], parts["metadata"]}
    assert split("index", url, "--label", "kind", "--export-dali")["built"]
    assert names() == {"x.tfrecord", "x.idx", *parts.values()}
    assert not split("index", url)["built"]
    with covey.open(url) as dataset:
        assert tuple(dataset.classes) == NAMES
    assert split("info", url)["classes"]["count"] == 3
    assert run(capsys, "verify", url)["valid"]
