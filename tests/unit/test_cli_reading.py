"""covey verify, repair, info and index, as commands: what they say, and how they end."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from corrupt_files import frame
from written import files, index, replaced, shard_paths, write

import covey
from covey.cli import COMMANDS, main
from covey.index import index_names
from covey.maintenance.info import histogram
from covey.storage import open_storage

NAMES = ("crow", "owl", "wren")


def birds(count=60):
    return [{"size": n, "song": [n / 2, 1.0], "species": NAMES[n % 3]} for n in range(count)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sound") / "birds"
    write(birds(), directory, label="species", shards=3)
    write(birds(9), directory, "test")
    return directory


@pytest.fixture
def directory(sound, tmp_path, monkeypatch):
    """The dataset ``birds``, in the directory that commands are run in."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(sound, tmp_path / "birds")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))


def run(capsys, *arguments, code=0):
    """What a command prints."""
    assert main([*map(str, arguments)]) == code
    return capsys.readouterr().out


def error_of(capsys, *arguments, code=1):
    assert main([*map(str, arguments)]) == code
    found = capsys.readouterr()
    assert found.out == ""
    assert "Traceback" not in found.err
    return found.err


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def damage(directory, number=3):
    row = index(directory)[number]
    with open(shard_paths(directory)[0], "r+b") as file:
        file.seek(int(row["offset"]) + 14)
        file.write(b"?")
    return int(row["offset"])


def put_records(path, count=6):
    features = covey.Features({"x": "int64", "species": "str"})
    records = [features.encode({"x": n, "species": NAMES[n % 3]}) for n in range(count)]
    path.write_bytes(b"".join(map(frame, records)))
    return path


# All of them.


@pytest.mark.parametrize("command", ["verify", "repair", "info", "index"])
def test_help(capsys, command):
    assert command in {each.name for each in COMMANDS}
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert "PATH" in said
    assert "--json" in said
    assert f"covey {command} " in said.partition("examples:")[2]


@pytest.mark.parametrize("command", ["verify", "info", "index", "repair"])
def test_missing_path(tmp_path, capsys, command):
    more = ["--output", str(tmp_path / "new")] if command == "repair" else []
    said = error_of(capsys, command, tmp_path / "nowhere", *more)
    assert said.startswith("covey: error: ")
    assert "there is no such file or directory" in said
    assert "split 'nope'" not in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["verify", "info", "index"])
def test_unknown_split(directory, capsys, command):
    said = error_of(capsys, command, "birds", "--split", "val")
    assert "split is 'val'; must be one of train, test" in said


@pytest.mark.parametrize("command", ["verify", "info", "index", "repair"])
def test_invalid_arguments(capsys, command):
    assert "PATH" in refusal(capsys, command)
    assert "must be NAME=VALUE" in refusal(capsys, command, "x", "--storage-option", "anon")


def test_exit_status_of_the_process(directory):
    """The status is that of the process, and progress is on the other output."""
    damage(directory)
    command = [sys.executable, "-m", "covey", "verify", "birds", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["problems"]) == 1
    assert done.stderr == ""


# covey verify


def test_verify_of_a_valid_dataset(directory, capsys):
    said = run(capsys, "verify", "birds")
    assert re.fullmatch(r"birds: 4 files, 69 records and [\d.]+ kB checked: no problems\n", said)
    assert run(capsys, "verify", "birds", "--quiet") == ""


def test_verify_of_a_corrupt_record(directory, capsys):
    offset = damage(directory)
    said = run(capsys, "verify", "birds", code=1).splitlines()
    assert said[0].endswith("checked: 1 problem")
    assert re.fullmatch(r"  file +record  offset  problem", said[1])
    pattern = rf"  birds-train.tfrecord-00000-of-00003 +3 +{offset}  data checksum is 0x\w+, .*"
    assert re.fullmatch(pattern, said[2])
    assert run(capsys, "verify", "birds", "-q", code=1).splitlines() == said
    assert run(capsys, "verify", "birds", "--split", "test").endswith("no problems\n")


def test_verify_as_json(directory, capsys):
    offset = damage(directory)
    content = json.loads(run(capsys, "verify", "birds", "--json", code=1))
    assert (content["valid"], content["records"], content["files"]) == (False, 68, 4)
    (problem,) = content["problems"]
    assert problem["split"] == "train"
    assert (problem["record"], problem["offset"]) == (3, offset)
    assert os.path.exists(os.path.join(content["directory"], problem["file"]))
    assert json.loads(run(capsys, "verify", "birds", "--json", "--split", "test"))["valid"]


def test_verify_lists_the_first_fifty(tmp_path, capsys):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frame(b"\xff") * 70)
    lines = run(capsys, "verify", path, code=1).splitlines()
    assert len(lines) == 2 + 50 + 1
    assert lines[-1] == "  and 20 more; --json lists them all"
    assert len(json.loads(run(capsys, "verify", path, "--json", code=1))["problems"]) == 70


def test_verify_of_a_url(directory, capsys):
    storage = open_storage("memory://verify")
    for path in directory.iterdir():
        storage.upload(str(path), f"memory://verify/birds/{path.name}")
    said = run(capsys, "verify", "memory://verify/birds", "--storage-option", "x=1")
    assert said.endswith("no problems\n")
    damage(directory)
    name = shard_paths(directory)[0].name
    storage.upload(str(directory / name), f"memory://verify/birds/{name}")
    rows = index_names("birds-train")["rows"]
    storage.write(f"memory://verify/birds/{rows}", (directory / rows).read_bytes()[:-1])
    content = json.loads(run(capsys, "verify", "memory://verify/birds", "--json", code=1))
    assert [(p["file"], p["record"]) for p in content["problems"]] == [(rows, None), (name, 3)]


# covey repair


def test_repair(directory, capsys):
    offset = damage(directory)
    before = files(directory)
    said = run(capsys, "repair", "birds", "--output", "new").splitlines()
    assert said[0] == "birds: 68 records copied to new; 1 loss"
    assert said[2].split()[:3] == ["birds-train.tfrecord-00000-of-00003", "3", str(offset)]
    assert files(directory) == before
    assert run(capsys, "verify", "new").endswith("no problems\n")
    assert "split 'train'" in error_of(capsys, "repair", "birds", "--output", "new")
    run(capsys, "repair", "birds", "--output", "new", "--mode", "overwrite", "--split", "test")


def test_repair_as_json_and_with_a_report(directory, capsys):
    damage(directory)
    said = run(capsys, "repair", "birds", "--output", "new", "--json", "--report", "lost.jsonl")
    content = json.loads(said)
    assert content["splits"]["train"]["records"] == 59
    with open("lost.jsonl") as file:
        assert [json.loads(line) for line in file] == content["lost"]
    said = run(capsys, "repair", "birds", "--output", "other", "--split", "test", "-q")
    assert said == ""


def test_repair_saves_nothing(tmp_path, capsys):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"nothing")
    said = error_of(capsys, "repair", path, "--output", tmp_path / "new")
    assert "there are no valid records; the first problem is x.tfrecord: the file ends" in said
    assert not (tmp_path / "new").exists()


def test_repair_is_refused(directory, capsys, tmp_path):
    assert "must be a directory outside" in error_of(capsys, "repair", "birds", "--output", "birds")
    said = error_of(capsys, "repair", "birds", "--output", "new", "--report", "no/where")
    assert "--report: the report cannot be written" in said
    assert not (tmp_path / "new").exists()


def test_repair_in_place_deletes_replaced_versions(directory, capsys):
    current = files(directory)
    assert run(capsys, "repair", "birds") == (
        "birds: 0 files of interrupted writes and old versions deleted\n"
    )
    assert files(directory) == current
    for mode in ("overwrite", "append"):
        write(birds(5), directory, "test", mode=mode)
    old = sorted(replaced(directory))
    current = {name: data for name, data in files(directory).items() if name not in old}
    said = json.loads(run(capsys, "repair", "birds", "--json"))
    assert said["deleted"] == old
    assert len(old) > 0
    assert files(directory) == current


def test_repair_from_and_to_a_url(directory, capsys):
    damage(directory)
    storage = open_storage("memory://repair")
    for path in directory.iterdir():
        storage.upload(str(path), f"memory://repair/birds/{path.name}")
    said = run(capsys, "repair", "memory://repair/birds", "--output", "memory://repair/new")
    assert "68 records copied to memory://repair/new" in said
    assert run(capsys, "verify", "memory://repair/new").endswith("no problems\n")
    said = error_of(capsys, "repair", "memory://repair/birds/", "--output", "memory://repair/birds")
    assert "must be a directory outside" in said


# covey info


def test_info(directory, capsys):
    said = run(capsys, "info", "birds")
    assert said.splitlines() == [
        "birds: a dataset in the layout of TFDS",
        "  feature  type",
        "  size     int64",
        "  song     float32 (2,)",
        "  species  ClassLabel of 3 classes",
        "  split  examples  shards       size  compression  index",
        "  train        60       3     4.4 kB         none  fresh",
        "  test          9       1  657 bytes         none  fresh",
        "train: 3 classes of 'species'",
        "  20 examples each",
        "test: 3 classes of 'species'",
        "  3 examples each",
    ]


def test_info_of_class_sizes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = [int(3 * 1.2**n) for n in range(40)]
    labels = np.repeat(np.arange(40), sizes)
    write({"x": np.arange(len(labels)), "label": labels}, "birds", label="label")
    said = run(capsys, "info", "birds")
    assert all(len(line) <= 80 for line in said.splitlines())
    assert all(ord(each) < 128 for each in said)
    assert "  smallest          3  0\n" in said
    assert f"  median    {sizes[19]:>9,}  19\n" in said
    assert f"  largest   {sizes[39]:>9,}  39\n" in said
    bars = re.findall(r"^ +([\d,]+) to ([\d,]+) +(\d+)  (#+)$", said, re.MULTILINE)
    assert len(bars) == 10
    for low, high, count, bar in bars:
        inside = [int(low.replace(",", "")) <= n <= int(high.replace(",", "")) for n in sizes]
        assert sum(inside) == int(count)
        assert bar
    content = json.loads(run(capsys, "info", "birds", "--json"))
    classes = content["splits"]["train"]["classes"]
    assert classes["median"] == {"name": "19", "records": sizes[19]}
    assert sum(each["classes"] for each in classes["histogram"]) == 40


@pytest.mark.parametrize("top", [1, 5, 12, 13, 40, 1000, 10**6, 10**12])
def test_a_histogram_counts_every_class_once(top):
    counts = np.unique(np.geomspace(1, top, 200).astype(np.int64))
    for low in (0, top * 5):
        bins = histogram(counts + low)
        assert sum(count for *_, count in bins) == len(counts)
        assert len(bins) <= 20
        assert all(a[1] < b[0] for a, b in itertools.pairwise(bins))


def test_info_reads_no_record_and_writes_nothing(directory, capsys, monkeypatch):
    before = files(directory)

    def fail(*_, **__):
        raise AssertionError("a record was read")

    monkeypatch.setattr("covey.tfrecord.reader.RecordReader.blocks", fail)
    monkeypatch.setattr("covey._core.scan_frames", fail)
    assert "60" in run(capsys, "info", "birds")
    assert files(directory) == before


def test_info_without_an_index(tmp_path, capsys):
    path = put_records(tmp_path / "x.tfrecord")
    said = run(capsys, "info", path)
    assert "TFRecord files" in said
    assert "type (of the first record)" in said
    assert re.search(r"all +\? +1 .* none +missing", said)
    assert f"`covey index {path} --label NAME` builds one" in said
    assert os.listdir(tmp_path) == ["x.tfrecord"]
    content = json.loads(run(capsys, "info", path, "--json"))
    assert content["splits"]["all"]["records"] is None
    assert content["features_of_first_record_only"] is True


def test_info_of_a_stale_or_corrupt_index(directory, capsys):
    path = shard_paths(directory)[1]
    with open(path, "ab") as file:
        file.write(frame(b""))
    said = run(capsys, "info", "birds")
    assert re.search(r"train +60 .* stale", said)
    assert "train: the index is stale: " in said
    assert f"{path.name}: the shard has grown" in said
    (directory / "birds-test.index.json").write_text("{")
    assert re.search(r"test +9 .* (corrupt|damaged)", run(capsys, "info", "birds"))
    shutil.copy(directory / "birds-train.index.json", directory / "birds-test.index.json")
    assert "its shards are not those of the split" in run(
        capsys, "info", "birds", "--split", "test"
    )


def test_info_of_missing_shards(directory, capsys):
    shard_paths(directory)[1].unlink()
    said = run(capsys, "info", "birds")
    assert "train: birds-train.tfrecord-00001-of-00003: missing" in said


def test_info_without_classes(tmp_path, capsys):
    write([{"x": 1}], tmp_path)
    said = run(capsys, "info", tmp_path)
    assert "train: no label feature; `covey index" in said


# covey index


def test_index_of_a_file(tmp_path, capsys):
    path = put_records(tmp_path / "x.tfrecord")
    said = run(capsys, "index", path, "--label", "species").splitlines()
    assert said[0] == f"{path}: label 'species'"
    header = ["split", "examples", "classes", "per", "class", "shards", "size", "index", "time"]
    assert said[1].split() == header
    assert said[2].split()[:5] == ["all", "6", "3", "2", "1"]
    assert said[2].split()[-3:-2] == ["built"]
    names = index_names("x.tfrecord")
    assert sorted(os.listdir(tmp_path)) == sorted(["x.tfrecord", *names.values()])
    assert "kept" in run(capsys, "index", path)
    with covey.open(path) as dataset:
        assert dataset.classes.names == NAMES
    assert run(capsys, "verify", path).endswith("no problems\n")


def test_index_is_rebuilt_only_if_needed(tmp_path, capsys):
    path = put_records(tmp_path / "x.tfrecord")

    def is_made(*more):
        return json.loads(run(capsys, "index", path, "--json", *more))["splits"]["all"]["built"]

    assert is_made("--label", "species")
    assert not is_made()
    assert not is_made("--label", "species")
    assert is_made("--force")
    assert is_made("--label", "x")
    put_records(path, 7)
    assert is_made()
    content = json.loads(run(capsys, "index", path, "--json"))["splits"]["all"]
    assert (content["label"], content["records"]) == ("x", 7)
    (tmp_path / "x.tfrecord.index.npy").write_bytes(b"")
    assert is_made()
    (tmp_path / "x.tfrecord.index.json").write_text("{")
    assert is_made("--label", "@file")
    assert not is_made("--label", "@file")


def test_index_without_a_label_leaves_nothing_of_the_old_one(tmp_path, capsys):
    path = put_records(tmp_path / "x.tfrecord")
    run(capsys, "index", path, "--label", "species")
    features = covey.Features({"y": "float32"})
    path.write_bytes(frame(features.encode({"y": 1.0})))
    assert "no label" in run(capsys, "index", path)
    assert not (tmp_path / "x.tfrecord.classes.npy").exists()
    assert run(capsys, "verify", path).endswith("no problems\n")


def test_index_of_a_dataset_that_covey_wrote(directory, capsys):
    names = index_names("birds-train").values()
    before = {name: (directory / name).read_bytes() for name in names}
    assert "kept" in run(capsys, "index", "birds")
    run(capsys, "index", "birds", "--force")
    assert {name: (directory / name).read_bytes() for name in names} == before
    for name in names:
        (directory / name).unlink()
    assert "built" in run(capsys, "index", "birds")
    assert run(capsys, "verify", "birds").endswith("no problems\n")


def test_index_of_a_shard_that_has_grown(directory, capsys):
    path = shard_paths(directory)[0]
    with covey.RecordReader(path) as reader:
        record = next(iter(reader))
    with open(path, "ab") as file:
        file.write(frame(record))
    assert main(["index", "birds", "--split", "train"]) == 0
    said = capsys.readouterr()
    assert "61" in said.out
    assert f"{path.name} has 21 records, but 20 in the metadata; `covey repair`" in said.err
    assert main(["repair", "birds", "--output", "new"]) == 0
    assert main(["verify", "new"]) == 0


def test_index_of_corrupt_records(directory, capsys):
    damage(directory)
    said = error_of(capsys, "index", "birds", "--force")
    assert "record 3 at byte" in said
    assert "`covey repair birds --output NEW` copies the valid records" in said


def test_index_with_an_unknown_label(directory, capsys):
    said = error_of(capsys, "index", "birds", "--label", "colour")
    assert "--label is 'colour'; must be one of the features size, song, species" in said


def test_index_in_a_directory_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    path = put_records(tmp_path / "x.tfrecord")

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("covey.maintenance.build_index.write_index", fail)
    said = error_of(capsys, "index", path)
    assert "the index cannot be written (Permission denied)" in said


def test_index_to_and_from_dali(directory, capsys):
    said = run(capsys, "index", "birds", "--export-dali").splitlines()
    assert said[-1] == "4 DALI index files written, such as birds-train.tfrecord-00000-of-00003.idx"
    rows = (directory / "birds-train.index.npy").read_bytes()
    run(capsys, "index", "birds", "--export-dali", "idx")
    assert len(os.listdir("idx")) == 4
    for name in index_names("birds-train").values():
        (directory / name).unlink()
    content = json.loads(run(capsys, "index", "birds", "--import-dali", "idx", "--json"))
    assert content["splits"]["train"]["built"] is True
    assert (directory / "birds-train.index.npy").read_bytes() == rows
    assert "built" in run(capsys, "index", "birds", "--import-dali")
    assert run(capsys, "verify", "birds").endswith("no problems\n")
    with open("idx/birds-train.tfrecord-00001-of-00003.idx", "a") as file:
        file.write("five\n")
    said = error_of(capsys, "index", "birds", "--import-dali", "idx")
    assert "idx/birds-train.tfrecord-00001-of-00003.idx:21: the line is b'five'" in said


def test_index_of_compressed_shards_for_dali(tmp_path, capsys):
    write(birds(), tmp_path, label="species", compression="GZIP")
    said = error_of(capsys, "index", tmp_path, "--export-dali")
    assert f"{tmp_path}: the shards are compressed (GZIP)" in said


def test_index_that_is_only_in_the_cache_is_brought_to_the_shards(tmp_path, capsys):
    path = put_records(tmp_path / "x.tfrecord")
    storage = open_storage("memory://cached")
    url = "memory://cached/x.tfrecord"
    storage.upload(str(path), url)
    with covey.open(url, progress=False):
        pass
    assert len(storage.list("memory://cached")) == 1
    assert re.search(r"all +6 .* fresh", run(capsys, "info", url))
    assert "kept" in run(capsys, "index", url)
    assert len(storage.list("memory://cached")) == 3
    assert run(capsys, "verify", url).endswith("no problems\n")


def test_index_behind_a_url_is_put_beside_the_shards(tmp_path, capsys):
    path = put_records(tmp_path / "x.tfrecord")
    storage = open_storage("memory://index")
    storage.upload(str(path), "memory://index/x.tfrecord")
    url = "memory://index/x.tfrecord"
    assert "built" in run(capsys, "index", url, "--label", "species", "--export-dali")
    there = sorted(storage.name(each) for each in storage.list("memory://index"))
    names = index_names("x.tfrecord").values()
    assert there == sorted(["x.tfrecord", "x.tfrecord.idx", *names])
    assert "kept" in run(capsys, "index", url)
    with covey.open(url) as dataset:
        assert dataset.classes.names == NAMES
    assert run(capsys, "verify", url).endswith("no problems\n")
    said = run(capsys, "info", url)
    assert "fresh" in said
    assert "2 examples each" in said
