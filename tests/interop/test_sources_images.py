"""Directories of images, with class directories or a table of labels."""

import io
import os

import numpy as np
import pytest
from PIL import Image as Pillow

from covey import ClassLabel, Image, Tensor, errors
from covey.sources import open_source
from covey.sources.image_formats import image_fault, image_format

SourceError = errors.SourceError


def encoded(format="PNG", number=0, **options):
    pixels = np.random.default_rng(number).integers(0, 255, (40, 30, 3), np.uint8)
    out = io.BytesIO()
    Pillow.fromarray(pixels).save(out, format, **options)
    return out.getvalue()


@pytest.fixture
def put(tmp_path):
    def put(name, content=None):
        path = tmp_path / "birds" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = encoded() if content is None else content
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return tmp_path / "birds"

    return put


def faults(source):
    return [str(item) for item in source.examples if isinstance(item, SourceError)]


def keys(source):
    return [item[0] for item in source.examples if not isinstance(item, SourceError)]


# Formats.

FORMATS = [
    ("JPEG", {}),
    ("JPEG", {"progressive": True}),
    ("PNG", {}),
    ("GIF", {}),
    ("BMP", {}),
    ("WebP", {}),
]


@pytest.mark.parametrize(("format", "options"), FORMATS)
def test_whole_and_cut_off_images(format, options):
    data = encoded(format, **options)
    assert image_format(data[:32]) == format
    assert image_fault(data) is None
    assert image_fault(data + b"\0" * 7) is None
    for size in {40, len(data) // 2, len(data) - 1}:
        assert image_fault(data[:size]) == f"it is a {format} that is cut off after {size} bytes"


def test_thumbnail_does_not_end_a_jpeg():
    data = encoded("JPEG", exif=b"Exif\0\0" + encoded("JPEG", 1))
    assert image_fault(data) is None
    assert "cut off" in image_fault(data[: len(data) - 100])


def test_animated_gif_with_palettes():
    frames = [Pillow.new("P", (9, 9), i) for i in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], loop=0)
    assert image_fault(out.getvalue()) is None


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "it is empty"),
        (b"II*\0 and more", "it is a TIFF, which is none of the images"),
        (b"<html>", "it begins with b'<html>', which is none of .*: JPEG, PNG, GIF, BMP, WebP"),
        (b"BMW sales of the year", "it begins with b'BMW sale'"),
    ],
)
def test_no_image(data, what):
    with pytest.raises(ValueError, match=what):
        raise ValueError(image_fault(data))


# One directory per class.


def test_class_directories(put):
    jpeg = encoded("JPEG")
    put("wren/a.png")
    root = put("owl/b.jpg", jpeg)
    source = open_source(root)
    assert source.features == {
        "image": Image(),
        "label": ClassLabel(names=("owl", "wren")),
        "filename": Tensor("str"),
    }
    assert source.examples[0] == (
        "owl/b.jpg",
        {"image": jpeg, "label": "owl", "filename": "owl/b.jpg"},
    )
    assert keys(source) == ["owl/b.jpg", "wren/a.png"]


def test_nested_directories_are_classes_by_their_path(put):
    put("latin/a/1.png")
    put("greek/a/1.png")
    root = put("greek/b/1.png")
    source = open_source(root, label="glyph")
    assert source.features["glyph"].names == ("greek/a", "greek/b", "latin/a")
    assert [example["glyph"] for _, example in source.examples] == ["greek/a", "greek/b", "latin/a"]


def test_what_is_no_image_is_left_out(put):
    for name in (".hidden/a.png", "owl/.a.png", "owl/Thumbs.db", "owl/notes.txt"):
        put(name, b"BM and nothing more")
    put("owl/image_without_extension")
    root = put("owl/a.png")
    assert keys(open_source(root)) == ["owl/a.png", "owl/image_without_extension"]


def test_links_are_followed_but_not_in_circles(put, tmp_path):
    root = put("owl/a.png")
    os.symlink(root / "owl", root / "twin")
    os.symlink(root, root / "owl" / "up")
    assert keys(open_source(root)) == ["owl/a.png", "twin/a.png"]


def test_bad_images_are_named(put):
    put("owl/a.png", encoded()[:50])
    put("owl/b.jpg", b"")
    put("owl/c.png", b"no image")
    put("owl/e.png")
    root = put("stray.png")
    source = open_source(root)
    assert source.length == 5
    assert keys(source) == ["owl/e.png"]
    assert faults(source) == [
        f"{root}/owl/a.png: this is not an image that can be read: "
        "it is a PNG that is cut off after 50 bytes",
        f"{root}/owl/b.jpg: this is not an image that can be read: it is empty",
        f"{root}/owl/c.png: this is not an image that can be read: it begins with b'no image', which "
        "is none of the images that are known: JPEG, PNG, GIF, BMP, WebP",
        f"{root}/stray.png: this image is in no class directory, so it has no label",
    ]
    assert source.examples[0].name == f"{root}/owl/a.png"


def test_image_that_is_gone(put):
    root = put("owl/a.png")
    source = open_source(root)
    (root / "owl/a.png").unlink()
    assert faults(source) == [f"{root}/owl/a.png: the image cannot be read: there is no such file"]


def test_name_that_is_no_utf8(put):
    root = put("owl/a.png")
    os.rename(root / "owl/a.png", os.fsencode(root) + b"/owl/\xff.png")
    (error,) = faults(open_source(root))
    assert error.endswith("\\udcff.png: the name of this file is not a valid UTF-8; rename it")


def test_split_directories(put):
    put("train/owl/a.png")
    put("train/wren/a.png")
    root = put("val/wren/b.png")
    source = open_source(root, split="validation")
    assert keys(source) == ["wren/b.png"]
    assert source.features["label"].names == ("owl", "wren")  # the same number in every split
    assert source.path == f"{root}/val"
    message = "holds the splits 'train', 'val', and {} asked for; pass split= with one of them"
    with pytest.raises(SourceError, match=message.format("none was")):
        open_source(root)
    with pytest.raises(SourceError, match=message.format("'test' was")):
        open_source(root, split="test")


def test_class_that_is_called_like_a_split(put):
    put("train/a.png")
    assert open_source(put("test/a.png"), split="train").features["label"].names == (
        "test",
        "train",
    )


def test_images_without_classes(put):
    with pytest.raises(SourceError, match=r"there are 1 images here \('a.png'\) but no class"):
        open_source(put("a.png"))


def test_label_cannot_be_called_like_the_image(put):
    with pytest.raises(SourceError, match="the label cannot be called 'image'"):
        open_source(put("owl/a.png"), label="image")


# A table of labels.


def test_table_of_images(put):
    image = encoded("JPEG")
    put("a.jpg", image)
    put("b.png")
    root = put("list.tsv", "weight\timage\tclass\n7\ta.jpg\towl\n\tb.png\twren\n")
    source = open_source(root)
    assert (source.kind, source.label, source.length) == ("image table", "class", 2)
    assert source.features == {
        "image": Image(),
        "filename": Tensor("str"),
        "weight": Tensor("float32"),
        "class": ClassLabel(names=("owl", "wren")),
    }
    assert source.examples[0] == (
        "a.jpg",
        {"image": image, "filename": "a.jpg", "weight": 7.0, "class": "owl"},
    )
    assert next(iter(open_source(root / "list.tsv").examples)) == source.examples[0]


def test_table_beside_the_directory_of_images(put):
    put("images/007.png")
    root = put("train.csv", "id,file\n3,007.png\n")
    source = open_source(root)
    assert source.label == "id"  # the only other column
    assert source.examples[0][1].keys() == {"image", "file", "id"}
    assert source.examples[0][0] == "007.png"


def test_table_with_an_image_twice(put):
    put("a.png")
    root = put("list.csv", "file,label,x\na.png,owl,1\n\na.png,owl,2\n")
    assert keys(open_source(root)) == ["a.png:2", "a.png:4"]


def test_bad_rows_of_a_table_of_images(put):
    put("a.png")
    put("cut.png", encoded()[:60])
    rows = ["file,label", "a.png,owl", "gone.png,owl", "cut.png,wren", "a.png", "a.png,", ",owl"]
    root = put("list.csv", "\n".join(rows))
    source = open_source(root)
    assert source.length == 6
    assert [error.removeprefix(f"{root}/list.csv") for error in faults(source)] == [
        f":3: there is no file '{root}/gone.png', which this row names",
        f":4: {root}/cut.png: this is not an image that can be read: "
        "it is a PNG that is cut off after 60 bytes",
        ":5: this row has 1 cells, the header has 2; quote a cell that holds the delimiter",
        ":6: the label is missing: 'label' is empty",
        ":7: this row names no image",
    ]
    assert source.examples[1].line == 3


def test_two_tables_of_images(put):
    put("a.png")
    put("one.csv", "file,label\na.png,owl\n")
    root = put("two.csv", "file,label\na.png,wren\n")
    with pytest.raises(
        SourceError, match=r"several tables list images: 'one.csv', 'two.csv'; give"
    ):
        open_source(root)
    assert open_source(root / "two.csv").examples[0][1]["label"] == "wren"


def test_other_column_called_image(put):
    put("a.png")
    root = put("list.csv", "file,image\na.png,owl\n")
    with pytest.raises(SourceError, match=r"list.csv:1: a column .* is called 'image'; rename it"):
        open_source(root)
