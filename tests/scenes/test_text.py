"""Texts as they are found: tables without a header, JSON of any form; to batches."""

import contextlib
import gzip
import itertools
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import covey
from covey.cli import main
from covey.sources import open_source, open_splits

INTENTS = ("alarm", "greeting", "weather")
TEXTS = [(f"sentence {n}, of {INTENTS[n % 3]}", INTENTS[n % 3]) for n in range(24)]
GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")
PAIRS = [list(pair) for pair in TEXTS]
OBJECTS = [{"text": text, "label": label} for text, label in TEXTS]


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(name, content):
    content = content if isinstance(content, (str, bytes)) else json.dumps(content)
    with open(name, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return name


def table(delimiter=",", header="text,label\n", rows=TEXTS):
    lines = [f'"{text}"{delimiter}{label}\n' for text, label in rows]
    return header.replace(",", delimiter) + "".join(lines)


def by_class():
    return {name: [text for text, label in TEXTS if label == name] for name in INTENTS}


SOURCES = {
    "CSV without a header": ("a.csv", table(header=""), ["--columns", "text,label"]),
    "TSV": ("a.tsv", table("\t"), []),
    "Excel": ("a.csv", "sep=;\r\n" + table(";").replace("\n", "\r\n"), []),
    "delimiter": ("a.csv", table("~"), ["--delimiter", "~"]),
    "CSV in gzip": ("a.csv.gz", gzip.compress(table().encode()), []),
    "TSV in gzip": ("a.tsv.gz", gzip.compress(table("\t").encode()), []),
    "CSV in UTF-16": ("a.csv", table().encode("utf-16"), []),
    "pairs": ("a.json", PAIRS, []),
    "data": ("a.json", {"version": 2, "data": OBJECTS}, []),
    "strings by class": ("a.json", by_class(), []),
    "columns": ("a.json", {name: [each[name] for each in OBJECTS] for name in OBJECTS[0]}, []),
    "field": ("a.json", {"a": {"b": PAIRS, "c": PAIRS}}, ["--field", "a.b"]),
    "JSON in gzip": ("a.json.gz", gzip.compress(json.dumps(PAIRS).encode()), []),
    "JSON Lines in gzip": (
        "a.jsonl.gz",
        gzip.compress("".join(json.dumps(pair) + "\n" for pair in PAIRS).encode()),
        [],
    ),
}


def check_batches(path, split="train"):
    ds = covey.open(path, split=split)
    assert ds.label == "label"
    assert sorted(ds.classes) == list(INTENTS)
    x, y = next(iter(ds.batches(classes_per_batch=3, examples_per_class=4, seed=1)))
    assert np.bincount(np.asarray(y)).tolist() == [4, 4, 4]
    texts = x["text"] if isinstance(x, dict) else x
    names = [each.rpartition(" ")[2] for each in np.asarray(texts).astype(str)]
    assert names == [ds.class_names[each] for each in y]


@pytest.mark.parametrize("name", SOURCES)
def test_texts_to_batches(name):
    file, content, options = SOURCES[name]
    save(file, content)
    assert main(["write", file, "data/texts", *options, "--quiet"]) == 0
    check_batches("data/texts")


def test_clinc(capsys):
    content = {
        "train": PAIRS,
        "val": PAIRS[:6],
        "test": PAIRS[6:12],
        "oos_train": [["what now", "oos"]] * 3,
    }
    save("clinc.json", content)
    assert main(["write", "clinc.json", "data/clinc"]) == 0
    assert "'oos_train'" in capsys.readouterr().out  # which has a class that the others lack
    ds = covey.open("data/clinc", split="train")
    assert ds.features["label"].names == (*INTENTS[:2], "oos", INTENTS[2])
    for _, y in itertools.islice(ds.batches(3, 4, seed=1), 5):
        assert np.unique(y, return_counts=True)[1].tolist() == [4, 4, 4]
    assert {split.name: split.records for split in covey.info("data/clinc").splits} == {
        "train": 24,
        "val": 6,
        "test": 6,
        "oos_train": 3,
    }


def test_tables_of_splits():
    save("train.csv", table())
    save("test.csv", table(rows=TEXTS[:6]))
    splits = open_splits(".")
    assert {name: source.length for name, source in splits.items()} == {"test": 6, "train": 24}
    covey.write(".", "data/texts")
    check_batches("data/texts")
    assert len(covey.open("data/texts", split="test")) == 6


def test_several_tables():
    save("part-1.csv", table(rows=TEXTS[:10]))
    save("part-2.csv", table(rows=TEXTS[10:]))
    assert main(["write", "part-*.csv", "data/texts", "--quiet"]) == 0
    check_batches("data/texts")


def test_list_of_images_without_a_header(tmp_path):
    from PIL import Image as Pillow

    (tmp_path / "images").mkdir()
    rows = []
    for n in range(6):
        Pillow.new("RGB", (3, 2), (n, 0, 0)).save(f"images/{n}.png")
        rows.append(f"images/{n}.png,{'ab'[n % 2]}{n},{'ab'[n % 2]}\n")
    for file, content in (("list.csv", "".join(rows)), ("list.csv.gz", None)):
        save(file, content or gzip.compress("".join(rows).encode()))
        with pytest.raises(covey.CoveyError) as caught:
            open_source(file)
        assert (caught.value.option, caught.value.line) == ("columns", 1)
        source = open_source(file, columns=("path", "fine", "coarse"), label="coarse")
        assert (source.kind, source.length) == ("image table", 6)
        assert list(source.features) == ["image", "path", "fine", "coarse"]
        assert [example["fine"] for _, example in source.examples] == [
            f"{'ab'[n % 2]}{n}" for n in range(6)
        ]


@pytest.mark.parametrize("options", [["--columns", "a"], ["--columns", "a,,b"], ["--field", "x"]])
def test_the_command_line_names_its_options(capsys, options):
    save("a.csv", table())
    with contextlib.suppress(SystemExit):
        assert main(["write", "a.csv", "data/texts", *options]) != 0
    assert options[0] in capsys.readouterr().err


# A source that is opened as a dataset.


def opened_as_dataset(path):
    """Yield the error of each function that opens a dataset."""
    for function in (covey.open, covey.info, covey.verify, covey.build_index):
        with pytest.raises(covey.errors.DatasetError) as caught:
            function(path)
        yield caught.value


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("train.csv", table(), "CSV, 24 examples"),
        ("train.json", PAIRS, "JSON"),
        ("clinc.json", {"train": PAIRS, "test": PAIRS}, "JSON, splits 'train', 'test'"),
        ("train.csv.gz", gzip.compress(table().encode()), "CSV, 24 examples"),
    ],
)
def test_a_file_that_is_a_source(file, content, found):
    save(file, content)
    for error in opened_as_dataset(file):
        assert error.reason == f"it is a source ({found}), not a dataset"
        assert f"`covey write {file} data/{file.split('.')[0]}`" in error.remedy


def test_a_directory_that_is_a_source(tmp_path, capsys):
    from PIL import Image as Pillow

    for name in ("owl", "wren"):
        (tmp_path / "my photos" / name).mkdir(parents=True)
        Pillow.new("RGB", (3, 2)).save(f"my photos/{name}/1.png")
    for error in opened_as_dataset("my photos/"):
        assert error.reason == "it is a source (image directory, 2 images), not a dataset"
        assert "`covey write 'my photos' data/my_photos`" in error.remedy
    for command in ("info", "verify", "show", "index"):
        assert main([command, "my photos"]) != 0
        assert "covey write 'my photos' data/my_photos" in capsys.readouterr().err


def test_a_source_that_is_written_with_options(tmp_path, capsys):
    save("rows.csv", table(header=""))
    for error in opened_as_dataset("rows.csv"):
        assert error.reason.startswith("it is a source (CSV), not a dataset; columns must be")
        assert "`covey write rows.csv data/rows --columns COLUMNS`" in error.remedy
    save("words.csv", table(header="text,tone\n"))
    for error in opened_as_dataset("words.csv"):
        assert "`covey write words.csv data/words --label NAME`" in error.remedy
        assert "`covey.write('words.csv', 'data/words', label=NAME)`" in error.remedy
    for name in ("train/owl", "test/owl", "unsorted"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        save(f"photos/{name}/1.gif", GIF)
    for error in opened_as_dataset("photos"):
        assert "not a dataset; directories of splits are mixed" in error.reason
    for command in ("info", "verify", "index"):
        assert main([command, "photos"]) != 0
        shown = capsys.readouterr().err
        assert "--splits train,test` to read these directories only, or `" in shown
    commands = re.findall("`covey ([^`]*)`", shown)
    assert len(commands) == 2
    for command in commands:
        assert main(command.split()) == 0
        shutil.rmtree("data")


def test_a_pattern_that_is_a_source():
    save("a.csv", table())
    for error in opened_as_dataset("*.csv"):
        assert "covey write '*.csv' data/a" not in error.remedy
        assert "covey write '*.csv' data/dataset" in error.remedy


def test_sources_are_not_loaded_for_a_dataset():
    covey.write({"label": [1, 2]}, "data", split="train")
    code = (
        "import sys, covey; covey.open('data'); covey.info('data'); "
        "print([each for each in sys.modules if each.startswith('covey.sources')])"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"
