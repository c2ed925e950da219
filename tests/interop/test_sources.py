"""Contract of all sources, and detection of their formats."""

import errno
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

from covey import Features, RecordWriter, errors
from covey.sources import KINDS, Source, open_source, open_splits, register

SourceError = errors.SourceError


def png(number=0):
    out = io.BytesIO()
    Pillow.new("RGB", (4, 3), (number, 2, 3)).save(out, "PNG")
    return out.getvalue()


def make_images(path):
    for i, name in enumerate(["owl/a.png", "owl/b.png", "wren/a.png"]):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(png(i))
    return path


def make_image_table(path):
    make_images(path)
    (path / "labels.csv").write_text("file,bird\nowl/a.png,owl\nwren/a.png,wren\nowl/b.png,owl\n")
    return path


def make_csv(path):
    path.write_text("name,label\na,owl\nb,wren\nc,owl\n")
    return path


def make_tsv(path):
    path.write_text("name\tlabel\na\towl\nb\twren\nc\towl\n")
    return path


def make_lines(path):
    path.write_text("".join(json.dumps({"x": i, "label": i % 2}) + "\n" for i in range(3)))
    return path


def make_keyed(path):
    path.write_text(json.dumps({f"id{i}": {"x": i, "label": i % 2} for i in range(3)}, indent=1))
    return path


def make_list(path):
    path.write_text(json.dumps([{"x": i, "label": i % 2} for i in range(3)]))
    return path


def make_parquet(path):
    pq.write_table(pa.table({"x": [1, 2, 3], "label": ["owl", "wren", "owl"]}), path)
    return path


def make_tar(path):
    with tarfile.open(path, "w") as tar:
        for n in range(6):
            data = b"%d" % (n // 2 % 2)
            info = tarfile.TarInfo(f"{n // 2}.{('cls', 'txt')[n % 2]}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def make_npz(path):
    with open(path, "wb") as file:
        np.savez(file, x=np.zeros((3, 2), np.uint8), y=np.array([0, 1, 0]))
    return path


def make_records(path):
    features = Features({"x": "int64", "label": "int64"})
    with RecordWriter(path) as writer:
        for i in range(3):
            writer.write(features.encode({"x": i, "label": i % 2}))
    return path


def make_record_directory(path):
    path.mkdir()
    (path / "notes.txt").write_text("not a record")
    make_records(path / "a.bin")
    return path


# File names have no extensions: the format is detected from the content.
MAKERS = [
    (make_images, "image directory", "label"),
    (make_image_table, "image table", "bird"),
    (make_csv, "CSV", "label"),
    (make_tsv, "TSV", "label"),
    (make_lines, "JSON Lines", "label"),
    (make_keyed, "JSON", "label"),
    (make_list, "JSON", "label"),
    (make_parquet, "Parquet", "label"),
    (make_npz, "NPZ", "y"),
    (make_tar, "WebDataset", "cls"),
    (make_records, "TFRecords", "label"),
    (make_record_directory, "TFRecords", "label"),
]
every_kind = pytest.mark.parametrize(
    ("make", "kind", "label"), MAKERS, ids=[make.__name__[5:] for make, *_ in MAKERS]
)


def plain(item):
    key, example = item
    return key, {name: np.asarray(value).tolist() for name, value in example.items()}


@every_kind
def test_contract(tmp_path, make, kind, label):
    source = open_source(make(tmp_path / "thing"))
    assert (source.kind, source.label) == (kind, label)
    assert source.length == (None if kind.startswith("JSON") else 3)
    items = [plain(item) for item in source.examples]
    assert len({key for key, _ in items}) == len(items) == 3
    assert all(label in example for _, example in items)
    again = pickle.loads(pickle.dumps(source.examples))
    for examples in (source.examples, again, open_source(tmp_path / "thing").examples):
        assert [plain(item) for item in examples] == items


@every_kind
def test_examples_match_their_features(tmp_path, make, kind, label):
    source = open_source(make(tmp_path / "thing"))
    examples = [example for _, example in source.examples]
    features = source.features or Features.infer(examples)
    decoded = [features.decode(features.encode(example)) for example in examples]
    assert [list(each) for each in decoded] == [list(features)] * 3
    if source.columns is not None:
        assert len(features.encode_batch(source.columns)) == 3


# The label of an image directory is the class directory, under any name.
@pytest.mark.parametrize("make", [make for make, kind, _ in MAKERS if kind != "image directory"])
def test_unknown_label(tmp_path, make):
    with pytest.raises(SourceError) as caught:
        open_source(make(tmp_path / "thing"), label="genus")
    assert (caught.value.option, caught.value.found) == ("label", "genus")


@pytest.mark.parametrize("make", [make_images, make_image_table, make_npz, make_tar])
def test_items_are_read_by_position(tmp_path, make):
    examples = open_source(make(tmp_path / "thing")).examples
    assert plain(examples[-1]) == plain(list(examples)[2])
    assert [plain(item) for item in examples[1:]] == [plain(item) for item in examples][1:]
    with pytest.raises(IndexError, match="item 3 of a source of 3"):
        examples[3]


def test_pickle_contains_no_arrays(tmp_path):
    with open(tmp_path / "a.npz", "wb") as file:
        np.savez(file, x=np.zeros((1000, 100)))
    assert len(pickle.dumps(open_source(tmp_path / "a.npz").examples)) < 1000


def test_all_kinds():
    # In another process: examples of the documentation register one more.
    code = "import json; from covey.sources import KINDS; print(json.dumps(list(KINDS)))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert json.loads(run.stdout) == [
        "NPZ",
        "TFDS directory",
        "audio directory",
        "image table",
        "image directory",
        "Parquet",
        "WebDataset",
        "TFRecords",
        "JSON Lines",
        "JSON",
        "CSV",
    ]


BESIDE_IMAGES = [
    (make_csv, "data.csv"),
    (make_tsv, "data.tsv"),
    (make_lines, "data.jsonl"),
    (make_list, "train.json"),
    (make_parquet, "train.parquet"),
    (make_tar, "data-000000.tar"),
    (make_records, "data.tfrecord"),
]


@pytest.mark.parametrize(("make", "name"), BESIDE_IMAGES, ids=[name for _, name in BESIDE_IMAGES])
def test_tables_are_the_data_of_a_directory_with_images_below(tmp_path, make, name):
    make_images(tmp_path / "thing")
    expected = open_source(make(tmp_path / "thing" / name))
    source = open_source(tmp_path / "thing")
    assert source.kind == expected.kind
    assert [plain(item)[1] for item in source.examples] == [
        plain(item)[1] for item in expected.examples
    ]
    found = open_splits(tmp_path / "thing")
    assert found.notes == (
        f"read as {KINDS[expected.kind.replace('TSV', 'CSV')].name!r}, not as 'image directory'; "
        "kind= (--kind) decides otherwise",
    )
    named = open_splits(tmp_path / "thing", kind="image directory")
    assert (named.kind, named.length, named.notes) == ("image directory", 3, ())


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_metadata_of_images_is_not_their_data(tmp_path, name):
    make_images(tmp_path / "thing")
    make = {"metadata.csv": make_csv, "metadata.jsonl": make_lines}[name]
    make(tmp_path / "thing" / name)
    source = open_source(tmp_path / "thing")
    assert (source.kind, source.length, source.notes) == ("image directory", 3, ())


def test_explicit_kind(tmp_path):
    (tmp_path / "one").write_text("name\nowl\n")
    assert list(open_source(tmp_path / "one", kind="csv").examples) == [(0, {"name": "owl"})]
    assert open_source(make_lines(tmp_path / "a"), kind="json-lines").kind == "JSON Lines"
    with pytest.raises(SourceError, match="kind is 'xml'; must be one of 'NPZ', "):
        open_source(tmp_path / "one", kind="xml")


@pytest.mark.parametrize("kind", list(KINDS))
def test_explicit_kind_that_does_not_match(tmp_path, kind):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        SourceError, match=r"found an empty directory[,;] |there is no (image|sound) in this"
    ):
        open_source(tmp_path / "empty", kind=kind)


@pytest.mark.parametrize(
    ("content", "found"),
    [(b"", "an empty file"), (b"\x7fELF\x02", r"a file that begins with b'\\x7fELF\\x02'")],
)
def test_unknown_file(tmp_path, content, found):
    (tmp_path / "thing.csv").write_bytes(content)
    with pytest.raises(
        SourceError, match=f"thing.csv: found {found}, which has no supported .*NPZ: an"
    ):
        open_source(tmp_path / "thing.csv")


def test_unknown_directory(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "b").mkdir()
    with pytest.raises(SourceError, match=r"found 1 files \('a.txt'\) and 1 directories \('b'\), "):
        open_source(tmp_path)


def test_missing_path(tmp_path):
    with pytest.raises(SourceError, match="birds: no such file or directory"):
        open_source(tmp_path / "birds")
    with pytest.raises(SourceError, match="no file matches") as caught:
        open_source(str(tmp_path / "*.tfrecord"))
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "*.tfrecord"), None)


@pytest.mark.parametrize("name", ["thing", "thing/owl"])
def test_permission_denied(tmp_path, monkeypatch, name):
    make_images(tmp_path / "thing")
    list_directory = os.scandir

    def refuse(path):  # the tests may run as root
        if os.fspath(path) == str(tmp_path / name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return list_directory(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=f"{name}: cannot be read: Permission denied"):
        open_source(tmp_path / "thing")


def test_register(tmp_path, monkeypatch):
    monkeypatch.setattr("covey.sources.registry.KINDS", {})

    @register("words", "a file of words", recognise=lambda probed: probed.head.startswith(b"words"))
    def open_words(probed, options):
        return Source(
            "words", probed.path, list(enumerate(probed.head.split())), label=options.label
        )

    (tmp_path / "a").write_text("words are here")
    assert open_source(tmp_path / "a").examples[2] == (2, b"here")


def test_csv_of_pandas(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"i": [1, -2, 3], "f": [0.5, None, 1e10], "s": ['a "b"', "c\nd", "é, ñ"]})
    frame.to_csv(tmp_path / "birds.csv", index=False)
    examples = [example for _, example in open_source(tmp_path / "birds.csv").examples]
    pd.testing.assert_frame_equal(pd.DataFrame(examples), frame)
