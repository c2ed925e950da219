"""Image directories and image tables."""

import io
import os

import numpy as np
import pytest
from PIL import Image as Pillow

from covey import ClassLabel, Image, Tensor, errors
from covey.sources import open_source
from covey.sources.images import image_fault, image_format

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


def errors_of(source):
    return [item for item in source.examples if isinstance(item, SourceError)]


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
def test_complete_and_truncated_images(format, options):
    data = encoded(format, **options)
    assert image_format(data[:32]) == format
    assert image_fault(data) is None
    assert image_fault(data + b"\0" * 7) is None
    for size in {40, len(data) // 2, len(data) - 1}:
        assert image_fault(data[:size]) == f"truncated {format} of {size} bytes"


def test_thumbnail_does_not_end_a_jpeg():
    data = encoded("JPEG", exif=b"Exif\0\0" + encoded("JPEG", 1))
    assert image_fault(data) is None
    assert "truncated" in image_fault(data[: len(data) - 100])


def test_animated_gif_with_palettes():
    frames = [Pillow.new("P", (9, 9), i) for i in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], loop=0)
    assert image_fault(out.getvalue()) is None


@pytest.mark.parametrize("data", [b"II*\0 and more", b"<html>", b"BMW sales of the year"])
def test_unsupported_formats(data):
    assert image_fault(data) == (
        f"it begins with {data[:8]!r}; supported formats: JPEG, PNG, GIF, BMP, WebP"
    )


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


def test_other_files_are_ignored(put):
    for name in (".hidden/a.png", "owl/.a.png", "owl/Thumbs.db", "owl/notes.txt"):
        put(name, b"BM and nothing more")
    put("owl/image_without_extension")
    root = put("owl/a.png")
    assert keys(open_source(root)) == ["owl/a.png", "owl/image_without_extension"]


def test_symbolic_link_cycles(put, tmp_path):
    root = put("owl/a.png")
    os.symlink(root / "owl", root / "twin")
    os.symlink(root, root / "owl" / "up")
    assert keys(open_source(root)) == ["owl/a.png", "twin/a.png"]


def test_invalid_images(put):
    put("owl/a.png", encoded()[:50])
    put("owl/b.jpg", b"")
    put("owl/c.png", b"no image")
    put("owl/e.png")
    root = put("stray.png")
    source = open_source(root)
    assert source.length == 5
    assert keys(source) == ["owl/e.png"]
    assert {os.path.relpath(error.path, root): error.reason for error in errors_of(source)} == {
        "owl/a.png": "not a valid image: truncated PNG of 50 bytes",
        "owl/b.jpg": "not a valid image: it is empty",
        "owl/c.png": f"not a valid image: {image_fault(b'no image')}",
        "stray.png": "the image is not in a class directory",
    }


def test_deleted_image(put):
    root = put("owl/a.png")
    source = open_source(root)
    (root / "owl/a.png").unlink()
    assert [error.path for error in errors_of(source)] == [f"{root}/owl/a.png"]


def test_file_name_that_is_not_utf8(put):
    root = put("owl/a.png")
    os.rename(root / "owl/a.png", os.fsencode(root) + b"/owl/\xff.png")
    (error,) = errors_of(open_source(root))
    assert str(error).endswith("\\udcff.png: the file name is not valid UTF-8")


def test_split_directories(put):
    put("train/owl/a.png")
    put("train/wren/a.png")
    root = put("val/wren/b.png")
    source = open_source(root, split="validation")
    assert keys(source) == ["wren/b.png"]
    assert source.features["label"].names == ("owl", "wren")  # the same number in every split
    assert source.path == f"{root}/val"
    for split in (None, "test"):
        with pytest.raises(SourceError, match="must be one of 'train', 'val'") as caught:
            open_source(root, split=split)
        assert (caught.value.option, caught.value.found) == ("split", split)


def test_class_with_the_name_of_a_split(put):
    put("vehicles/bus/a.png")
    root = put("vehicles/train/a.png")
    assert open_source(root / "vehicles").features["label"].names == ("bus", "train")
    assert open_source(root).features["label"].names == ("vehicles/bus", "vehicles/train")


def test_images_without_classes(put):
    with pytest.raises(SourceError, match="found 1 image without class directories"):
        open_source(put("a.png"))


def test_reserved_label(put):
    with pytest.raises(SourceError, match="label is 'image'; must be a name other than 'image'"):
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


def test_errors_of_rows(put):
    put("a.png")
    put("cut.png", encoded()[:60])
    rows = ["file,label", "a.png,owl", "gone.png,owl", "cut.png,wren", "a.png", "a.png,", ",owl"]
    root = put("list.csv", "\n".join(rows))
    source = open_source(root)
    assert source.length == 6
    assert [(error.path, error.line, error.reason) for error in errors_of(source)] == [
        (f"{root}/list.csv", 3, f"{root}/gone.png: no such file"),
        (f"{root}/list.csv", 4, f"{root}/cut.png: not a valid image: truncated PNG of 60 bytes"),
        (f"{root}/list.csv", 5, "the row has 1 cells; the header has 2"),
        (f"{root}/list.csv", 6, "the label is empty"),
        (f"{root}/list.csv", 7, "the row has no path of an image"),
    ]


def test_two_tables_of_images(put):
    put("a.png")
    put("one.csv", "file,label\na.png,owl\n")
    root = put("two.csv", "file,label\na.png,wren\n")
    with pytest.raises(
        SourceError, match=r"several tables list images: 'one.csv', 'two.csv'; open"
    ):
        open_source(root)
    assert open_source(root / "two.csv").examples[0][1]["label"] == "wren"


def test_other_column_called_image(put):
    put("a.png")
    root = put("list.csv", "file,image\na.png,owl\n")
    with pytest.raises(
        SourceError, match=r"list.csv:1: another column has the reserved name 'image'"
    ):
        open_source(root)
