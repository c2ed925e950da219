"""``covey write``: sources, options and errors; the process: signals and pipes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image as Pillow

import covey
from covey.cli import main
from covey.cli import write as cli_write
from covey.cli.options import (
    count_or_fraction,
    fraction,
    kind,
    name_list,
    positive,
    size,
)
from covey.errors import DatasetError
from covey.sources import KINDS, open_source, open_splits

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


def make_sounds():
    for n in range(12):
        os.makedirs(f"sounds/{BIRDS[n % 4]}", exist_ok=True)
        soundfile.write(f"sounds/{BIRDS[n % 4]}/{n}.wav", np.full(n + 1, n / 64), 8000)
    return "sounds"


def make_image_table():
    make_images()
    with open("photos/metadata.csv", "w") as file:
        file.write("file_name,label\n")
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
        json.dump(objects(count), file)
    return "birds.json"


def make_sound_table():
    make_sounds()
    with open("sounds/metadata.jsonl", "w") as file:
        for n in range(12):
            row = {"file_name": f"{BIRDS[n % 4]}/{n}.wav", "label": BIRDS[n % 4]}
            file.write(json.dumps(row) + "\n")
    return "sounds"


def make_arrow(count=12):
    datasets.Dataset.from_list(objects(count)).save_to_disk("saved")
    return "saved"


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


def make_tar():
    with tarfile.open("birds.tar", "w") as tar:
        for n, each in enumerate(objects(12)):
            data = json.dumps(each).encode()
            info = tarfile.TarInfo(f"{n}.json")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return "birds.tar"


MAKERS = {
    "audio directory": make_sounds,
    "image directory": make_images,
    "image table": make_image_table,
    "NPZ": make_npz,
    "CSV": make_csv,
    "JSON Lines": make_lines,
    "JSON": make_json,
    "Parquet": make_parquet,
    "Arrow": make_arrow,
    "audio table": make_sound_table,
    "WebDataset": make_tar,
    "TFRecords": make_tfrecords,
    "TFDS directory": make_tfds,
}


def read(split="train", path="data"):
    """Return the examples of a split, read as a source."""
    return [example for _, example in open_source(path, split=split).examples]


def identity(example):
    """The feature that is unique to an example."""
    for name in ("x", "filename", "file_name"):
        if name in example:
            return np.asarray(example[name]).tolist()
    raise KeyError(example)


def identities(split="train", path="data"):
    return [str(identity(example)) for example in read(split, path)]


def write(*arguments):
    """Run ``covey write --quiet``."""
    assert main(["write", "--quiet", *arguments]) == 0


def error_of(capsys, *arguments):
    """Run ``covey write``, which fails; return its message."""
    assert main(["write", *arguments]) == 1
    return capsys.readouterr().err


# Sources.


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_source(kind, capsys):
    source = MAKERS[kind]()
    assert main(["write", source, "data"]) == 0
    output, _ = capsys.readouterr()
    assert re.match(rf"\S+: {kind}, ", output)
    assert "train        12        4" in output
    found = identities()
    assert len(set(found)) == 12
    write(source, "divided", "--kind", kind.lower().replace(" ", "-"), "--hold-out-fraction", "0.4")
    assert capsys.readouterr() == ("", "")
    train, val = (identities(split, "divided") for split in ("train", "val"))
    assert train
    assert val
    assert sorted(train + val) == sorted(found)
    write(source, "held", "--hold-out-classes", "1")
    train, val = ({int(e["label"]) for e in read(split, "held")} for split in ("train", "val"))
    assert (len(train), len(val)) == (3, 1)
    assert train.isdisjoint(val)
    features = (open_source(path, split="train").features for path in ("data", "divided", "held"))
    assert len(set(features)) == 1


def test_formats_in_the_help():
    assert sorted(cli_write.KINDS.split(", ")) == sorted(KINDS) == sorted(MAKERS)


def test_tfds_reads_an_image_directory(capsys):
    import tensorflow_datasets as tfds

    make_images(40)
    options = ["--hold-out-fraction", "25%", "--shards", "2", "--workers", "2"]
    assert main(["write", "photos", "data/birds", *options]) == 0
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


def test_split_of_the_source():
    make_images(8, "photos/train")
    make_images(4, "photos/test")
    write("photos", "data", "--split", "test")
    write("photos", "data", "--split", "rest", "--source-split", "test")
    assert [len(read(split)) for split in ("test", "rest")] == [4, 4]
    assert list(open_splits("data")) == ["test", "rest"]


# Options.

VALUES = {
    # type of an option: text, and the value of the argument
    str: ("text", "text"),
    int: ("-7", -7),
    positive: ("3", 3),
    size: ("2M", 2 << 20),
    fraction: ("25%", 0.25),
    count_or_fraction: ("10", 10),
    kind: ("json-lines", "JSON Lines"),
    name_list: ("a,b", ["a", "b"]),
}
TABLES = {
    "open": (cli_write._OF_OPEN, "--"),
    "write": (cli_write._OF_WRITE, "--"),
    "hold out": (cli_write._OF_HOLD_OUT, "--hold-out-"),
}


@pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param(table, row, id=row[1])
        for table, (rows, _) in TABLES.items()
        for row in rows
        if row[1] not in ("--hold-out-by", "--hold-out-split", "--hold-out-seed")
    ],
)
def test_an_option_is_an_argument_of_its_function(table, row, monkeypatch):
    """Every option of the tables arrives, as the argument of the same name."""
    _, option, type_of, *_ = row
    if type_of is bool:
        texts, value = [], True
    elif isinstance(type_of, (tuple, range)):
        texts, value = [str(type_of[-1])], type_of[-1]
    else:
        text, value = VALUES[type_of[0] if isinstance(type_of, list) else type_of]
        texts = [text]
    calls, opened = {}, open_source(make_csv())

    def open_splits(path, **arguments):
        calls["open"] = arguments
        return opened

    def write(source, path, **arguments):
        calls["write"] = arguments
        calls["hold out"] = vars(arguments["hold_out"]) if arguments["hold_out"] else {}
        raise DatasetError("recorded")

    monkeypatch.setattr(covey.sources, "open_splits", open_splits)
    monkeypatch.setattr(covey, "write", write)
    assert main(["write", "birds.csv", "data", option, *texts]) == 1
    name = option.removeprefix(TABLES[table][1]).replace("-", "_")
    assert calls[table][name] == value


def test_options_of_hold_out(capsys):
    make_npz(60)
    more = ["--hold-out-by", "label", "--hold-out-split", "test", "--hold-out-seed", "1"]
    write("birds.npz", "data", "--hold-out-fraction", "0.5", *more)
    of = covey.HoldOut(fraction=0.5, by="label", split="test", seed=1)
    covey.write("birds.npz", "same", hold_out=of, progress=False)
    assert identities("test") == identities("test", "same")


def test_shards_of_a_replaced_version(capsys):
    make_npz()
    write("birds.npz", "data", "--shards", "2")
    assert main(["write", "birds.npz", "data", "--mode", "overwrite"]) == 0
    printed = capsys.readouterr().out
    assert "2 shards of the replaced version moved to .covey-old until the next write" in printed
    assert "`covey repair data` deletes them" in printed.replace(os.getcwd() + "/", "")


def test_types_of_features(capsys):
    with open("birds.csv", "w") as file:
        file.write("id,ring,time,label\n1234567890123456789,1,1700000000.5,owl\n")
        file.write(",2,1700000000.123,wren\n")
    error = error_of(capsys, "birds.csv", "data")
    assert "1234567890123456789, which float64 does not hold exactly" in error
    assert "see --default, --type" in error
    main(
        [
            "write",
            "birds.csv",
            "data",
            "--default",
            "id=-1",
            "--type",
            "ring=str",
            "--type",
            "label=str",
        ]
    )
    assert "note: 'time': float64, which is stored as bytes; decode" in capsys.readouterr().out
    rows = sorted((int(each["id"]), each["ring"], float(each["time"])) for each in read())
    assert rows == [(-1, "2", 1700000000.123), (1234567890123456789, "1", 1700000000.5)]


def test_a_line_for_each_column(capsys):
    with open("birds.csv", "w") as file:
        file.write("ring,name,weight,label\n007,,0.5,owl\n12,ada,,wren\n007,bo,0.5,owl\n")
    assert main(["write", "birds.csv", "data"]) == 0
    assert capsys.readouterr().out.splitlines()[1:6] == [
        "data: label 'label'",
        "  column  type                     empty  distinct",
        "  ring    str                          0         2",
        "  name    str                          1         3",
        "  weight  float32                      1         2",
    ]
    arrays = {"x": np.zeros((1500, 2), np.float32), "n": np.arange(1500) % 7}
    np.savez("many.npz", **arrays, label=np.arange(1500) % 3)
    assert main(["write", "many.npz", "many"]) == 0
    title, *table = capsys.readouterr().out.splitlines()[1:6]
    assert title == "many: label 'label'; columns of 1,000 of 1,500 examples of 'train'"
    assert [line.split() for line in table] == [
        ["column", "type", "empty", "distinct"],
        ["x", "float32", "(2,)", "0", "-"],
        ["n", "int64", "0", "7"],
        ["label", "int64", "0", "3"],
    ]
    # They would have to be fetched, or unpacked.
    for more in (["memory://columns/many"], ["packed", "--compression", "zlib"]):
        assert main(["write", "many.npz", *more]) == 0
        lines = capsys.readouterr().out.splitlines()[3:6]
        assert [line.split()[-2:] for line in lines] == [["-", "-"], ["-", "-"], ["-", "3"]]


# Errors.


@pytest.mark.parametrize("divide", [[], ["--hold-out-fraction", "0.5"]], ids=["all", "divided"])
def test_errors_name_file_and_line(divide, capsys):
    with open("birds.csv", "w") as file:
        file.write("x,label\n1,owl\n2\n3,wren\n4,owl\n5,\n6,owl\n7,wren\n")
    assert error_of(capsys, "birds.csv", "data", *divide) == (
        "covey: error: birds.csv:3: the row has 1 cells; the header has 2; --on-error skip skips "
        "and lists examples that cannot be read\n"
    )
    assert os.listdir() == ["birds.csv"]
    write("birds.csv", "data", "--on-error", "skip", "--report", "bad.jsonl", *divide)
    assert capsys.readouterr().err.endswith(
        "covey: skipped 2 examples of birds.csv:\n"
        "  example 1: birds.csv:3: the row has 1 cells; the header has 2\n"
        "  example 4: birds.csv:6: feature 'label': the label is empty\n"
    )
    with open("bad.jsonl") as file:
        bad = [json.loads(line) for line in file]
    assert [each["example"] for each in bad] == [1, 4]
    assert "birds.csv:6" in bad[1]["reason"]


def test_invalid_image(capsys):
    make_images()
    with open("photos/owl/0001.png", "r+b") as file:
        file.truncate(30)
    assert "photos/owl/0001.png: not a valid image" in error_of(capsys, "photos", "data")
    write("photos", "data", "--on-error", "skip")
    assert "  example 3: photos/owl/0001.png: not" in capsys.readouterr().err
    assert len(read()) == 11


def test_long_lists_are_truncated(capsys):
    with open("birds.jsonl", "w") as file:
        file.write('{"label": 1, "x": 2}\n' * 2 + "nonsense\n" * 30)
    write("birds.jsonl", "data", "--on-error", "skip")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 22
    assert lines[-1] == "  and 10 more: --report FILE lists all"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nowhere data", "error: nowhere: no such file or directory\n"),
        ("birds.csv data --label species", "birds.csv: --label is 'species'; must be one of 'x', "),
        (
            "birds.csv data --hold-out-fraction 0.0001",
            "--hold-out-fraction is 0.0001; 0 of 12 examples would",
        ),
        ("birds.csv data --hold-out-classes 4", "--hold-out-classes is 4; 4 of 4 classes would be"),
        (
            "xy.csv data --no-label --hold-out-classes 1",
            "--hold-out-classes is 1; there is no label",
        ),
        ("mixed.jsonl data", "error: mixed.jsonl: example 3: feature 'x'"),
        ("birds.csv birds.csv/data", "must be a directory"),
        ("photos photos/", "SOURCE and TARGET are the same"),
        ("birds.csv data --report nowhere/bad", "--report: the report cannot be written"),
        ("birds.csv data --split a/b", "the name of a split is 'a/b'; must be"),
        ("birds.csv data --split-by label --hold-out-classes 1", "--split-by is 'label'; must be"),
        ("birds.csv data --hold-out-split test", "--hold-out-fraction: exactly one of"),
        (
            "birds.csv data --hold-out-split train --hold-out-fraction 0.1",
            "--hold-out-split is 'train'; it is the name of both splits",
        ),
    ],
)
def test_invalid_values(capsys, arguments, message):
    make_csv()
    make_images()
    with open("xy.csv", "w") as file:
        file.write("x,y\n1,2\n3,4\n")
    with open("mixed.jsonl", "w") as file:
        file.write('{"label": "owl", "x": 1}\n' * 3 + '{"label": "owl", "x": "text"}\n')
    before = sorted(os.listdir())
    assert message in error_of(capsys, *arguments.split())
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--memory-limit lots", "'lots' is not a valid size"),
        ("--memory-limit 12Q", "'12Q' is not a valid size"),
        ("--memory-limit -5M", "'-5M' is not a valid size"),
        ("--memory-limit 0", "'0' is not a valid size"),
        ("--hold-out-fraction 1", "'1' must be between 0 and 1"),
        ("--hold-out-fraction nan", "'nan' must be between 0 and 1"),
        ("--hold-out-classes 0", "'0' must be an integer >= 1"),
        ("--hold-out-classes 200%", "'200%' must be between"),
        ("--hold-out-fraction 0.1 --hold-out-classes 5", "not allowed with"),
        ("--split-by split --split train", "not allowed with"),
        ("--shards 2 --records-per-shard 5", "not allowed with"),
        ("--default eggs", "'eggs' must be NAME=VALUE"),
        ("--type eggs", "'eggs' must be NAME=TYPE, with a TYPE of int8, int16,"),
        ("--type eggs=text", "'eggs=text' must be NAME=TYPE, with a TYPE of"),
        ("--kind tarball", "'tarball' must be one of"),
        ("--engine processes --num-cpus 2", "--num-cpus needs --engine ray"),
        ("--max-retries 1", "--max-retries needs --engine processes or ray"),
    ],
)
def test_invalid_arguments(capsys, options, message):
    with pytest.raises(SystemExit) as end:
        main(["write", "birds.csv", "data", *options.split()])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


# The process.


def test_import_of_the_help():
    code = (
        "import sys\nfrom covey.cli import main\n"
        "try:\n    main(['write', '--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(sorted({'numpy', 'tensorflow', 'tqdm', 'PIL', 'pyarrow'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
    assert "--hold-out-classes" in run.stdout


def test_process():
    make_csv()
    program = [sys.executable, "-m", "covey"]
    run = subprocess.run([*program, "--version"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, f"covey {covey.__version__}\n")
    # The reader of the output exits at once.
    command = f"{' '.join(program)} write birds.csv data --no-progress | true"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert run.stderr == ""


def test_interrupted_write(tmp_path):
    # The source is endless and interrupts the process.
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
        "@register('endless', 'all numbers', recognise=lambda probed: True)\n"
        "def open_endless(probed, options):\n"
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
