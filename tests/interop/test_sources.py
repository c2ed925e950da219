"""Contract of all sources; tables and datasets of other programs."""

import gc
import io
import json
import pickle
import re
import shlex
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image as Pillow
from snippets import ROOT

import covey
from covey import ClassLabel, Features, Image, RecordWriter
from covey.cli import main
from covey.errors import SourceError
from covey.sources import KINDS, open_source, open_splits
from covey.sources.media import check_image


def encoded(format="PNG", number=0, **options):
    pixels = np.random.default_rng(number).integers(0, 255, (40, 30, 3), np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(pixels).save(out, format, **options)
    return out.getvalue()


def make_images(path):
    for i, name in enumerate(["owl/a.png", "owl/b.png", "wren/a.png"]):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(encoded(number=i))


def make_image_table(path):
    make_images(path)
    rows = "owl/a.png,owl\nwren/a.png,wren\nowl/b.png,owl\n"
    (path / "metadata.csv").write_text(f"file_name,bird\n{rows}")


def make_csv(path):
    path.write_text("name,label\na,owl\nb,wren\nc,owl\n")


def make_tsv(path):
    path.write_text("name\tlabel\na\towl\nb\twren\nc\towl\n")


def make_lines(path):
    path.write_text("".join(json.dumps({"x": i, "label": i % 2}) + "\n" for i in range(3)))


def make_list(path):
    path.write_text(json.dumps([{"x": i, "label": i % 2} for i in range(3)]))


TABLE = pa.table({"x": [1, 2, 3], "label": ["owl", "wren", "owl"]})


def make_parquet(path):
    pq.write_table(TABLE, path)


def make_arrow(path):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE)


def make_saved(path):
    datasets.Dataset(TABLE).save_to_disk(path)


def make_tar(path):
    with tarfile.open(path, "w") as tar:
        for n in range(6):
            data = b"%d" % (n // 2 % 2)
            info = tarfile.TarInfo(f"{n // 2}.{('cls', 'txt')[n % 2]}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def make_npz(path):
    np.savez(path, x=np.zeros((3, 2), np.uint8), y=np.array([0, 1, 0]))


def make_records(path):
    features = Features({"x": "int64", "label": "int64"})
    with RecordWriter(path) as writer:
        for i in range(3):
            writer.write(features.encode({"x": i, "label": i % 2}))


MAKERS = [
    (make_images, "photos", "image directory", "label"),
    (make_image_table, "photos", "image table", "bird"),
    (make_csv, "a.csv", "CSV", "label"),
    (make_tsv, "a.tsv", "TSV", "label"),
    (make_lines, "a.jsonl", "JSON Lines", "label"),
    (make_list, "a.json", "JSON", "label"),
    (make_parquet, "a.parquet", "Parquet", "label"),
    (make_arrow, "a.arrow", "Arrow", "label"),
    (make_saved, "saved", "Arrow", "label"),
    (make_npz, "a.npz", "NPZ", "y"),
    (make_tar, "a.tar", "WebDataset", "cls"),
    (make_records, "a.tfrecord", "TFRecords", "label"),
]
every_kind = pytest.mark.parametrize(
    ("make", "name", "kind", "label"), MAKERS, ids=[make.__name__[5:] for make, *_ in MAKERS]
)


def plain(item):
    key, example = item
    return key, {name: np.asarray(value).tolist() for name, value in example.items()}


@every_kind
def test_contract(tmp_path, make, name, kind, label):
    make(tmp_path / name)
    source = open_source(tmp_path / name)
    assert (source.kind, source.label) == (kind, label)
    assert source.length == (None if kind.startswith("JSON") else 3)
    items = [plain(item) for item in source.examples]
    assert len({key for key, _ in items}) == len(items) == 3
    assert all(label in example for _, example in items)
    again = pickle.loads(pickle.dumps(source.examples))
    for examples in (source.examples, again, open_source(tmp_path / name).examples):
        assert [plain(item) for item in examples] == items
    if hasattr(source.examples, "read_range"):
        assert [plain(item) for item in source.examples.read_range(1, 3)] == items[1:]
    if hasattr(source.examples, "read_feature"):
        values = [example for _, example in source.examples.read_feature(label)]
        assert values == [{label: example[label]} for _, example in items]
    if hasattr(source.examples, "__getitem__"):
        assert [plain(item) for item in source.examples[1:]] == items[1:]
        with pytest.raises(IndexError):
            source.examples[3]
    examples = [example for _, example in source.examples]
    features = source.features or Features.infer(examples)
    decoded = [features.decode(features.encode(example)) for example in examples]
    assert [list(each) for each in decoded] == [list(features)] * 3
    if source.columns is not None:
        assert len(features.encode_batch(source.columns)) == 3
    if kind != "image directory":  # whose label has any name
        with pytest.raises(SourceError) as caught:
            open_source(tmp_path / name, label="genus")
        assert (caught.value.option, caught.value.found) == ("label", "genus")


def test_pickle_contains_no_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((1000, 100)))
    assert len(pickle.dumps(open_source(tmp_path / "a.npz").examples)) < 1000


def test_all_kinds():
    # In another process: examples of the documentation register one more.
    code = (
        "import covey.cli.write as w; from covey.sources import KINDS; print(list(KINDS), w.KINDS)"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    kinds = [name for name in KINDS if name != "words"]
    assert run.stdout == f"{kinds} {', '.join(kinds)}\n"


# Images.

FORMATS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("JPEG", {"exif": b"Exif\0\0" + encoded("JPEG", 1)}),  # a thumbnail has an end of its own
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("WebP", {}),
]


@pytest.mark.parametrize(("format", "options"), FORMATS)
def test_complete_and_truncated_images(format, options):
    data = encoded(format, **options)
    assert check_image(data) == data
    assert check_image(data + b"\0" * 7)
    for size in {0, 10, 40, len(data) // 2, len(data) - 1}:
        with pytest.raises(SourceError, match="not a valid image: "):
            check_image(data[:size])


def test_animated_gif_with_palettes():
    frames = [Pillow.new("P", (9, 9), i) for i in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], loop=0)
    assert check_image(out.getvalue())


@pytest.mark.parametrize("data", [b"II*\0 and more", b"<html>", b"BMW sales of the year"])
def test_unsupported_formats(data):
    with pytest.raises(SourceError, match="header of JPEG, PNG, GIF, BMP, WebP"):
        check_image(data)


# Other programs.


def test_csv_of_pandas(tmp_path):
    frame = pd.DataFrame({"i": [1, -2, 3], "f": [0.5, None, 1e10], "s": ['a "b"', "c\nd", "é, ñ"]})
    frame.to_csv(tmp_path / "birds.csv", index=False)
    examples = [example for _, example in open_source(tmp_path / "birds.csv").examples]
    pd.testing.assert_frame_equal(pd.DataFrame(examples), frame)


@pytest.mark.parametrize(
    ("name", "lines"), [("a.json", False), ("a.json", True), ("a.jsonl", True)]
)
def test_json_of_pandas(tmp_path, name, lines):
    frame = pd.DataFrame({"i": [1, -2], "s": ["é, ñ", "b"]})
    frame.to_json(tmp_path / name, orient="records", lines=lines)
    examples = [example for _, example in open_source(tmp_path / name).examples]
    pd.testing.assert_frame_equal(pd.DataFrame(examples), frame)


@pytest.fixture(scope="module")
def birds():
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["owl", "wren"])}
    )
    images = [{"bytes": encoded(number=n), "path": None} for n in range(6)]
    data = {"image": images, "label": [0, 1, 0, 1, 0, 1]}
    return datasets.Dataset.from_dict(data, features)


def test_hugging_face_datasets(tmp_path, birds):
    """save_to_disk, and a snapshot of the Hub: data/*.parquet with the names of splits."""
    splits = datasets.DatasetDict({"train": birds, "unsupervised": birds.select([4, 3])})
    splits.save_to_disk(tmp_path / "saved")
    birds.select([5, 0]).save_to_disk(tmp_path / "one", num_shards=2)
    (tmp_path / "hub/data").mkdir(parents=True)
    (tmp_path / "hub/README.md").write_text("# Birds\n")
    (tmp_path / "hub/dataset_infos.json").write_text("{}")
    for split, each in splits.items():
        for n in range(2):
            shard = each.shard(2, n, contiguous=True)
            shard.to_parquet(tmp_path / f"hub/data/{split}-0000{n}-of-00002.parquet")
    for name in ("saved", "hub"):
        found = open_splits(tmp_path / name)
        assert list(found) == ["train", "unsupervised"]
        assert found["train"].features == {
            "image": Image(),
            "label": ClassLabel(names=("owl", "wren")),
        }
        for split, each in found.items():
            expected = splits[split].cast_column("image", datasets.Image(decode=False))
            assert [example for _, example in each.examples] == [
                {"image": row["image"]["bytes"], "label": row["label"]} for row in expected
            ]
        result = covey.write(tmp_path / name, tmp_path / f"{name} out", progress=False)
        assert result.splits["unsupervised"].classes == {"owl": 1, "wren": 1}
    assert [example["label"] for _, example in open_source(tmp_path / "one").examples] == [1, 0]


@pytest.mark.parametrize("has_table", [False, True])
def test_imagefolder_of_hugging_face(tmp_path, has_table):
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        rows = []
        for n in range(4):
            name = f"{n}.png" if has_table else f"{('owl', 'wren')[n % 2]}/{n}.png"
            path = tmp_path / "birds" / split / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Pillow.fromarray(rng.integers(0, 255, (3, 4, 3), np.uint8)).save(path)
            rows.append(f"{name},{n % 2}")
        if has_table:
            table = "\n".join(["file_name,label", *rows])
            (tmp_path / "birds" / split / "metadata.csv").write_text(table)
    with warnings.catch_warnings():  # datasets does not close the tables
        warnings.simplefilter("ignore", ResourceWarning)
        folder = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "birds"))
        gc.collect()
    for split, source in open_splits(tmp_path / "birds").items():
        names = source.features["label"].names if not has_table else None
        found = sorted(
            (np.asarray(Pillow.open(io.BytesIO(e["image"]))).tolist(), e["label"])
            for _, e in source.examples
        )
        expected = sorted(
            (np.asarray(e["image"]).tolist(), names[e["label"]] if names else e["label"])
            for e in folder[split]
        )
        assert found == expected


# The table of docs/sources.md.

PAGE = (ROOT / "docs/sources.md").read_text()
ROWS = re.findall(r"^\| (.+) \| `covey write (.+?)`", PAGE, re.MULTILINE)


def make_row(what, path):
    """Create what a row of the table describes."""
    root = Path(path)

    def image(name):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(number=len(str(file))))

    rows = "name,weight,species,split,label\n" + "a,1,owl,train,x\nb,2,wren,test,y\n" * 6
    match what.split(",")[0].split(":")[0].split(";")[0]:
        case "a directory of images per class (ImageFolder" | "classes in nested directories":
            [image(f"{name}/a/{n}.png") for name in ("owl", "wren") for n in range(3)]
        case (
            "`train/` and `val/` with a directory per class"
            | "directories of which some are splits"
        ):
            [image(f"{s}/{name}/1.png") for s in ("train", "val") for name in ("owl", "wren")]
            if "some" in what:
                image("extra/1.png")
        case "classes in file names":
            [image(f"{name}_{n:03}.png") for name in ("owl", "wren") for n in range(2)]
        case "CUB-200":
            [image(f"{name}/{n}.png") for name in ("001.Albatross", "002.Auklet") for n in range(2)]
        case "Kaggle":
            root = root.parent
            [image(f"images/{name}.png") for name in ("0a", "1b")]
            Path(path).write_text("id,species,sex\n0a,owl,f\n1b,wren,m\n")
        case "`metadata.csv` with `file_name` beside images or sounds (imagefolder":
            make_image_table(root)
            (root / "metadata.csv").write_text("file_name,label\nowl/a.png,owl\nwren/a.png,jay\n")
        case "a directory of sounds per class":
            for name in ("owl", "wren"):
                (root / name).mkdir(parents=True)
                soundfile.write(root / name / "1.wav", np.zeros(80), 8000)
        case "CSV without a header":
            root.write_text("hedwig,1,owl\njenny,2,wren\n")
        case "CSV or TSV with a header" | "a table with a column that names the split":
            root.write_text(rows)
        case "`train.csv` and `test.csv`":
            root.mkdir()
            (root / "train.csv").write_text(rows)
            (root / "test.csv").write_text(rows)
        case "JSON Lines":
            make_lines(root)
        case "JSON with the list inside":
            root.write_text(
                json.dumps({"data": {"items": [{"x": n, "label": n} for n in range(4)]}})
            )
        case "a snapshot of a dataset of the Hugging Face Hub (`huggingface-cli download`)":
            (root / "data").mkdir(parents=True)
            make_parquet(root / "data/train-00000-of-00001.parquet")
        case 'what `load_dataset(...).save_to_disk("saved")` wrote':
            make_saved(root)
        case "Parquet or Arrow files":
            make_parquet(path.replace("*", "1"))
        case "WebDataset shards":
            make_tar(path.replace("*", "1"))
        case "arrays of NumPy":
            make_npz(root)
        case "a dataset that TFDS (TensorFlow Datasets) prepared":
            covey.write({"x": [1, 2], "label": ["a", "b"]}, root / "mnist/1.0.0", progress=False)
        case "TFRecords of another program":
            make_records(path.replace("*", "1"))
        case _:
            raise AssertionError(what)


@pytest.mark.parametrize(("what", "command"), ROWS, ids=[what[:20] for what, _ in ROWS])
def test_the_table_of_the_page(tmp_path, monkeypatch, what, command):
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command.replace("~/", ""))
    if "/" in arguments[0]:
        Path(arguments[0]).parent.mkdir(parents=True)
    make_row(what, arguments[0])
    assert main(["write", *arguments, "--no-progress"]) == 0
    with covey.open(arguments[1], split="all", progress=False) as ds:
        assert len(ds) >= 2
        assert len(ds.classes) >= 2


def test_the_table_of_the_page_is_complete():
    assert len(ROWS) == 22
    for word in (
        "Hub",
        "load_dataset",
        "pandas",
        "Kaggle",
        "CUB",
        "WebDataset",
        "ImageFolder",
        "TFDS",
    ):
        assert word in PAGE
