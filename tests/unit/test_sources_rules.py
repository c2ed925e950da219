"""The rules that find the format of a path, and how directories and tables of files are read."""

import errno
import json
import os
import pickle
import re
import shutil

import numpy as np
import pytest
from source_items import read

import covey
from covey import ClassLabel, Features, Image, RecordWriter, Tensor
from covey.cli import main
from covey.errors import DatasetError, SourceError
from covey.sources import KINDS, Source, SourceSplits, open_source, open_splits, register

GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def save(path, content=GIF):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def put(*paths, root="photos"):
    for path in paths:
        save(f"{root}/{path}")
    return root


def classes_of(source):
    return {key: example["label"] for key, example in source.examples}


def names_of(source):
    return source.features[source.label].names


def records(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    features = Features({"x": "int64", "label": "int64"})
    with RecordWriter(path) as writer:
        writer.write(features.encode({"x": 1, "label": 0}))


def arrays(path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    np.savez(path, x=np.zeros(3), y=np.arange(3))


# The rules.

RULES = {
    "TFDS directory": lambda: covey.write({"x": [1, 2]}, "data", label=None, progress=False),
    "TFRecords": lambda: records("data/a.tfrecord-00000-of-00001"),
    "NPZ": lambda: arrays("data/a.npz"),
    "CSV": lambda: save("data/a.csv", "x,y\n1,2\n"),
    "JSON": lambda: save("data/a.json", '[{"x": 1}]'),
    "JSON Lines": lambda: save("data/a.jsonl", '{"x": 1}\n'),
    "image directory": lambda: put("owl/1.gif", root="data"),
    "image table": lambda: (put("1.gif", root="data"), save("data/metadata.csv", TABLE)),
}
TABLE = "file_name,label\n1.gif,owl\n"


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_fits(kind):
    """Hidden files, __MACOSX and metadata do not count."""
    RULES[kind]()
    put(".git/a/1.gif", "__MACOSX/owl/1.gif", ".x.csv", "README.md", root="data")
    save("data/dataset_infos.json", "{}")
    assert kinds_of("data") == {kind}
    assert kinds_of("data", kind=kind.replace(" ", "-")) == {kind}


def kinds_of(path, **options):
    found = open_splits(path, **options)
    return {each.kind for each in ([found] if isinstance(found, Source) else found.values())}


def test_the_metadata_of_a_dataset_may_be_below():
    covey.write({"x": [1, 2]}, "data/birds", label=None, progress=False)
    assert kinds_of("data") == {"TFDS directory"}


PAIRS = [
    ("CSV", "image directory"),
    ("CSV", "JSON"),
    ("TFRecords", "CSV"),
    ("NPZ", "CSV"),
    ("CSV", "image table"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_rules_fit(first, second):
    """A table beside docs/logo.png was read as the image of one class, without a note."""
    for kind in (first, second):
        RULES[kind]()
    for function in (open_source, lambda path: covey.write(path, "out")):
        with pytest.raises(SourceError) as caught:
            function("data")
        offered = re.findall(r"kind='([\w-]+)'", caught.value.remedy)
        assert {each.replace("-", " ") for each in offered} == {first, second}
    assert {kinds_of("data", kind=each).pop() for each in offered} == {first, second}


@pytest.mark.parametrize("path", ["a", "a/notes.txt"])
def test_no_rule_fits(path):
    """The error has at most five lines and two commands; the likeliest one writes the data."""
    save("a/notes.txt", "x,label\n1,2\n3,4\n")
    save("a/inner/x.csv", "x,label\n1,2\n3,4\n")
    with pytest.raises(SourceError) as caught:
        open_source(path)
    assert caught.value.reason.startswith("found ")
    assert len(str(caught.value)) < 5 * 80
    first, _ = re.findall("`covey ([^`]*)`", str(caught.value))
    assert main([*first.split(), "--no-progress"]) == 0


def test_missing_paths():
    with pytest.raises(SourceError, match="birds: no such file or directory"):
        open_source("birds")
    with pytest.raises(SourceError, match="no file matches") as caught:
        open_source("*.tfrecord")
    assert (caught.value.path, caught.value.line) == ("*.tfrecord", None)
    os.mkdir("empty")
    for kind in KINDS:
        with pytest.raises(SourceError, match=r"empty directory|there is no (image|sound) in"):
            open_source("empty", kind=kind)
    with pytest.raises(SourceError, match="kind is 'xml'; must be one of 'TF"):
        open_source("empty", kind="xml")


@pytest.mark.parametrize("name", ["photos", "photos/owl"])
def test_permission_denied(monkeypatch, name):
    put("owl/1.gif", "jay/1.gif")
    list_directory = os.scandir

    def refuse(path):  # the tests may run as root
        if os.fspath(path) == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return list_directory(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=f"{name}: cannot be read: Permission denied"):
        open_source("photos")


def test_options_of_other_formats():
    save("birds.csv", "x,label\n1,owl\n")
    for option in ("field", "splits", "class_from"):
        with pytest.raises(SourceError, match="the format of this source is 'CSV'") as caught:
            open_source("birds.csv", **{option: "last"})
        assert (caught.value.option, caught.value.allowed) == (option, "omitted")
    with pytest.raises(SourceError) as caught:
        open_source("birds.csv", label="genus")
    assert (caught.value.option, caught.value.found) == ("label", "genus")


def test_register(monkeypatch):
    monkeypatch.setattr("covey.sources.registry.KINDS", {})

    @register("words", "a file of words", recognise=lambda probed: probed.head.startswith(b"words"))
    def open_words(probed, options):
        return Source("words", probed.path, list(enumerate(probed.head.split())))

    assert open_source(save("a", "words are here")).examples[2] == (2, b"here")


@pytest.mark.parametrize("path", ["train.csv", "my photos", "*.csv"])
def test_a_source_that_is_opened_as_a_dataset(path, capsys):
    save("train.csv", "x,label\n1,owl\n")
    put("owl/1.gif", root="my photos")
    name = {"*.csv": "dataset"}.get(path, path.split(".")[0].replace(" ", "_"))
    shown = path if path == "train.csv" else repr(path)
    for function in (covey.open, covey.info, covey.verify, covey.build_index):
        with pytest.raises(
            DatasetError, match=r"it is a source \((CSV|image directory)\)"
        ) as caught:
            function(path)
        assert caught.value.remedy.endswith(f"`covey write {shown} data/{name}`")
    assert main(["info", path]) == 1
    assert f"covey write {shown} data/" in capsys.readouterr().err


# Class directories.

TREES = [
    (["owl/1.gif", "owl/young/2.gif", "jay/1.gif"], {}, {"": ("jay", "owl")}),
    (["owl/1.gif", "owl/young/2.gif"], {"class_from": "path"}, {"": ("owl", "owl/young")}),
    (["a/owl/1.gif", "b/owl/1.gif"], {"class_from": "last"}, {"": ("owl",)}),
    (["train/owl/1.gif", "val/owl/x/2.gif"], {}, {"train": ("owl",), "val": ("owl",)}),
    (["Test/a/b/1.gif"], {"class_from": "path"}, {"Test": ("a/b",)}),
    (["train/1.gif", "car/1.gif"], {"splits": "none"}, {"": ("car", "train")}),
    (["train/owl/1.gif", "extra/a/1.gif"], {"splits": ["train"]}, {"train": ("owl",)}),
    (["2019/owl/1.gif", "2020/jay/1.gif"], {"splits": "2020"}, {"2020": ("jay",)}),
    (["owl_1.gif", "jay_1.gif"], {"class_from": "^(?P<label>[a-z]+)_"}, {"": ("jay", "owl")}),
    (
        ["images/001.Owl/a.gif", "images/002.Jay/a.gif"],
        {"class_from": r"images/\d+\.(?P<label>[^/]+)/"},
        {"": ("Jay", "Owl")},
    ),
]


@pytest.mark.parametrize(("paths", "options", "expected"), TREES)
def test_trees(paths, options, expected):
    found = open_splits(put(*paths), **options)
    splits = {"": found} if isinstance(found, Source) else found
    assert list(splits) == list(expected)
    every = tuple(sorted({name for names in expected.values() for name in names}))
    for split, source in splits.items():
        assert names_of(source) == every
        assert set(classes_of(source).values()) == set(expected[split])
        again = pickle.loads(pickle.dumps(source.examples))
        assert list(again) == list(source.examples)


def test_keys_of_class_directories():
    root = put("train/owl/1.gif", "val/jay/1.gif", "val/owl/x/2.gif")
    source = open_source(root, split="validation", label="bird")
    assert source.features == {
        "image": Image(),
        "bird": ClassLabel(names=("jay", "owl")),
        "filename": Tensor("str"),
    }
    assert (source.kind, source.length, source.path) == ("image directory", 2, "photos/val")
    assert source.examples[-1] == (
        "owl/x/2.gif",
        {"image": GIF, "bird": "owl", "filename": "owl/x/2.gif"},
    )


REFUSED = [
    (
        ["train/owl/1.gif", "car/1.gif"],
        {},
        "have names of splits, 'train', and others have not, 'car'",
        "splits=",
    ),
    (["train/1.gif", "test/1.gif"], {}, "without class directories", "splits='none'"),
    (["1.gif"], {}, "found 1 image without class directories", "--class-from"),
    (["a/1.gif"], {"splits": "val"}, "no directory 'val' with images", ""),
    (["a1.gif", "b.gif"], {"class_from": r"(?P<label>.)\d"}, "1 of 2 images do not match", ""),
    (["owl /1.gif"], {}, "'owl ' is not a valid class name", "`mv 'photos/owl ' photos/owl`"),
]


@pytest.mark.parametrize(("paths", "options", "reason", "remedy"), REFUSED)
def test_refused_trees(paths, options, reason, remedy):
    with pytest.raises(SourceError) as caught:
        open_splits(put(*paths), **options)
    assert reason in str(caught.value)
    assert remedy in caught.value.remedy
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("splits", b"train"),
        ("splits", ["train", "train"]),
        ("splits", [""]),
        ("class_from", "first"),
        ("class_from", "(?P<name>x)"),
        ("class_from", "("),
        ("encoding", "hex"),
        ("images", ""),
    ],
)
def test_invalid_options(option, value):
    with pytest.raises(SourceError) as caught:
        open_source(put("owl/1.gif"), **{option: value})
    assert (caught.value.option, caught.value.found) == (option, value)


def test_files_that_cannot_be_read():
    put("owl/1.gif", "jay/1.gif", "stray.gif")
    save("photos/owl/2.gif", GIF[:20])
    save("photos/owl/3.png", "no image")
    os.symlink(os.path.abspath("photos/owl"), "photos/twin")
    os.symlink(os.path.abspath("photos"), "photos/owl/up")
    os.rename("photos/jay/1.gif", b"photos/jay/\xff.gif")
    source = open_source("photos")
    assert [key for key in (getattr(each, "path", None) for each in source.examples) if key] == [
        "photos/jay/\udcff.gif",
        "photos/owl/2.gif",
        "photos/owl/3.png",
        "photos/stray.gif",
        "photos/twin/2.gif",
        "photos/twin/3.png",
    ]
    reasons = {
        item.reason.split(":")[0] for item in source.examples if isinstance(item, SourceError)
    }
    assert reasons == {
        "the file name is not valid UTF-8",
        "not a valid image",
        "the image is not in a class directory",
    }
    result = covey.write("photos", "data", on_error="skip", progress=False)
    assert (result.classes, len(result.skipped)) == ({"owl": 1, "twin": 1}, 6)


# Tables of files.


def keys(source):
    return [item[0] for item in source.examples if not isinstance(item, SourceError)]


@pytest.mark.parametrize(
    ("table", "names", "options"),
    [
        ("metadata.csv", ["1.gif", "x/2.gif"], {}),
        ("metadata.jsonl", ["1.gif", "x/2.gif"], {}),
        ("metadata.csv", ["1.gif", "x/2.gif"], {"named": True}),
        ("birds.csv", ["1.gif", "x/2.gif"], {"images": "file_name", "named": True}),
        ("birds.csv", ["1", "2"], {"images": "id", "named": True}),
        ("birds.csv", ["./1.gif", "photos/x/2.gif"], {"images": "id", "named": True, "home": "."}),
        ("birds.json", ["1", "x/2"], {"images": "id", "named": True}),
    ],
)
def test_tables_of_images(table, names, options):
    column = options.pop("images", "file_name")
    is_named, home = options.pop("named", False), options.pop("home", "photos")
    put("1.gif", "x/2.gif", *(["1.gif"] if home == "photos" else []))
    if home == ".":
        shutil.move("photos/1.gif", "1.gif")
    rows = [{column: name, "weight": n, "bird": "ab"[n]} for n, name in enumerate(names)]
    if table.endswith(".csv"):
        content = "\n".join(
            [f"{column},weight,bird", *(",".join(map(str, each.values())) for each in rows)]
        )
    else:
        content = "\n".join(map(json.dumps, rows))
    path = save(f"{home}/{table}", content)
    if table == "birds.csv":
        plain = open_source(path)
        assert (plain.kind, bool(plain.notes)) == ("CSV", column == "file_name")
    images = {} if table.startswith("metadata") else {"images": column}
    source = open_source(path if is_named else home, **images, label="bird")
    assert (source.kind, source.length, source.notes) == ("image table", 2, ())
    assert list(source.examples) == [
        (
            row[column],
            {"image": GIF, column: row[column], "weight": row["weight"], "bird": row["bird"]},
        )
        for row in rows
    ]
    if table.endswith(".csv"):
        assert source.features == {
            "image": Image(),
            column: Tensor("str"),
            "weight": Tensor("int64"),
            "bird": ClassLabel(names=("a", "b")),
        }
    again = pickle.loads(pickle.dumps(source.examples))
    assert list(again) == list(source.examples)


def test_rows_and_files_that_do_not_match(capsys):
    put("1.gif", "2.gif", "3.gif", "a/4.gif", "b/4.gif")
    save("photos/cut.gif", GIF[:9])
    rows = ["file_name,label", "1.gif,owl", "gone.gif,owl", "cut.gif,jay", "1.gif", ",owl", "4,jay"]
    rows += ["../secret.gif,owl", "1.gif,jay"]
    save("secret.gif")
    save("photos/metadata.csv", "\n".join(rows))
    source = open_source("photos")
    assert keys(source) == ["1.gif:2", "1.gif:9"]
    assert [each for each in read(source) if isinstance(each[0], int)] == [
        (3, "there is no image file 'gone.gif'"),
        (
            4,
            "photos/cut.gif: not a valid image: it begins with b'GIF89a\\x01\\x00', without a "
            "complete header of JPEG, PNG, GIF, BMP, WebP",
        ),
        (5, "the row has 1 cells; the header has 2"),
        (6, "the row names no file"),
        (7, "'4' is the name of several files: 'a/4.gif', 'b/4.gif'"),
        (8, "there is no image file '../secret.gif'"),
    ]
    assert main(["write", "photos", "data", "--on-error", "skip", "--no-progress"]) == 0
    shown = capsys.readouterr().out
    assert (
        "note: 4 images in no row of 'metadata.csv': '2.gif', '3.gif', 'a/4.gif' and 1 more"
        in shown
    )
    assert "note: 5 rows of metadata.csv without a file: there is no image file 'gone.gif'" in shown
    named = open_source("photos/metadata.csv")
    assert "../secret.gif:8" in keys(named)  # the caller named the table


def test_tables_of_splits():
    for split in ("train", "test"):
        put(f"{split}/1.gif", f"{split}/2.gif")
        save(f"photos/{split}/metadata.csv", f"file_name,bird\n1.gif,{split}\n2.gif,jay\n")
        save(f"photos/{split}.csv", f"id,bird\n{split}/1,{split}\n{split}/2,jay\n")
    assert {name: keys(each) for name, each in open_splits("photos", images="id").items()} == {
        "train": ["train/1", "train/2"],
        "test": ["test/1", "test/2"],
    }
    for split in ("train", "test"):
        os.remove(f"photos/{split}.csv")
    splits = open_splits("photos")
    assert isinstance(splits, SourceSplits)
    assert {name: keys(each) for name, each in splits.items()} == {
        "train": ["1.gif", "2.gif"],
        "test": ["1.gif", "2.gif"],
    }


def test_invalid_tables_of_images():
    put("1.gif")
    path = save("photos/a.csv", "id,image\n1,2\n7,8\n")
    with pytest.raises(SourceError, match="images is 'file'; must be one of 'id', 'image'"):
        open_source(path, images="file")
    with pytest.raises(SourceError, match="another column has the reserved name 'image'"):
        open_source(path, images="id")
    save(path, "id,n\n8,2\n")
    with pytest.raises(SourceError, match=r"no row has a file below 'photos'.* '8'"):
        open_source(path, images="id")
