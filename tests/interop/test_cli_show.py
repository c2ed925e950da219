"""covey show --batch: the listed batch and the saved thumbnails."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from opened import opened, put
from PIL import Image as Pillow
from written import about, index, write

import covey
from covey._core import crc32c
from covey.cli import main
from covey.cli.show import CELL, MAX_IMAGES, SIDE
from covey.index import Index
from covey.index.write import write_index

NAMES = ("crow", "owl", "wren")
BACKGROUND = (236, 236, 236)


@pytest.fixture(autouse=True)
def _in_a_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments, code=0):
    """Return the standard output and the standard error of the command."""
    assert main(["show", "--batch", *map(str, arguments)]) == code
    found = capsys.readouterr()
    assert "Traceback" not in found.err
    return found


def draw(capsys, *arguments, code=0):
    """Return the batch, as the command prints it with --json."""
    return json.loads(run(capsys, *arguments, "--json", code=code).out)


def save(capsys, *arguments):
    """Return the batch, whose thumbnails are saved as sheet.png."""
    found = draw(capsys, *arguments, "--output", "sheet.png")
    assert found["sheet"]["file"] == "sheet.png"
    return found


def ids_of(found):
    return [number for each in found["classes"] for number in each["ids"]]


def pixels(number, *shape):
    """Random pixels."""
    return np.random.default_rng(number).integers(0, 256, shape).astype(np.uint8)


def write_images(path="birds", *, shape=(28, 28), count=60, split="train", **options):
    examples = [{"image": pixels(n, *shape), "bird": NAMES[n % 3]} for n in range(count)]
    write(examples, path, split, label="bird", **options)
    return path


def write_numbers(path="birds", count=60, classes=12):
    write({"x": np.arange(count), "label": np.arange(count) % classes}, path, label="label")
    return path


def png(array, **options):
    file = io.BytesIO()
    Pillow.fromarray(array).save(file, "png", **options)
    return file.getvalue()


def sheet_of(path):
    with Pillow.open(path) as sheet:
        return sheet.convert("RGB")


def cell(sheet, row, column):
    """Crop a cell without its margin, at the right and below."""
    left, top = column * CELL, row * CELL
    return np.asarray(sheet.crop((left, top, left + SIDE, top + SIDE)))


def thumbnail(image):
    """A cell as Pillow would fill it: the image at its left and top, as large as it fits."""
    complete = Pillow.new("RGB", (SIDE, SIDE), BACKGROUND)
    found = Pillow.fromarray(image)
    scale = SIDE / max(found.size)
    size = [max(1, round(each * scale)) for each in found.size]
    resample = Pillow.Resampling.LANCZOS if scale <= 1 else Pillow.Resampling.NEAREST
    complete.paste(found.resize(size, resample).convert("RGB"))
    return np.asarray(complete)


def assert_shows(path, images):
    """Assert that the rows of a sheet have these images."""
    sheet = sheet_of(path)
    assert sheet.size == (len(images[0]) * CELL, len(images) * CELL)
    for row, each in enumerate(images):
        for column, image in enumerate(each):
            np.testing.assert_array_equal(cell(sheet, row, column), thumbnail(image))


# The batch.


@pytest.mark.parametrize(
    ("seed", "step", "weights"), [(0, 9, None), (7, 3, "sqrt"), (2**64 - 1, 10**12, "size")]
)
def test_batch_is_that_of_the_loader(capsys, seed, step, weights):
    write_numbers(count=150)
    more = [] if weights is None else ["--class-weights", weights]
    found = draw(capsys, "birds", "-p", 5, "-k", 3, "--seed", seed, "--step", step, *more)
    loader = opened("birds").batches(5, 3, seed=seed, class_weights=weights)
    assert ids_of(found) == loader.plan.batch(step).tolist()
    assert (found["seed"], found["step"], found["label"]) == (seed, step, "label")
    assert found["sheet"] is None
    loader.seek(step)
    x, y = next(iter(loader))
    assert opened("birds")[ids_of(found)]["x"].tolist() == x.tolist()
    assert y.tolist() == [each["label"] for each in found["classes"] for _ in range(3)]


def test_table_of_classes(capsys):
    write_images(count=60)
    found = draw(capsys, "birds", "-p", 2, "-k", 3)["classes"]
    output = run(capsys, "birds", "-p", 2, "-k", 3).out.splitlines()
    assert output[0] == "birds: batch 0 of seed 0: 2 classes of 'bird', 3 examples each"
    assert output[1].split() == ["class", "label", "examples"]
    assert [line.split() for line in output[2:4]] == [
        [each["name"], str(each["label"]), *map(str, each["ids"])] for each in found
    ]
    dataset = opened("birds")
    for each in found:
        assert each["name"] == NAMES[each["label"]]
        assert (dataset.labels[each["ids"]] == each["label"]).all()
    assert os.listdir() == ["birds"]


def test_default_numbers_of_classes_and_examples(capsys):
    write_numbers("many")
    write_numbers("few", classes=3)
    assert [len(each["ids"]) for each in draw(capsys, "many")["classes"]] == [4] * 8
    assert [len(each["ids"]) for each in draw(capsys, "few")["classes"]] == [4] * 3


def test_label(capsys):
    put(
        Path("x.tfrecord"),
        ({"x": n % 4, "y": n % 5} for n in range(40)),
        {"x": "int64", "y": "int64"},
    )
    found = draw(capsys, "x.tfrecord", "--label", "y", "--no-progress")
    assert (found["label"], len(found["classes"])) == ("y", 5)


def test_warning_of_small_classes(capsys):
    write_numbers(count=24)
    found = run(capsys, "birds", "-k", 3, "--json")
    assert re.search(
        r"^covey: warning: 12 classes have fewer than 3 examples: '0' \(2\), .*\n$", found.err
    )
    assert [len(each["ids"]) for each in json.loads(found.out)["classes"]] == [3] * 8


def test_class_names_in_the_table(capsys):
    names = ["x" * 90, "owl\nwren", "Жар-птица", "owl"]
    put(
        Path("x.tfrecord"),
        ({"x": n, "label": names[n % 4]} for n in range(16)),
        {"x": "int64", "label": "str"},
    )
    output = run(capsys, "x.tfrecord", "--no-progress").out.splitlines()
    found = sorted(
        re.fullmatch(r"  (.*?) +\d+ +\d+ +\d+ +\d+ +\d+", line)[1] for line in output[2:6]
    )
    assert found == ["owl", r"owl\nwren", f"{'x' * 37}...", "Жар-птица"]
    drawn = draw(capsys, "x.tfrecord", "--no-progress")
    assert sorted(each["name"] for each in drawn["classes"]) == sorted(names)


# Thumbnails.


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ((28, 28), (28, 28)),
        ((28, 28, 1), (28, 28)),
        ((32, 32, 3), (32, 32, 3)),
        ((SIDE, SIDE, 3), (SIDE, SIDE, 3)),
        ((784,), (28, 28)),
        ((3072,), (32, 32, 3)),
        ((64,), (8, 8)),
        ((300, 200, 3), (300, 200, 3)),
        ((1, 2000, 3), (1, 2000, 3)),
    ],
)
def test_pixels_of_tensors(capsys, stored, shape):
    write({"image": pixels(0, 12, *stored), "label": np.arange(12) % 3}, "birds", label="label")
    found = save(capsys, "birds", "-p", 3, "-k", 4)
    assert found["sheet"]["feature"] == "image"
    dataset = opened("birds")
    images = [dataset[each["ids"]]["image"].reshape(4, *shape) for each in found["classes"]]
    assert_shows("sheet.png", images)


def test_an_image_without_pixels_is_an_empty_cell(capsys):
    examples = [{"image": pixels(n, *((0, 7), (5, 7))[n]), "label": n} for n in range(2)]
    write(examples, "birds", label="label")
    classes = save(capsys, "birds", "-p", 2, "-k", 1)["classes"]
    row = [each["label"] for each in classes].index(0)
    assert (cell(sheet_of("sheet.png"), row, 0) == BACKGROUND).all()


def test_encoded_images_in_a_bytes_feature(capsys):
    kinds = {"a": "bytes", "image/encoded": "bytes", "label": "int64"}
    images = [pixels(n, 16, 16) for n in range(6)]
    examples = [
        {"a": b"no image", "image/encoded": png(each), "label": n % 2}
        for n, each in enumerate(images)
    ]
    put(Path("photos-00000.tfrecord"), examples, kinds)
    found = draw(capsys, "*.tfrecord", "-k", 3, "--no-progress", "--output", "sheet.PNG")
    assert found["sheet"] == {"file": "sheet.PNG", "feature": "image/encoded"}
    shown = [[images[number] for number in each["ids"]] for each in found["classes"]]
    assert_shows("sheet.PNG", shown)


@pytest.mark.parametrize("form", ["png", "bmp", "gif", "webp"])
def test_bytes_are_an_image_in_every_format_that_is_printed_as_one(capsys, form):
    file = io.BytesIO()
    options = {"lossless": True} if form == "webp" else {}
    Pillow.new("RGB", (16, 16), (255, 0, 0)).save(file, form, **options)
    put(Path("x.tfrecord"), [{"a": file.getvalue(), "label": 0}], {"a": "bytes", "label": "int64"})
    found = save(capsys, "x.tfrecord", "-k", 1, "--no-progress")
    assert found["classes"][0]["examples"][0]["values"]["a"]["format"] == form
    assert (cell(sheet_of("sheet.png"), 0, 0) == (255, 0, 0)).all()


def test_transparent_and_deep_images(capsys):
    alpha = np.zeros((32, 32, 4), np.uint8)
    alpha[:16] = (255, 0, 0, 255)
    grey = np.zeros((32, 32, 2), np.uint8)
    grey[:16] = (7, 255)
    deep = np.full((32, 32), 0x1234, np.uint16)
    write([{"image": alpha, "label": 0}], "rgba", label="label")
    kinds = {"image": covey.Image(channels=None), "label": "int64"}
    write([{"image": png(grey), "label": 0}], "la", label="label", features=kinds)
    kinds = {"image": covey.Image((None, None, 1), "uint16"), "label": "int64"}
    write([{"image": deep, "label": 0}], "deep", label="label", features=kinds)
    for name, above, below in (
        ("rgba", (255, 0, 0), BACKGROUND),
        ("la", (7, 7, 7), BACKGROUND),
        ("deep", (0x12,) * 3, (0x12,) * 3),
    ):
        save(capsys, name, "-k", 1)
        found = cell(sheet_of("sheet.png"), 0, 0)
        assert (found[:64] == above).all()
        assert (found[64:] == below).all()


def test_features_that_are_not_images(capsys):
    columns = {
        "vector": pixels(0, 8, 63),
        "tiny": pixels(0, 8, 49),
        "one": pixels(0, 8),
        "layers": pixels(0, 8, 20, 20, 2),
        "wide": pixels(0, 8, 28, 28).astype(np.int16),
        "text": [b"PNG"] * 8,
        "label": np.arange(8) % 2,
    }
    write(columns, "birds", label="label")
    assert draw(capsys, "birds")["sheet"] is None
    found = run(capsys, "birds", "--output", "sheet.png", code=1)
    assert "no feature is an image: 'vector' is uint8 (63,), " in found.err
    assert "'wide' is int16 (28, 28)" in found.err
    assert os.listdir() == ["birds"]


def test_select_one_of_several_images(capsys):
    columns = {
        "flat": pixels(0, 4, 64),
        "seen": {"left": pixels(1, 4, 9, 9), "right": pixels(2, 4, 9, 9, 4)},
        "label": [0, 0, 1, 1],
    }
    write(columns, "birds", label="label")
    assert save(capsys, "birds")["sheet"]["feature"] == "seen/left"
    for name in ("flat", "seen/left", "seen/right"):
        found = save(capsys, "birds", "--select", name, "--select", "label")
        assert found["sheet"]["feature"] == name
        values = found["classes"][0]["examples"][0]["values"]
        assert list(values) == [name, "label"]
    found = run(capsys, "birds", "--select", "label", "--output", "sheet.png", code=1)
    assert "no feature is an image: 'label' is int64" in found.err
    found = run(capsys, "birds", "--select", "above", code=1)
    assert "there is no feature 'above'" in found.err
    assert "'flat', 'seen/left', 'seen/right', 'label'" in found.err
    assert found.out == ""


def test_maximum_number_of_thumbnails(capsys):
    columns = {"x": np.zeros((70, 8, 8), np.uint8), "label": np.arange(70) % 70}
    write(columns, "birds", label="label")
    found = run(capsys, "birds", "-p", 70, "-k", 32, "--json", "--output", "sheet.png")
    assert len(ids_of(json.loads(found.out))) == 70 * 32
    assert MAX_IMAGES == 64 * 32
    assert "covey: sheet.png has the first 2,048 of 2,240 images\n" in found.err
    assert sheet_of("sheet.png").size == (32 * CELL, 64 * CELL)


# File names and errors.


def test_a_picture_is_written_only_with_output(capsys):
    write_images()
    run(capsys, "birds")
    assert os.listdir() == ["birds"]
    assert run(capsys, "birds", "-q", "--output", "sheet.png") == ("", "")
    assert sheet_of("sheet.png").height == 3 * CELL


def test_save_to_a_path(capsys):
    write_images()
    output = run(capsys, "birds", "--output", "birds/sheet.jpg").out
    assert output.endswith("images of 'image': birds/sheet.jpg\n")
    with Pillow.open("birds/sheet.jpg") as sheet:
        assert sheet.format == "JPEG"
    found = run(capsys, "birds", "--output", "no/where.png", code=1)
    assert "no/where.png: the thumbnails cannot be saved: No such file" in found.err
    assert os.listdir() == ["birds"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--output sheet.txt", "must be a path that ends with .png or .jpg"),
        ("--ids 3", "--ids is not allowed with --batch"),
        ("--class owl", "--class is not allowed with --batch"),
        ("-p 0", "must be an integer >= 1"),
        ("-k many", "must be an integer >= 1"),
        ("--class-weights log", "'log' must be one of 'sqrt', 'size'"),
    ],
)
def test_invalid_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        main(["show", "--batch", "birds", *arguments.split()])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "13"], "--classes-per-batch is 13; must be <= 12"),
        (["--seed", "-1"], "--seed is -1; must be"),
        (["--step", "-1"], "--step is -1; must be"),
        (["--step", str(10**30)], f"--step is {10**30}; must be"),
    ],
)
def test_invalid_values(capsys, arguments, message):
    write_numbers()
    found = run(capsys, "birds", *arguments, code=1)
    assert found.err.startswith(f"covey: error: {message}")
    assert found.out == ""


def test_dataset_without_a_label_or_missing(capsys):
    assert "there is no such file or directory" in run(capsys, "nowhere", code=1).err
    write([{"x": 1}], "birds")
    assert "the dataset has no label" in run(capsys, "birds", code=1).err


def test_index_with_wrong_classes(capsys):
    write_numbers(count=8, classes=2)
    directory = Path("birds")
    rows, classes, by_class = (index(directory, what) for what in ("rows", "classes", "by_class"))
    by_class = by_class[::-1].copy()  # the records of the other class
    sums = (crc32c(classes), crc32c(by_class))
    metadata = dataclasses.replace(about(directory), class_checksums=sums)
    write_index(directory, "birds-train", Index(metadata, rows, classes, by_class))
    found = run(capsys, "birds", code=1)
    assert found.out == ""
    assert "the class table of the index lists records of other classes" in found.err


def test_corrupt_image(capsys):
    features = covey.Features({"image": covey.Image(), "label": "int64"})
    good = png(pixels(0, 8, 8))
    examples = [{"image": each, "label": 0} for each in (good, good[:40])]
    put(Path("x.tfrecord"), examples, features)
    found = run(capsys, "x.tfrecord", "-k", 2, "--no-progress", "--output", "x.png", code=1)
    assert re.search(
        r"x\.tfrecord: record 1 at byte \d+: feature 'image': .*bytes are not ", found.err
    )
    assert found.out == ""
    assert not os.path.exists("x.png")


def test_without_pillow(capsys, monkeypatch):
    write_images()
    expected = draw(capsys, "birds")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert draw(capsys, "birds") == expected
    found = run(capsys, "birds", "--output", "sheet.png", code=1)
    assert "pip install 'covey[images]'" in found.err
    assert os.listdir() == ["birds"]


def test_characters_that_the_output_cannot_encode():
    write([{"x": n, "label": "é🐦"} for n in range(4)], "birds", label="label")

    def printed(encoding, *more):
        command = [sys.executable, "-m", "covey", "show", "--batch", "birds", *more]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        return done.stdout.decode(encoding)

    assert printed("latin-1").splitlines()[2].split()[0] == r"é\ud83d\udc26"
    assert json.loads(printed("ascii", "--json"))["classes"][0]["name"] == "é🐦"
