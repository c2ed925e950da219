"""Commands: help, and ``covey verify``, ``repair``, ``info`` and ``index`` of local files."""

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
from written import files, index, replaced, write

import covey
from covey.cli import COMMANDS, main
from covey.cli.info import histogram
from covey.index import index_names

NAMES = ("crow", "owl", "wren")
STEM = "x-52d584dfce9f"  # of x.tfrecord
SHARD = "birds-train.tfrecord-00000-of-00003"


def birds(count=60):
    return [{"size": n, "song": [n / 2, 1.0], "species": NAMES[n % 3]} for n in range(count)]


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    directory = tmp_path_factory.mktemp("valid") / "birds"
    write(birds(), directory, label="species", shards=3)
    write(birds(9), directory, "test")
    return directory


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COVEY_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def directory(valid, tmp_path):
    """The dataset ``birds``, in the working directory."""
    return shutil.copytree(valid, tmp_path / "birds")


@pytest.fixture
def corrupt(directory):
    """The offset of record 3 of ``birds``, whose data is corrupt."""
    offset = int(index(directory)["offset"][3])
    with open(directory / SHARD, "r+b") as file:
        file.seek(offset + 14)
        file.write(b"?")
    return offset


@pytest.fixture
def file(tmp_path):
    """A file of six records."""
    return write_records(tmp_path / "x.tfrecord")


def write_records(path, count=6):
    features = covey.Features({"x": "int64", "species": "str"})
    records = [features.encode({"x": n, "species": NAMES[n % 3]}) for n in range(count)]
    path.write_bytes(b"".join(map(frame, records)))
    return path


def run(capsys, *arguments, status=0):
    """Run a command; return its output."""
    assert main([*map(str, arguments)]) == status
    return capsys.readouterr().out


def run_json(capsys, *arguments, status=0):
    return json.loads(run(capsys, *arguments, "--json", status=status))


def error_of(capsys, *arguments):
    """Run a command that fails; return its message."""
    assert main([*map(str, arguments)]) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("covey: error: ")
    return found.err


# All commands.


@pytest.mark.parametrize("command", COMMANDS)
def test_help(capsys, command):
    options = [command, "--help"]
    for arguments, expected in (["--help"], f"\n    {command}"), (options, "--storage-option"):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        assert end.value.code == 0
        found = capsys.readouterr().out
        assert expected in found
    assert f"covey {command} " in found.partition("examples:")[2]


@pytest.mark.parametrize("command", ["verify", "info", "index", "repair --output new"])
def test_errors_of_every_command(directory, capsys, command):
    command, *more = command.split()
    output = error_of(capsys, command, "nowhere", *more)
    assert "there is no such file or directory" in output
    output = error_of(capsys, command, "birds", *more, "--split", "val")
    assert "--split is 'val'; must be one of 'train', 'test'" in output
    for arguments, message in [
        ([], "PATH"),
        (["x", "--storage-option", "anon"], "must be NAME=VALUE"),
    ]:
        with pytest.raises(SystemExit) as end:
            main([command, *arguments])
        assert end.value.code == 2
        assert message in capsys.readouterr().err
    assert os.listdir() == ["birds"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--workers 2", "--workers needs --engine processes"),
        ("--engine ray --workers 2", "--workers needs --engine processes"),
    ],
)
def test_options_of_an_engine_of_commit(capsys, options, message):
    with pytest.raises(SystemExit) as end:
        main(["commit", "birds", *options.split()])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("corrupt")
def test_exit_status_of_the_process():
    command = [sys.executable, "-m", "covey", "verify", "birds", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["problems"]) == 1
    assert done.stderr == ""


# covey verify


@pytest.mark.usefixtures("directory")
def test_verify_of_a_valid_dataset(capsys):
    output = run(capsys, "verify", "birds")
    assert re.fullmatch(r"birds: 4 files, 69 records and [\d.]+ kB checked: no problems\n", output)
    assert run(capsys, "verify", "birds", "--quiet") == ""


def test_verify_of_a_corrupt_record(corrupt, capsys):
    output = run(capsys, "verify", "birds", status=1).splitlines()
    assert output[0].endswith("checked: 1 problem")
    assert re.fullmatch(r"  file +record  offset  problem", output[1])
    assert re.fullmatch(rf"  {SHARD} +3 +{corrupt}  data checksum is 0x\w+, .*", output[2])
    assert run(capsys, "verify", "birds", "-q", status=1).splitlines() == output
    content = run_json(capsys, "verify", "birds", status=1)
    assert (content["valid"], content["records"], content["files"]) == (False, 68, 4)
    (problem,) = content["problems"]
    assert (problem["split"], problem["record"], problem["offset"]) == ("train", 3, corrupt)
    assert os.path.exists(os.path.join(content["directory"], problem["file"]))
    assert run_json(capsys, "verify", "birds", "--split", "test")["valid"]


def test_verify_lists_the_first_fifty_problems(tmp_path, capsys):
    (tmp_path / "x.tfrecord").write_bytes(frame(b"\xff") * 70)
    lines = run(capsys, "verify", "x.tfrecord", status=1).splitlines()
    assert len(lines) == 2 + 50 + 1
    assert lines[-1] == "  and 20 more; see `problems`, or --json"
    assert len(run_json(capsys, "verify", "x.tfrecord", status=1)["problems"]) == 70


# covey repair


def test_repair(directory, corrupt, capsys):
    before = files(directory)
    output = run(capsys, "repair", "birds", "--output", "new").splitlines()
    assert output[0] == "birds: 68 records copied to new; 1 loss"
    assert output[2].split()[:3] == [SHARD, "3", str(corrupt)]
    assert files(directory) == before
    assert run(capsys, "verify", "new").endswith("no problems\n")
    assert "split 'train'" in error_of(capsys, "repair", "birds", "--output", "new")
    run(capsys, "repair", "birds", "--output", "new", "--mode", "overwrite", "--split", "test")
    report = ["--report", "lost.jsonl"]
    content = run_json(capsys, "repair", "birds", "--output", "other", *report)
    assert content["splits"]["train"]["records"] == 59
    with open("lost.jsonl") as lost:
        assert [json.loads(line) for line in lost] == content["lost"]
    assert run(capsys, "repair", "birds", "--output", "third", "--split", "test", "-q") == ""


def test_errors_of_repair(directory, capsys):
    (directory.parent / "x.tfrecord").write_bytes(b"nothing")
    for arguments, message in [
        ("birds --output birds", "--output is 'birds'; must be a directory outside"),
        ("birds --output new --report no/where", "--report: the report cannot be written"),
        ("birds --output new --delete-parts", "--delete-parts is True; must be False with"),
        ("x.tfrecord --output new", "no valid records; the first problem is x.tfrecord: the file"),
    ]:
        assert message in error_of(capsys, "repair", *arguments.split())
    assert sorted(os.listdir()) == ["birds", "x.tfrecord"]


def test_repair_in_place_deletes_replaced_versions(directory, capsys):
    current = files(directory)
    assert run(capsys, "repair", "birds") == (
        "birds: 0 files of interrupted writes and old versions deleted\n"
    )
    assert files(directory) == current
    for mode in ("overwrite", "append"):
        write(birds(5), directory, "test", mode=mode)
    assert replaced(directory)
    old = sorted(str(path.relative_to(directory)) for path in directory.glob(".covey-old/*"))
    current = {
        name: data for name, data in files(directory).items() if not name.startswith(".covey-old")
    }
    assert run_json(capsys, "repair", "birds")["deleted"] == old
    assert files(directory) == current


def test_repair_in_place_lists_parts(directory, capsys):
    before = files(directory)
    write(birds(5), directory, "more", part="1/2")
    assert run(capsys, "repair", "birds").splitlines()[1:] == [
        "  .covey-parts-more: parts that are not committed; `covey commit` commits them, "
        "`covey repair --delete-parts` deletes them"
    ]
    assert run_json(capsys, "repair", "birds")["parts"] == [".covey-parts-more"]
    content = run_json(capsys, "repair", "birds", "--delete-parts")
    assert (content["deleted"], content["parts"]) == ([".covey-parts-more"], [])
    assert files(directory) == before


# covey info


@pytest.mark.usefixtures("directory")
def test_info(capsys):
    assert run(capsys, "info", "birds").splitlines() == [
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
        "train: values of all 60 examples",
        "  feature  min   max   mean  NaN",
        "  size       0    59   29.5    -",
        "  song       0  29.5  7.875    0",
        "test: 3 classes of 'species'",
        "  3 examples each",
        "test: values of all 9 examples",
        "  feature  min  max  mean  NaN",
        "  size       0    8     4    -",
        "  song       0    4   1.5    0",
    ]


def test_info_of_class_sizes(capsys):
    sizes = [int(3 * 1.2**n) for n in range(40)]
    labels = np.repeat(np.arange(40), sizes)
    write({"x": np.arange(len(labels)), "label": labels}, "birds", label="label")
    output = run(capsys, "info", "birds")
    assert all(len(line) <= 80 for line in output.splitlines())
    assert output.isascii()
    for which, number in (("smallest", 0), ("median", 19), ("largest", 39)):
        assert f"  {which:8}  {sizes[number]:>9,}  {number}\n" in output
    bars = re.findall(r"^ +([\d,]+) to ([\d,]+) +(\d+)  (#+)$", output, re.MULTILINE)
    assert len(bars) == 10
    for low, high, count, bar in bars:
        inside = [int(low.replace(",", "")) <= n <= int(high.replace(",", "")) for n in sizes]
        assert sum(inside) == int(count)
        assert bar
    classes = run_json(capsys, "info", "birds")["splits"]["train"]["classes"]
    assert classes["median"] == {"name": "19", "records": sizes[19]}
    assert sum(each["classes"] for each in classes["histogram"]) == 40


@pytest.mark.parametrize("top", [1, 5, 12, 13, 40, 1000, 10**6, 10**12])
def test_histogram_counts_every_class_once(top):
    counts = np.unique(np.geomspace(1, top, 200).astype(np.int64))
    for low in (0, top * 5):
        bins = histogram(counts + low)
        assert sum(count for *_, count in bins) == len(counts)
        assert len(bins) <= 14
        assert all(a[1] < b[0] for a, b in itertools.pairwise(bins))


def test_info_without_an_index(file, capsys):
    output = run(capsys, "info", file)
    assert "TFRecord files" in output
    assert "type (of the first record)" in output
    assert re.search(r"all +\? +1 .* none +missing", output)
    assert f"`covey index {file} --label NAME` builds one" in output
    content = run_json(capsys, "info", file)
    assert content["splits"]["all"]["records"] is None
    assert content["features_of_first_record_only"] is True
    assert os.listdir() == ["x.tfrecord"]


def test_info_of_stale_and_corrupt_files(directory, capsys):
    """No record is read: the shards need not be readable."""
    path = directory / SHARD
    path.write_bytes(b"\xff" * path.stat().st_size)
    before = files(directory)
    output = run(capsys, "info", "birds")
    assert re.search(r"train +60 .* stale", output)
    assert f"train: the index is stale: {path}: the shard is not the one" in output
    assert files(directory) == before
    path.unlink()
    assert f"train: {SHARD}: missing" in run(capsys, "info", "birds")
    (directory / "birds-test.index.json").write_text("{")
    assert re.search(r"test +9 .* corrupt", run(capsys, "info", "birds"))
    shutil.copy(directory / "birds-train.index.json", directory / "birds-test.index.json")
    output = run(capsys, "info", "birds", "--split", "test")
    assert "its shards are not those of the split" in output


def test_info_of_the_build(capsys, monkeypatch):
    lines = run(capsys, "info", "--build").splitlines()
    assert lines[0] == f"covey {covey.__version__}"
    assert f"CRC-32C: {covey._core.crc32c_implementations()[0]}" in lines
    decoders = ("libjpeg-turbo 2.1.5", "libpng 1.6.39")
    monkeypatch.setattr(covey._core, "IMAGE_DECODERS", decoders, raising=False)
    lines = run(capsys, "info", "--build").splitlines()
    assert [f"image decoder: {each}" for each in decoders] == [
        each for each in lines if each.startswith("image decoder")
    ]
    content = run_json(capsys, "info", "--build")
    assert content["image_decoders"] == list(decoders)
    assert content["numpy"] == np.__version__
    with pytest.raises(SystemExit):
        main(["info"])
    assert "required: PATH" in capsys.readouterr().err


def test_info_without_classes(capsys):
    write([{"x": 1}], "birds")
    assert "train: no label feature; `covey index" in run(capsys, "info", "birds")


# covey index


def test_index_of_a_file(file, tmp_path, capsys):
    output = run(capsys, "index", file, "--label", "species").splitlines()
    assert output[0] == f"{file}: label 'species'"
    header = ["split", "examples", "classes", "per", "class", "shards", "size", "index", "time"]
    assert output[1].split() == header
    assert output[2].split()[:5] == ["all", "6", "3", "2", "1"]
    assert output[2].split()[-3:-2] == ["built"]
    names = index_names(STEM)
    assert sorted(os.listdir(tmp_path)) == sorted(["x.tfrecord", *names.values()])
    with covey.open(file) as dataset:
        assert tuple(dataset.classes) == NAMES
    assert run(capsys, "verify", file).endswith("no problems\n")


def test_index_is_rebuilt_only_if_needed(file, tmp_path, capsys):
    def is_built(*more):
        return run_json(capsys, "index", file, *more)["splits"]["all"]["built"]

    assert is_built("--label", "species")
    assert not is_built()
    assert "kept" in run(capsys, "index", file)
    assert not is_built("--label", "species")
    assert is_built("--force")
    assert is_built("--label", "x")
    write_records(file, 7)
    assert is_built()
    content = run_json(capsys, "index", file)["splits"]["all"]
    assert (content["label"], content["records"]) == ("x", 7)
    (tmp_path / f"{STEM}.index.npy").write_bytes(b"")
    assert is_built()
    (tmp_path / f"{STEM}.index.json").write_text("{")
    assert is_built("--label", "@file")
    assert not is_built("--label", "@file")


def test_index_without_a_label_replaces_one_with_a_label(file, tmp_path, capsys):
    run(capsys, "index", file, "--label", "species")
    file.write_bytes(frame(covey.Features({"y": "float32"}).encode({"y": 1.0})))
    assert "no label" in run(capsys, "index", file)
    assert not (tmp_path / f"{STEM}.classes.npy").exists()
    assert run(capsys, "verify", file).endswith("no problems\n")


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
    path = directory / SHARD
    path.write_bytes(path.read_bytes() + path.read_bytes()[: int(index(directory)["offset"][1])])
    assert main(["index", "birds", "--split", "train"]) == 0
    output = capsys.readouterr()
    assert "61" in output.out
    assert f"{SHARD} has 21 records, but 20 in the metadata; `covey repair`" in output.err
    run(capsys, "repair", "birds", "--output", "new")
    run(capsys, "verify", "new")


@pytest.mark.usefixtures("corrupt")
def test_errors_of_index(tmp_path, capsys):
    output = error_of(capsys, "index", "birds", "--force")
    assert "record 3 at byte" in output
    assert "`covey repair birds --output NEW` copies the valid records" in output
    output = error_of(capsys, "index", "birds", "--label", "colour")
    assert "--label is 'colour'; must be one of 'size', 'song', 'species'" in output
    write(birds(), "packed", label="species", compression="GZIP")
    output = error_of(capsys, "index", "packed", "--export-dali")
    assert f"{tmp_path / 'packed'}: the shards are compressed (GZIP)" in output


def test_index_that_cannot_be_written(file, capsys, monkeypatch):
    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", fail)
    output = error_of(capsys, "index", file)
    assert "the index cannot be written (Permission denied)" in output
    assert os.listdir() == ["x.tfrecord"]


def test_index_to_dali(directory, capsys):
    output = run(capsys, "index", "birds", "--export-dali").splitlines()
    assert output[-1] == "4 DALI index files written, such as birds-train-00000-of-00003.idx"
    run(capsys, "index", "birds", "--export-dali", "idx")
    assert len(os.listdir("idx")) == 4
