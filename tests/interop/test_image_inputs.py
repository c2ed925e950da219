"""Images that covey.write takes, and their summary; Pillow and Hugging Face are the judges."""

import io
import json
import sys

import datasets
import numpy as np
import pandas
import PIL.Image
import PIL.ImageDraw
import polars
import pyarrow as pa
import pytest
from opened import opened
from written import write

import covey
from covey import ClassLabel, Image, Tensor
from covey.cli import main
from covey.errors import FeatureError
from covey.schema.images import join_images, parse_summary
from covey.sources import open_source


def encode(pixels, form="JPEG", **options):
    out = io.BytesIO()
    PIL.Image.fromarray(pixels).save(out, form, **options)
    return out.getvalue()


def draw(seed, shape=(12, 16, 3), dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype)


ENCODED = [
    encode(draw(0)),
    encode(draw(1, (9, 9)), "PNG"),
    encode(draw(2, (7, 5, 4)), "PNG"),
    encode(draw(3), "WEBP"),
    encode(draw(4), "GIF"),
    encode(draw(5), "BMP"),
    encode(draw(6, (20, 8)), "JPEG", progressive=True),
]


@pytest.fixture
def paths(tmp_path):
    """Files of the encoded images; their names do not tell the format."""
    folder = tmp_path / "files"
    folder.mkdir()
    found = [folder / f"{n}.image" for n in range(len(ENCODED))]
    for path, data in zip(found, ENCODED, strict=True):
        path.write_bytes(data)
    return found


def stored(examples, directory, **options):
    """Write examples in order; return the feature and the encoded images."""
    options = {"shuffle": False, **options}
    result = write(examples, directory, **options)
    ds = opened(directory)
    return result.features["image"], [ds[i]["image"] for i in range(len(ds))]


PICTURES = []


@pytest.fixture(autouse=True)
def _closed_files():
    """Close the files of images at the end of a test; Pillow keeps those with several frames."""
    yield
    while PICTURES:
        PICTURES.pop().close()


def open_picture(file):
    PICTURES.append(PIL.Image.open(file))
    return PICTURES[-1]


def load(path):
    image = open_picture(path)
    image.load()
    return image


def pixels_of(data):
    with PIL.Image.open(io.BytesIO(data)) as judge:
        return np.asarray(judge.convert("RGBA"))


def hugging_face(values):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": list(values), "label": list(range(len(ENCODED)))}
    return datasets.Dataset.from_dict(rows, features=features)


def dicts():
    return [{"bytes": data, "path": None} for data in ENCODED]


def parquet(values, directory):
    file = directory / "x.parquet"
    hugging_face(values).to_parquet(file)
    return file


# Forms in which examples give images. Each keeps the bytes, with and without declared features.
FORMS = {
    "bytes": lambda paths: [{"image": data} for data in ENCODED],
    "bytearray": lambda paths: [{"image": bytearray(data)} for data in ENCODED],
    "column of bytes": lambda paths: {"image": ENCODED},
    "Pillow, a file": lambda paths: [{"image": open_picture(path)} for path in paths],
    "Pillow, memory": lambda paths: [{"image": open_picture(io.BytesIO(data))} for data in ENCODED],
    "column of Pillow": lambda paths: {"image": list(map(open_picture, paths))},
    "dicts": lambda paths: [{"image": each} for each in dicts()],
    "dicts of paths": lambda paths: [
        {"image": {"bytes": None, "path": str(path)}} for path in paths
    ],
    "datasets": lambda paths: hugging_face(dicts()),
    "datasets of paths": lambda paths: hugging_face(map(str, paths)),
    "datasets, not decoded": lambda paths: hugging_face(dicts()).cast_column(
        "image", datasets.Image(decode=False)
    ),
    "datasets, iterable": lambda paths: hugging_face(dicts()).to_iterable_dataset(),
    "arrow": lambda paths: pa.table({"image": dicts()}),
    "pandas": lambda paths: pandas.DataFrame({"image": dicts()}),
    "polars": lambda paths: polars.DataFrame({"image": dicts()}),
    "parquet": lambda paths: open_source(parquet(dicts(), paths[0].parent)),
}


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_encoded_images_are_stored_unchanged(tmp_path, paths, form, declared):
    examples = FORMS[form](paths)
    kinds = {"image": Image()}
    if "datasets" in form or form == "parquet":
        kinds["label"] = "int64"
    options = {"features": kinds} if declared else {}
    feature, found = stored(examples, tmp_path / "out", **options)
    assert feature == Image()
    assert found == ENCODED


@pytest.mark.parametrize("form", ["Pillow, a file", "dicts of paths", "datasets"])
def test_workers_store_the_same(tmp_path, paths, form):
    assert stored(FORMS[form](paths), tmp_path / "out", workers=2)[1] == ENCODED


def test_paths_are_declared(tmp_path, paths):
    examples = [{"image": str(path)} for path in paths]
    declared = [{"image": path if n % 2 else str(path)} for n, path in enumerate(paths)]
    assert stored(declared, tmp_path / "a", features={"image": Image()})[1] == ENCODED
    feature, found = stored(examples, tmp_path / "b")  # strings are never guessed to be paths
    assert feature == Tensor("str")
    assert found == list(map(str, paths))


# Images of Pillow that are not those of a file.


def drafted(image):
    image = open_picture(image.filename)
    image.draft("L", (8, 6))
    return image


def drawn(image):
    PIL.ImageDraw.Draw(image).point((1, 1), fill=1)
    return image


def shrunk(image):
    image.thumbnail((4, 4))
    return image


CHANGES = {
    "converted": lambda image: image.convert("L"),
    "resized": lambda image: image.resize((5, 4)),
    "copied": lambda image: image.copy(),
    "drawn": drawn,
    "shrunk": shrunk,
    "new": lambda image: PIL.Image.new("RGB", (3, 2), (1, 2, 3)),
    "transparent": lambda image: PIL.Image.new("RGBA", (3, 2), (1, 2, 3, 4)),
    "palette": lambda image: image.quantize(8),
    "bits": lambda image: image.convert("1"),
    "loaded": lambda image: image,
    "draft": drafted,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_images_are_encoded(tmp_path, change):
    path = tmp_path / "x.jpg"
    path.write_bytes(ENCODED[0])
    image = CHANGES[change](load(path))
    feature, (found,) = stored([{"image": image}], tmp_path / "out")
    assert feature == Image()
    with PIL.Image.open(io.BytesIO(found)) as judge:
        assert judge.format == "PNG"
        assert judge.mode == image.mode
        assert np.array_equal(np.asarray(judge.convert("RGBA")), np.asarray(image.convert("RGBA")))


@pytest.mark.parametrize("form", ["GIF", "WEBP", "MPO"])
def test_frames_of_a_file(tmp_path, form):
    frames = [PIL.Image.fromarray(draw(n)) for n in range(3)]
    path = tmp_path / "x"
    frames[0].save(path, form, save_all=True, append_images=frames[1:])
    image = open_picture(path)
    assert Image().to_bytes(image) == path.read_bytes()
    image.seek(1)
    second = Image().decode(Image().to_bytes(image))
    image = open_picture(path)
    image.seek(1)
    assert np.array_equal(second, np.asarray(image.convert("RGB")))
    image = drawn(load(path))  # the file is open until the last frame
    found = Image().decode(Image().to_bytes(image))
    assert np.array_equal(found, np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_modes_of_pillow(mode):
    image = PIL.Image.fromarray(draw(0)).convert(mode)
    found = Image().decode(Image().to_bytes(image))
    assert np.array_equal(found, np.asarray(image.convert("RGB")))
    with PIL.Image.open(io.BytesIO(Image(format="jpeg").to_bytes(image))) as judge:
        assert (judge.format, judge.size) == ("JPEG", image.size)
        kept = {"L": "L", "CMYK": "CMYK", "1": "L", "LA": "L"}
        assert judge.mode == kept.get(mode, "RGB")


def test_deep_images_of_pillow(tmp_path):
    pixels = draw(0, (6, 5), np.uint16)
    feature, (found,) = stored([{"image": PIL.Image.fromarray(pixels)}], tmp_path / "out")
    assert feature == Image(dtype="uint16")
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(found))), pixels)


# Pixels.


@pytest.mark.parametrize("channels", [None, 1, 3, 4])
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1)])
def test_gray_arrays_are_stored_as_gray_images(channels, shape):
    found = Image(channels=channels).encode(draw(0, shape))
    with PIL.Image.open(io.BytesIO(found)) as judge:
        assert judge.mode == "L"
        assert np.array_equal(np.asarray(judge), draw(0, shape).reshape(5, 4))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_other_arrays_have_the_channels_of_the_feature(channels):
    feature = Image(channels=channels)
    for given in (2, 3, 4):
        if given == channels:
            assert np.array_equal(
                feature.decode(feature.encode(draw(0, (5, 4, given)))), draw(0, (5, 4, given))
            )
        else:
            with pytest.raises(FeatureError, match=rf"has shape \(5, 4, {given}\)"):
                feature.encode(draw(0, (5, 4, given)))


# Inference.


DEEP = encode(draw(0, (6, 5), np.uint16), "PNG")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([ENCODED[0], ENCODED[1]], Image()),
        ([DEEP, DEEP], Image(dtype="uint16")),
        ([DEEP, ENCODED[0]], Image()),
        ([ENCODED[0], DEEP], Image()),
        ([ENCODED[0], b"text"], Tensor("bytes")),
        ([b"text", ENCODED[0]], Tensor("bytes")),
        ([ENCODED[0], b"", ENCODED[1]], Tensor("bytes")),
        ([ENCODED[0], "text"], Tensor("bytes")),
        ([ENCODED[0][:60], ENCODED[0]], Tensor("bytes")),
        ([encode(draw(0), "TIFF")], Tensor("bytes")),
        ([[ENCODED[0], ENCODED[1]]], Tensor("bytes", (2,))),
    ],
)
@pytest.mark.parametrize("as_column", [False, True])
def test_bytes_are_inferred(tmp_path, values, expected, as_column):
    examples = {"image": values} if as_column else [{"image": value} for value in values]
    feature, found = stored(examples, tmp_path / "out")
    assert feature == expected
    if expected.shape != (2,):
        assert found == [v.encode() if isinstance(v, str) else v for v in values]


def test_images_of_pillow_and_other_bytes_do_not_fit(tmp_path):
    examples = [{"image": PIL.Image.fromarray(draw(0))}, {"image": b"text"}]
    with pytest.raises(FeatureError, match="example 0 has the type image, example 1 has bytes"):
        write(examples, tmp_path / "out")
    result = write(examples, tmp_path / "out", on_error="skip")
    assert (result.records, [each.record for each in result.skipped]) == (1, [1])


def test_dicts_that_are_not_images_are_nested(tmp_path):
    write([{"file": {"bytes": b"text", "path": "a"}}], tmp_path)
    assert opened(tmp_path)[0] == {"file": {"bytes": b"text", "path": "a"}}


def test_defaults_of_inferred_images(tmp_path):
    feature, found = stored(
        [{"image": ENCODED[0]}, {"image": None}], tmp_path, defaults={"image": ENCODED[1]}
    )
    assert feature == Image(default=ENCODED[1])
    assert found == ENCODED[:2]


def test_a_format_of_hugging_face_defines_the_values(tmp_path):
    same = [{"bytes": encode(draw(n), "PNG"), "path": None} for n in range(3)]
    dataset = datasets.Dataset.from_dict({"image": same}).cast_column("image", datasets.Image())
    feature, _ = stored(dataset.with_format("numpy"), tmp_path / "out")
    assert feature == Tensor("uint8", (12, 16, 3), encoding="bytes")


# Checks.


def test_bytes_that_are_not_an_image(tmp_path, paths):
    bad = {
        3: b"text",
        5: str(tmp_path / "missing.jpg"),
        6: ENCODED[0][:100],
        7: 5,
        8: {"bytes": None, "path": None},
    }
    good = [ENCODED[0]] * 9
    for position in bad:
        examples = [{"image": bad[n] if n == position else good[n]} for n in range(9)]
        with pytest.raises(FeatureError) as caught:
            write(examples, tmp_path / "out", features={"image": Image()})
        assert (caught.value.example, caught.value.feature) == (position, "image")
    examples = [{"image": bad.get(n, good[n])} for n in range(9)]
    result = write(examples, tmp_path / "out", features={"image": Image()}, on_error="skip")
    assert [each.record for each in result.skipped] == sorted(bad)
    assert result.records == 9 - len(bad)


@pytest.mark.parametrize("form", ["TIFF", "PPM"])
def test_formats_that_pillow_identifies(tmp_path, monkeypatch, form):
    data = encode(draw(0), form)
    assert stored([{"image": data}], tmp_path / "out", features={"image": Image()})[1] == [data]
    with pytest.raises(FeatureError, match="height x width 12 x 16; must be 9 x any"):
        Image((9, None, 3)).to_bytes(data)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert Image().to_bytes(data) == data
    with pytest.raises(FeatureError, match="4 bytes that begin with b'text' are not an image"):
        Image().to_bytes(b"text")


def test_sizes_of_rotated_images():
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = encode(draw(0), exif=exif)
    assert Image((12, 16, 3)).to_bytes(data) == data
    assert Image((16, 12, 3), exif_orientation=True).to_bytes(data) == data
    for feature in (Image((16, 12, 3)), Image((12, 16, 3), exif_orientation=True)):
        with pytest.raises(FeatureError, match="height x width"):
            feature.to_bytes(data)
        with pytest.raises(FeatureError, match="height x width"):
            covey.Features({"x": feature}).encode({"x": data})


# Summary.


def test_summary_of_a_split(tmp_path, capsys):
    examples = [{"image": data, "other": data, "label": n % 2} for n, data in enumerate(ENCODED)]
    features = {"image": Image(), "other": "bytes", "label": ClassLabel(["a", "b"])}
    write(examples[:4], tmp_path / "birds", features=features)
    write(examples[4:], tmp_path / "birds", mode="append")
    expected = {
        "formats": {"bmp": 1, "gif": 1, "jpeg": 2, "png": 2, "webp": 1},
        "channels": {"1": 2, "3": 4, "4": 1},
        "bits": {"8": 7},
        "oriented": 0,
        "unknown": 0,
        "smallest": (7, 5),
        "largest": (12, 16),
    }
    (split,) = covey.info(tmp_path / "birds").splits
    assert split.images == {"image": expected}
    assert main(["info", str(tmp_path / "birds")]) == 0
    output = capsys.readouterr().out
    line = "7 images: jpeg (2), png (2), bmp (1), gif (1), webp (1); 7 x 5 to 12 x 16; 3 (4), 1 (2)"
    assert f"train: 'image' has {line}, 4 (1) channels; 8 bits" in output
    assert main(["info", "--json", str(tmp_path / "birds")]) == 0
    found = json.loads(capsys.readouterr().out)["splits"]["train"]
    assert parse_summary(found["images"]["image"]) == expected
    # `covey index` counts the images again.
    for file in (tmp_path / "birds").glob("*.index.*"):
        file.unlink()
    assert covey.info(tmp_path / "birds").splits[0].images == {}
    covey.build_index(tmp_path / "birds", progress=False)
    assert covey.info(tmp_path / "birds").splits[0].images == {"image": expected}


@pytest.mark.parametrize("compression", [None, "GZIP"])
def test_summary_of_a_held_out_split(tmp_path, compression):
    exif = PIL.Image.Exif()
    exif[0x0112] = 3
    examples = [{"image": encode(draw(n), exif=exif), "label": n % 3} for n in range(9)]
    examples[0]["image"] = encode(draw(0), "TIFF")
    hold_out = covey.HoldOut(classes=1, split="val")
    options = {"features": {"image": Image(), "label": "int64"}, "compression": compression}
    write(examples, tmp_path, label="label", hold_out=hold_out, **options)
    found = {split.name: split.images["image"] for split in covey.info(tmp_path).splits}
    for name, count in (("train", 6), ("val", 3)):
        assert found[name]["oriented"] + found[name]["unknown"] == count
        assert found[name]["smallest"] == found[name]["largest"] == (12, 16)
    assert join_images(found.values())["unknown"] == 1


def summary(**values):
    return {**join_images([]), **values}


def test_sum_of_summaries():
    parts = [
        summary(formats={"png": 1}, channels={"3": 1}, smallest=(4, 6), largest=(4, 6)),
        summary(formats={"png": 2}, bits={"16": 2}, oriented=2, smallest=(3, 8), largest=(6, 4)),
        summary(unknown=3, bits={"8": 1}),
    ]
    total = join_images(parts)
    assert total == summary(
        formats={"png": 3}, channels={"3": 1}, bits={"8": 1, "16": 2}, oriented=2, unknown=3,
        smallest=(3, 8), largest=(6, 4),
    )  # fmt: skip
    assert list(total["bits"]) == ["8", "16"]
    assert parse_summary(json.loads(json.dumps(total))) == total


@pytest.mark.parametrize("field", ["formats", "bits", "oriented", "smallest"])
@pytest.mark.parametrize("value", [-1, "x", [1], {"x": -1}, {"\x1b[": 1}, 2**70])
def test_invalid_summaries(field, value):
    content = summary(**{field: value})
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        parse_summary(content)
