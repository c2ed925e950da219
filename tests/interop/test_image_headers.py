"""Headers of encoded images; Pillow writes the images and is the judge."""

import io

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.schema.images import ImageHeader, read_header

ORIENTATION = 0x0112

# Modes of each format, and the channels and bits as they are stored.
MODES = {
    "JPEG": {"L": (1, 8), "RGB": (3, 8), "CMYK": (4, 8)},
    "PNG": {
        "1": (1, 1),
        "L": (1, 8),
        "I;16": (1, 16),
        "LA": (2, 8),
        "P": (3, 8),
        "RGB": (3, 8),
        "RGBA": (4, 8),
    },
    "GIF": {"L": (3, 8), "P": (3, 8), "RGB": (3, 8)},
    "BMP": {"1": (3, 8), "L": (3, 8), "P": (3, 8), "RGB": (3, 8), "RGBA": (3, 8)},
    "WEBP": {"RGB": (3, 8), "RGBA": (4, 8)},
}
CASES = [(form, mode) for form, modes in MODES.items() for mode in modes]

EXIF = st.one_of(st.none(), st.integers(0, 9))


def picture(mode, height, width, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 4), np.uint8)
    if mode == "I;16":
        return PIL.Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    if mode == "P":  # with all 256 colors, so that 8 bits are needed
        indices = np.resize(np.arange(256, dtype=np.uint8), (height, width))
        found = PIL.Image.fromarray(indices, "L").convert("P")
        found.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
        return found
    alpha = PIL.Image.fromarray(pixels, "RGBA")
    return alpha if mode == "RGBA" else alpha.convert("RGB").convert(mode)


def encode(form, mode, height, width, *, orientation=None, endian="<", **options):
    if orientation is not None:
        exif = PIL.Image.Exif()
        exif.endian = endian
        exif[0x010F] = "maker"
        exif[ORIENTATION] = orientation
        options["exif"] = exif
    out = io.BytesIO()
    picture(mode, height, width).save(out, form, **options)
    return out.getvalue()


@settings(max_examples=120, deadline=None)
@given(
    case=st.sampled_from(CASES),
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    orientation=EXIF,
    endian=st.sampled_from("<>"),
    progressive=st.booleans(),
)
def test_headers_equal_those_of_pillow(case, height, width, orientation, endian, progressive):
    form, mode = case
    options = {"progressive": progressive} if form == "JPEG" else {}
    if form == "WEBP":
        options["lossless"] = progressive
    data = encode(form, mode, height, width, orientation=orientation, endian=endian, **options)
    found = read_header(data)
    with PIL.Image.open(io.BytesIO(data)) as judge:
        assert (found.height, found.width) == (judge.height, judge.width) == (height, width)
        assert found.format.upper() == judge.format
        expected = judge.getexif().get(ORIENTATION, 1)
    channels, bits = MODES[form][mode]
    if mode == "P" and form == "PNG" and height * width < 256:
        bits = found.bits  # Pillow writes fewer bits for fewer colors
    assert (found.channels, found.bits) == (channels, bits)
    assert found.orientation == (expected if 1 <= expected <= 8 else 1)


@pytest.mark.parametrize(("form", "mode"), CASES)
def test_bytes_after_the_image_and_other_types(form, mode):
    data = encode(form, mode, 3, 5)
    header = read_header(data)
    assert isinstance(header, ImageHeader)
    array = np.frombuffer(data, np.uint8)
    for each in (data + b"\0" * 9, bytearray(data), memoryview(data), array):
        assert read_header(each) == header
    for orientation in range(1, 9):
        turned = header._replace(orientation=orientation)
        assert turned.size(oriented=False) == (3, 5)
        assert turned.size(oriented=True) == ((5, 3) if orientation >= 5 else (3, 5))


@settings(max_examples=100, deadline=None)
@given(case=st.sampled_from(CASES), orientation=EXIF, cut=st.floats(0, 1))
def test_cut_images_have_the_header_or_none(case, orientation, cut):
    form, mode = case
    data = encode(form, mode, 9, 17, orientation=orientation)
    whole = read_header(data)
    found = read_header(data[: int(cut * len(data))])
    # The orientation of PNG and WebP may follow the pixels.
    assert found is None or found._replace(orientation=whole.orientation) == whole
    assert found is None or found.orientation in (1, whole.orientation)


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from(CASES),
    orientation=EXIF,
    changes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=8),
)
def test_changed_headers_are_valid_or_none(case, orientation, changes):
    form, mode = case
    data = bytearray(encode(form, mode, 9, 17, orientation=orientation))
    for at, byte in changes:
        data[at % len(data)] = byte
    found = read_header(data)
    if found is not None:
        assert min(found.height, found.width, found.bits) >= 1
        assert 1 <= found.channels <= 4
        assert 1 <= found.orientation <= 8


def test_other_formats():
    for form in ("TIFF", "PPM", "ICO"):
        out = io.BytesIO()
        picture("RGB", 16, 16).save(out, form)
        assert read_header(out.getvalue()) is None
    with pytest.raises((TypeError, BufferError)):
        read_header("text")
