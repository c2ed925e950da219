"""The command line: ``covey write``, exit status and messages."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

import covey
from covey.cli import COMMANDS, main
from covey.cli.write import KINDS as KINDS_IN_HELP
from covey.sources import KINDS, open_source

BIRDS = ("crow", "owl", "robin", "wren")


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_images(count=12, path="photos", names=BIRDS):
    for n in range(count):
        name = names[n % len(names)]
        os.makedirs(f"{path}/{name}", exist_ok=True)
        Pillow.new("RGB", (4, 3), (n % 256, n // 256, 0)).save(f"{path}/{name}/{n:04}.png")
    return path


def make_image_table():
    make_images()
    with open("photos/labels.csv", "w") as file:
        file.write("file,label\n")
        file.writelines(f"{BIRDS[n % 4]}/{n:04}.png,{BIRDS[n % 4]}\n" for n in range(12))
    return "photos"


def make_npz(count=12, path="birds.npz", classes=4):
    arrays = {"x": np.arange(count * 2, dtype=np.float32).reshape(-1, 2)}
    np.savez(path, **arrays, label=np.arange(count) % classes)
    return path


def make_csv(count=12):
    with open("birds.csv", "w") as file:
        file.write("x,label\n")
        file.writelines(f"{n},{BIRDS[n % 4]}\n" for n in range(count))
    return "birds.csv"


def objects(count):
    return [{"x": n, "label": BIRDS[n % 4]} for n in range(count)]


def make_lines(count=12):
    with open("birds.jsonl", "w") as file:
        file.writelines(json.dumps(each) + "\n" for each in objects(count))
    return "birds.jsonl"


def make_json(count=12):
    with open("birds.json", "w") as file:
        json.dump({f"bird-{n}": each for n, each in enumerate(objects(count))}, file)
    return "birds.json"


def make_parquet(count=12):
    pq.write_table(pa.Table.from_pylist(objects(count)), "birds.parquet")
    return "birds.parquet"


def make_tfrecords(count=12):
    features = covey.Features({"x": "int64", "label": "int64"})
    with covey.RecordWriter("birds.tfrecord") as writer:
        for n in range(count):
            writer.write(features.encode({"x": n, "label": n % 4}))
    return "birds.tfrecord"


def make_tfds(count=12):
    covey.write(objects(count), "tfds", split="train", label="label", progress=False)
    return "tfds"


MAKERS = {
    "image directory": make_images,
    "image table": make_image_table,
    "NPZ": make_npz,
    "CSV": make_csv,
    "JSON Lines": make_lines,
    "JSON": make_json,
    "Parquet": make_parquet,
    "TFRecords": make_tfrecords,
    "TFDS directory": make_tfds,
}


def read(split="train", path="data"):
    """The examples of a split, as another source."""
    return [example for _, example in open_source(path, split=split).examples]


def identity(example):
    """What tells an example of the makers from the others."""
    for name in ("x", "filename", "file"):
        if name in example:
            return np.asarray(example[name]).tolist()
    raise KeyError(example)


def identities(split="train", path="data"):
    return [str(identity(example)) for example in read(split, path)]


def error_of(capsys, *arguments, code=1):
    """The message that a command ends with."""
    assert main([*arguments]) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def refusal(capsys, *arguments):
    """The message about a command that is none."""
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


# Sources.


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_source(kind, capsys):
    source = MAKERS[kind]()
    assert main(["write", source, "data"]) == 0
    said, _ = capsys.readouterr()
    assert re.match(rf"\S+: {kind}, ", said)
    assert "train        12        4" in said
    assert len(set(identities())) == 12
    assert main(["write", source, "again", "--kind", kind.lower().replace(" ", "-"), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert identities(path="again") == identities()


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_source_can_be_divided(kind, capsys):
    source = MAKERS[kind]()
    assert main(["write", source, "whole", "-q"]) == 0
    assert main(["write", source, "data", "--val-fraction", "0.4", "-q"]) == 0
    train, val = identities("train"), identities("val")
    assert train
    assert val
    assert sorted(train + val) == sorted(identities(path="whole"))
    assert main(["write", source, "held", "--held-out-classes", "1", "-q"]) == 0
    train, val = ({int(e["label"]) for e in read(split, "held")} for split in ("train", "val"))
    assert (len(train), len(val)) == (3, 1)
    assert train.isdisjoint(val)
    features = (open_source(path, split="train").features for path in ("whole", "data", "held"))
    assert len(set(features)) == 1


def test_formats_in_the_help():
    assert sorted(KINDS_IN_HELP.split(", ")) == sorted(KINDS) == sorted(MAKERS)


def test_tfds_reads_an_image_directory(capsys):
    import tensorflow_datasets as tfds

    make_images(40)
    assert main(["write", "photos", "data/birds", "--val-fraction", "25%", "--shards", "2"]) == 0
    assert "photos: image directory, 40 images, 4 classes of 'label'" in (capsys.readouterr().out)
    builder = tfds.builder_from_directory("data/birds")
    assert builder.info.features["label"].names == list(BIRDS)
    seen = []
    for split in ("train", "val"):
        assert builder.info.splits[split].num_shards == 2
        for example in tfds.as_numpy(builder.as_dataset(split)):
            name = example["filename"].decode()
            assert name.split("/")[0] == BIRDS[example["label"]]
            assert example["image"][0, 0, 0] == int(name.split("/")[1].removesuffix(".png"))
            seen.append(name)
    assert len(set(seen)) == len(seen) == 40


def test_workers_write_the_same(capsys):
    make_images(40)
    for workers in ("1", "2"):
        options = ["--val-fraction", "0.3", "--workers", workers, "-q"]
        assert main(["write", "photos", f"data{workers}", "--name", "birds", *options]) == 0
    for name in os.listdir("data1"):
        with open(f"data1/{name}", "rb") as one, open(f"data2/{name}", "rb") as two:
            assert one.read() == two.read(), name


def test_splits_of_the_source_are_chosen_by_name():
    make_images(8, "photos/train")
    make_images(4, "photos/test")
    assert main(["write", "photos", "data", "-q"]) == 0
    assert main(["write", "photos", "data", "-q", "--split", "test"]) == 0
    assert main(["write", "photos", "data", "-q", "--split", "rest", "--source-split", "test"]) == 0
    assert [len(read(split)) for split in ("train", "test", "rest")] == [8, 4, 4]


# Options.


def test_shards_order_and_compression():
    make_npz(20)
    options = ["--sort-by-class", "--no-shuffle", "--shards", "4", "--compression", "gzip"]
    assert main(["write", "birds.npz", "data", "-q", "--compression-level", "1", *options]) == 0
    assert [int(example["label"]) for example in read()] == [n // 5 for n in range(20)]
    shards = sorted(name for name in os.listdir("data") if ".tfrecord" in name)
    assert shards[-1] == "data-train.tfrecord-00003-of-00004"
    with open(f"data/{shards[0]}", "rb") as file:
        assert file.read(2) == b"\x1f\x8b"


def test_sizes_and_names():
    make_npz(20)
    options = [
        "--name",
        "flock",
        "--description",
        "Birds.",
        "--shard-bytes",
        "500",
        "--memory-limit",
        "1M",
    ]
    assert main(["write", "birds.npz", "data", "-q", *options]) == 0
    with open("data/dataset_info.json") as file:
        info = json.load(file)
    assert (info["name"], info["description"]) == ("flock", "Birds.")
    assert len(info["splits"][0]["shardLengths"]) > 1
    assert main(["write", "birds.npz", "more", "-q", "--records-per-shard", "7"]) == 0
    assert len([name for name in os.listdir("more") if ".tfrecord" in name]) == 3


def test_seed_changes_the_order_and_not_the_sides():
    make_npz(60)
    for path, seed in (("one", "1"), ("two", "2")):
        options = ["--seed", seed, "--val-fraction", "0.3"]
        assert main(["write", "birds.npz", path, "-q", *options]) == 0
    assert identities("val", "one") != identities("val", "two")
    assert sorted(identities("val", "one")) == sorted(identities("val", "two"))
    options = ["--val-seed", "1", "--val-fraction", "0.3"]
    assert main(["write", "birds.npz", "three", "-q", *options]) == 0
    assert sorted(identities("val", "three")) != sorted(identities("val", "one"))


def test_held_out_examples_stay_held_out_when_examples_are_added():
    make_images(20)
    assert main(["write", "photos", "data", "-q", "--val-fraction", "0.3"]) == 0
    make_images(60)
    options = ["--val-fraction", "0.3", "--val-split", "test"]
    assert main(["write", "photos", "more", "-q", *options]) == 0
    assert set(identities("val")) < set(identities("test", "more"))
    assert set(identities("train")) < set(identities("train", "more"))


def test_number_and_percentage_of_held_out_classes(capsys):
    make_npz(400, classes=40)
    assert main(["write", "birds.npz", "data", "--held-out-classes", "10"]) == 0
    table = capsys.readouterr().out.splitlines()[-3:]
    assert [row.split()[:4] for row in table[1:]] == [
        ["train", "300", "30", "10"],
        ["val", "100", "10", "10"],
    ]
    assert main(["write", "birds.npz", "more", "-q", "--held-out-classes", "25%"]) == 0
    few, many = sorted(
        ({int(e["label"]) for e in read("val", path)} for path in ("data", "more")), key=len
    )
    assert few <= many


def test_modes(capsys):
    make_npz(20)
    assert main(["write", "birds.npz", "data", "-q"]) == 0
    assert "split 'train'" in error_of(capsys, "write", "birds.npz", "data")
    assert main(["write", "birds.npz", "data", "--mode", "append", "-q"]) == 0
    assert len(read()) == 40
    assert main(["write", "birds.npz", "data", "--mode", "overwrite", "-q"]) == 0
    assert len(read()) == 20


def test_existing_second_split_prevents_the_write(capsys):
    make_npz(20)
    assert main(["write", "birds.npz", "data", "-q", "--split", "val"]) == 0
    assert "split 'val'" in error_of(capsys, "write", "birds.npz", "data", "--val-fraction", "0.5")
    assert "train" not in "".join(os.listdir("data"))


def test_divided_source_is_added_to_a_dataset():
    make_lines()
    assert main(["write", "birds.jsonl", "data", "-q"]) == 0
    with open("more.jsonl", "w") as file:
        for n in range(20):
            file.write(json.dumps({"x": n, "label": ("ant", "bee", "owl")[n % 3]}) + "\n")
    options = ["--split", "more", "--val-fraction", "0.5", "--label", "label"]
    assert main(["write", "more.jsonl", "data", "-q", *options]) == 0
    names = open_source("data", split="train").features["label"].names
    assert names[:4] == BIRDS
    assert {names[int(example["label"])] for example in read("val")} <= {"ant", "bee", "owl"}


@pytest.mark.parametrize("divide", [[], ["--val-fraction", "0.5"]], ids=["whole", "divided"])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_class_ids_do_not_change_when_classes_are_added(mode, divide):
    make_images(40, names=("crow", "wren"))
    assert main(["write", "photos", "data", "-q", "--val-fraction", "0.5"]) == 0
    make_images(40, "more", names=("ant", "crow", "owl"))
    assert main(["write", "more", "data", "-q", "--mode", mode, *divide]) == 0
    names = open_source("data", split="train").features["label"].names
    assert names == ("crow", "wren", "ant", "owl")
    for example in [*read("train"), *read("val")]:
        assert names[int(example["label"])] == example["filename"].split("/")[0]


def test_class_ids_with_other_names_are_rejected(capsys):
    make_images(8)
    assert main(["write", "photos", "data", "-q", "--split", "test"]) == 0
    names = covey.ClassLabel(names=("wren", "crow"))
    features = open_source("data", split="test").features.replace({"label": names})
    examples = [{**each, "label": 0} for each in read("test")]
    covey.write(examples, "other", split="train", features=features, progress=False)
    error = error_of(capsys, "write", "other", "data")
    assert "feature 'label'" in error
    assert "expected str" in error


def test_defaults_and_keys(capsys):
    with open("birds.jsonl", "w") as file:
        file.write('{"id": "a", "label": "owl", "eggs": 2}\n{"id": "b", "label": "wren"}\n')
    assert "default" in error_of(capsys, "write", "birds.jsonl", "data")
    options = ["--default", "eggs=0", "--key", "id"]
    assert main(["write", "birds.jsonl", "data", "-q", *options]) == 0
    assert sorted(int(example["eggs"]) for example in read()) == [0, 2]


# Errors.


def test_nothing_there(capsys):
    assert error_of(capsys, "write", "nowhere", "data") == (
        "covey: error: nowhere: no such file or directory\n"
    )
    assert os.listdir() == []


@pytest.mark.parametrize("divide", [[], ["--val-fraction", "0.5"]], ids=["whole", "divided"])
def test_errors_name_file_and_line(divide, capsys):
    with open("birds.csv", "w") as file:
        file.write("x,label\n1,owl\n2\n3,wren\n4,owl\n5,\n6,owl\n7,wren\n")
    assert error_of(capsys, "write", "birds.csv", "data", *divide) == (
        "covey: error: birds.csv:3: the row has 1 cells; the header has 2; --on-error skip skips "
        "and lists examples that cannot be read\n"
    )
    assert os.listdir() == ["birds.csv"]
    options = ["--on-error", "skip", "--report", "bad.jsonl", *divide]
    assert main(["write", "birds.csv", "data", *options]) == 0
    said = capsys.readouterr()
    assert said.err.endswith(
        "covey: skipped 2 examples of birds.csv:\n"
        "  example 1: birds.csv:3: the row has 1 cells; the header has 2\n"
        "  example 4: birds.csv:6: feature 'label': the label is empty\n"
    )
    with open("bad.jsonl") as file:
        bad = [json.loads(line) for line in file]
    assert [(each["split"], each["example"]) for each in bad] == [("train", 1), ("train", 4)]
    assert "birds.csv:6" in bad[1]["reason"]


def test_invalid_image(capsys):
    make_images()
    with open("photos/owl/0001.png", "r+b") as file:
        file.truncate(30)
    error = error_of(capsys, "write", "photos", "data")
    assert "photos/owl/0001.png: not a valid image" in error
    assert main(["write", "photos", "data", "--on-error", "skip", "-q"]) == 0
    assert "  example 3: photos/owl/0001.png: not" in capsys.readouterr().err
    assert len(read()) == 11


def test_long_lists_are_truncated(capsys):
    with open("birds.jsonl", "w") as file:
        file.write('{"label": 1, "x": 2}\n' * 2 + "nonsense\n" * 30)
    assert main(["write", "birds.jsonl", "data", "-q", "--on-error", "skip"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  and 10 more: --report FILE lists all"


def test_value_of_another_type(capsys):
    with open("birds.jsonl", "w") as file:
        file.write('{"label": "owl", "x": 1}\n' * 3 + '{"label": "owl", "x": "text"}\n')
    error = error_of(capsys, "write", "birds.jsonl", "data")
    assert re.match(r"covey: error: birds.jsonl: .*feature 'x'", error)


def test_unknown_label_option(capsys):
    make_csv()
    error = error_of(capsys, "write", "birds.csv", "data", "--label", "species")
    assert "birds.csv: --label is 'species'; must be one of 'x', 'label'" in error


def test_empty_parts(capsys):
    make_csv()
    assert "--val-fraction is 0.0001; 0 of 12 examples would be held out" in error_of(
        capsys, "write", "birds.csv", "data", "--val-fraction", "0.0001"
    )
    assert "--held-out-classes is 4; 4 of 4 classes would be held out" in error_of(
        capsys, "write", "birds.csv", "data", "--held-out-classes", "4"
    )
    assert not os.path.exists("data")


def test_held_out_classes_without_label(capsys):
    with open("birds.csv", "w") as file:
        file.write("x,y\n1,2\n3,4\n")
    error = error_of(capsys, "write", "birds.csv", "data", "--held-out-classes", "1")
    assert "--label: no label feature is known" in error


def test_error_in_the_second_split_keeps_the_first(capsys, monkeypatch):
    make_csv()
    write = covey.write

    def fail(*arguments, split, **options):
        if split == "val":
            raise covey.errors.DatasetError("the disk is full")
        return write(*arguments, split=split, **options)

    monkeypatch.setattr(covey, "write", fail)
    error = error_of(capsys, "write", "birds.csv", "data", "--val-fraction", "0.5")
    assert error.splitlines()[-2:] == [
        "covey: split 'train' is written; the following error is later",
        "covey: error: the disk is full",
    ]


def test_invalid_targets(capsys):
    make_csv()
    assert "must be a directory" in error_of(capsys, "write", "birds.csv", "birds.csv/data")
    make_images()
    assert "SOURCE and TARGET" in error_of(capsys, "write", "photos", "photos/")
    error = error_of(capsys, "write", "birds.csv", "data", "--report", "nowhere/bad.jsonl")
    assert "--report: the report cannot be written" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory-limit", "lots"], "'lots' is not a valid size"),
        (["--memory-limit", "12Q"], "'12Q' is not a valid size"),
        (["--memory-limit", "-5M"], "expected one argument"),
        (["--memory-limit", "0"], "'0' is not a valid size"),
        (["--val-fraction", "1"], "'1' must be between 0 and 1"),
        (["--val-fraction", "nan"], "'nan' must be between 0 and 1"),
        (["--held-out-classes", "0"], "'0' must be an integer >= 1"),
        (["--held-out-classes", "200%"], "'200%' must be between"),
        (["--val-fraction", "0.1", "--held-out-classes", "5"], "not allowed with"),
        (["--val-split", "test"], "--val-split needs --val-fraction"),
        (["--val-split", "train", "--val-fraction", "0.1"], "are both 'train'"),
        (["--shards", "2", "--records-per-shard", "5"], "not allowed with"),
        (["--default", "eggs"], "'eggs' must be NAME=VALUE"),
        (["--kind", "tarball"], "'tarball' must be one of"),
    ],
)
def test_usage(options, message, capsys):
    assert message in refusal(capsys, "write", "birds.csv", "data", *options)


def test_command_is_required(capsys):
    assert "COMMAND" in refusal(capsys)
    assert "invalid choice" in refusal(capsys, "fly")


# The program.


def run_covey(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "covey", *arguments], capture_output=True, text=True
    )


def test_help_imports_no_heavy_modules():
    code = (
        "import sys\nfrom covey.cli import main\n"
        "try:\n    main(['write', '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(sorted({'numpy', 'tensorflow', 'tqdm', 'PIL', 'pyarrow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert "examples:" in run.stdout
    assert "--held-out-classes" in run.stdout


def test_program():
    run = run_covey("--version")
    assert (run.returncode, run.stdout) == (0, f"covey {covey.__version__}\n")
    make_csv()
    run = run_covey("write", "birds.csv", "data", "--no-progress")
    assert (run.returncode, run.stderr) == (0, "")
    assert run_covey("write", "birds.csv", "data").returncode == 1


def test_every_command_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(re.search(rf"^ +{command.name} ", said, re.MULTILINE) for command in COMMANDS)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_interrupted_write(tmp_path):
    # The source is a pipe that never ends: the command is surely in the middle of it.
    code = (
        "import sys, covey, itertools, os, signal\n"
        "from covey.cli import main\n"
        "from covey.sources import Source, register\n"
        # A background process ignores the signal by default.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def endless():\n"
        "    for n in itertools.count():\n"
        "        if n == 5000:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield n, {'x': n, 'label': n % 3}\n"
        "@register('endless', 'all numbers', recognise=lambda probed: True, rank=-1)\n"
        "def open_endless(probed, *, label, split):\n"
        "    return Source('endless', probed.path, endless(), label='label')\n"
        "sys.exit(main(['write', '.', 'deep/data', '--no-progress']))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 128 + signal.SIGINT
    where = tmp_path / "deep" / "data"
    assert run.stderr == (
        f"covey: {where}: interrupted; split 'train' is not written, nothing was changed\n"
    )
    assert os.listdir() == []


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_closed_pipe():
    make_csv()
    command = f"{sys.executable} -m covey write birds.csv data | true"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in run.stderr
