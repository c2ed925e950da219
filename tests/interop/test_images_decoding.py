"""Decoded images have the pixels of Pillow and TensorFlow, with every decoder.

docs/batches.md defines the results.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.features
import PIL.Image
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import (
    DECODERS,
    as_12_bits,
    claim,
    decoding_with,
    draw,
    encode,
    exif_orientation,
    jpegs,
    others,
    pillow,
    png,
    pngs,
)

from covey.errors import ExampleError, FeatureError
from covey.schema import Features, Image, StringArray
from covey.schema.diagnostics import RecordLocation
from covey.schema.pixels import decode_images, read_pixels

VARIANTS = {"jpeg": jpegs, "png": pngs, "others": others}
CHANNELS = (1, 3, 4, None)


@pytest.fixture(params=DECODERS)
def decoder(request):
    with decoding_with(request.param):
        yield request.param


@pytest.fixture
def native():
    with decoding_with("native"):
        yield


def locate(row):
    return RecordLocation("birds.tfrecord", row, 100 * row)


def decode(encoded, feature=None, **options):
    features = Features({"image": feature or Image()})
    return decode_images(features, {"image": StringArray.of(encoded)}, locate, **options)["image"]


def failure(encoded, feature=None, **options):
    """Return the error of the last of several images."""
    with pytest.raises(ExampleError) as raised:
        decode(encoded, feature, **options)
    error, last = raised.value, len(encoded) - 1
    found = (error.path, error.record, error.offset, error.feature)
    assert found == ("birds.tfrecord", last, 100 * last, "image")
    return error


# Pixels.


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_pixels_equal_those_of_pillow(kind, channels, decoder):
    assert PIL.features.check_feature("libjpeg_turbo")
    variants = VARIANTS[kind]()
    wrong = []
    for name, data in variants.items():
        (found,) = decode([data], Image(channels=channels))
        expected = pillow(data, channels)
        if found.dtype != np.uint8 or found.shape != expected.shape or (found != expected).any():
            wrong.append(name)
    assert wrong == []
    assert len(variants) == {"jpeg": 80, "png": 124, "others": 14}[kind]


@settings(max_examples=50)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    quality=st.integers(1, 100),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
    noise=st.integers(0, 2**32 - 1),
)
def test_noise(native, height, width, quality, subsampling, progressive, noise):
    pixels = np.random.default_rng(noise).integers(0, 256, (height, width, 3), np.uint8)
    data = encode(pixels, quality=quality, subsampling=subsampling, progressive=progressive)
    assert (decode([data]) == pillow(data)).all()


SHALLOW = tuple(f"{color} {bits} " for color in ("gray", "palette") for bits in (1, 2, 4))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tensorflow_decodes_the_same(channels, native):
    for data in (encode(draw((40, 50, channels), n)) for n in range(3) if channels != 4):
        theirs = tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE").numpy()
        assert (decode([data], Image(channels=channels))[0] == theirs).all()
    for name, data in pngs().items() if channels != 1 else ():
        # TensorFlow applies tRNS to RGB, and opaque alpha of less than 8 bits is less than 255.
        if "tRNS" not in name and not (channels == 4 and name.startswith(SHALLOW)):
            theirs = tf.io.decode_png(data, channels=channels).numpy()
            assert (decode([data], Image(channels=channels))[0] == theirs).all(), name


def test_pillow_is_required_by_other_formats_only(monkeypatch):
    encoded = {**jpegs(), **pngs()}
    small, features = encode(draw((9, 8, 3))), [Image(channels=c) for c in (1, 3, 4)]
    monkeypatch.setitem(sys.modules, "PIL", None)

    def check_pillow_is_missing(data, feature):
        with pytest.raises(FeatureError, match=r"Pillow.*covey\[images\]") as raised:
            decode([data], feature)
        assert (raised.value.feature, raised.value.record) == ("image", None)

    with decoding_with("native"):
        for (name, data), feature in ((each, f) for each in encoded.items() for f in features):
            if feature.channels == 4 and name in ("color tRNS", "gray tRNS"):
                check_pillow_is_missing(data, feature)
            else:
                assert decode([data], feature).shape[3] == feature.channels
        for data in (small[:30], encoded["exif"][:20]):
            assert "not a valid image" in failure([data]).reason
    with decoding_with("Pillow"):
        check_pillow_is_missing(small, Image())


# 16 bits.


@pytest.mark.parametrize("stored", [1, 2, 3, 4])
def test_16_bits_equal_those_of_tensorflow(stored, native):
    pixels = draw((33, 17, stored), stored, np.uint16)
    data = png(pixels, bits=16)
    for channels in (3, 4):
        theirs = tf.io.decode_png(data, channels=channels, dtype=tf.uint16).numpy()
        (found,) = decode([data], Image(channels=channels, dtype="uint16"))
        assert found.dtype == np.uint16
        assert (found == theirs).all()
    if stored != 2:
        data = png(pixels, bits=16, interlaced=True, exif=exif_orientation(6))
        feature = Image(channels=None, dtype="uint16", exif_orientation=True)
        assert (decode([data], feature)[0] == np.rot90(pixels, -1)).all()


def test_grayscale_of_16_bits(decoder):
    gray = draw((33, 17, 1), 1, np.uint16)
    for data in (png(gray, bits=16), encode(gray, "tiff")):
        for channels in (1, 3, 4):
            (found,) = decode([data], Image(channels=channels, dtype="uint16"))
            assert (found[:, :, :3] == gray).all()
            assert (found[:, :, 3:] == 2**16 - 1).all()
        assert (decode([data])[0] == (gray >> 8).repeat(3, 2)).all()


def test_several_channels_of_16_bits_require_libpng():
    feature = Image(dtype="uint16")
    for stored in (2, 3, 4):
        data = png(draw((8, 9, stored), dtype=np.uint16), bits=16)
        with decoding_with("Pillow"):
            error = failure([data], feature)
        assert "16 bits in several channels" in error.reason
        assert "libpng" in error.remedy
    transparent = png(draw((8, 9, 3), dtype=np.uint16), bits=16, transparency=bytes(6))
    assert "16 bits" in failure([transparent], Image(channels=4, dtype="uint16")).reason


def test_8_bits_in_a_feature_of_16(decoder):
    for data in (encode(draw((40, 30, 3)), "png"), encode(draw((40, 30, 1)))):
        found = decode([data, data], Image(dtype="uint16"))
        assert found.dtype == np.uint16
        assert (found == pillow(data)).all()


def test_12_bits_are_rejected(decoder):
    data = as_12_bits(encode(draw((40, 30, 3))))
    assert failure([data]).reason == "the JPEG image has 12 bits per channel; must be 8"
    with pytest.raises(FeatureError, match="12 bits"):
        read_pixels(Image(), data, (8, 8))


# EXIF.


def with_orientation(format, orientation):
    """Return an image of 20 x 30 pixels with an EXIF orientation."""
    pixels, exif = draw((20, 30, 3)), exif_orientation(orientation)
    if format == "png":
        return png(pixels, exif=exif)
    if format == "late png":  # the metadata follows the pixels
        plain, chunk = png(pixels), png(pixels, exif=exif)
        at = chunk.index(b"eXIf") - 4
        return plain[:-12] + chunk[at : at + 12 + len(exif)] + plain[-12:]
    if format == "tiff":
        return encode(pixels, "tiff", tiffinfo={0x0112: orientation})
    return encode(pixels, format, exif=b"Exif\0\0" + exif)


@pytest.mark.parametrize("format", ["jpeg", "png", "late png", "webp"])
def test_exif_orientation(format, decoder):
    for orientation in range(10):  # 0 and 9 are not valid
        data = with_orientation(format, orientation)
        assert (decode([data]) == pillow(data)).all()
        for channels in (1, 3, 4):
            found = decode([data], Image(channels=channels, exif_orientation=True))
            assert (found == pillow(data, channels, oriented=True)).all()
        size = (30, 20) if 5 <= orientation <= 8 else (20, 30)
        assert found.shape[1:3] == size
        assert decode([data], Image((*size, 3), exif_orientation=True)).shape[1:3] == size


def test_exif_orientation_of_tiff_is_applied_always(decoder):
    for orientation in range(1, 9):
        data = with_orientation("tiff", orientation)
        for feature in (Image(), Image(exif_orientation=True)):
            assert (decode([data], feature) == pillow(data, oriented=True)).all()


# Columns.


def test_images_of_one_size_are_an_array(decoder):
    encoded = [encode(draw((9, 8, 3), n), "jpeg" if n % 2 else "png") for n in range(4)]
    found = decode(encoded)
    assert isinstance(found, np.ndarray)
    assert found.flags.writeable
    assert (found == [pillow(each) for each in encoded]).all()
    gray, other = encode(draw((9, 8, 1)), "png"), encode(draw((7, 8, 3)), "png")
    found = decode([*encoded, gray, other], Image(channels=None))
    assert [each.shape for each in found] == [(9, 8, 3)] * 4 + [(9, 8, 1), (7, 8, 3)]
    assert all(each.flags.writeable for each in found)
    assert (found[0] == Image().decode(encoded[0])).all()


def test_shape_of_the_feature_is_checked(decoder):
    for kind in ("png", "jpeg", "webp"):
        data = encode(draw((9, 8, 3)), kind)
        assert decode([data], Image((9, None, 3))).shape == (1, 9, 8, 3)
        error = failure([data], Image((5, 6, 3)))
        assert "has shape (9, 8, 3), expected (5, 6, 3)" in error.reason
    error = failure([encode(draw((8, 8, 1)), "png")], Image((40000, 50000, 1)))  # not allocated
    assert "has shape (8, 8, 1), expected (40000, 50000, 1)" in error.reason


def test_other_columns_and_the_input_are_unchanged():
    features = Features({"a": {"b": Image(), "c": "int64"}, "d": "bytes", "e": Image((4, 5, 3))})
    data = StringArray.of([encode(draw((4, 5, 3)))])
    columns = {"a": {"b": data, "c": np.ones(1, np.int64)}, "d": data, "e": data}
    found = decode_images(features, columns, locate)
    assert found["a"]["b"].shape == found["e"].shape == (1, 4, 5, 3)
    assert found["a"]["c"] is columns["a"]["c"]
    assert columns["a"]["b"] is columns["e"] is found["d"] is data
    assert decode([]).shape == (0, 0, 0, 3)


def test_concurrent_decoding(decoder):
    encoded = [encode(draw((60, 80, 3), n), "jpeg" if n % 3 else "png") for n in range(24)]
    expected = decode(encoded)
    with ThreadPoolExecutor(4) as pool:
        same = pool.map(lambda _: (decode(encoded) == expected).all(), range(8))
        assert list(same) == [True] * 8


# Corrupt images.


@pytest.mark.parametrize("format", ["jpeg", "png", "gif", "bmp", "webp"])
def test_trailing_bytes_are_ignored(format, decoder):
    data = encode(draw((40, 50, 3)), format)
    assert (decode([data + bytes(range(256)) * 9]) == pillow(data)).all()


FORMS = {
    "jpeg": ("jpeg", {}),
    "progressive": ("jpeg", {"progressive": True}),
    "restarts": ("jpeg", {"restart_marker_blocks": 1}),
    "png": ("png", {}),
    "webp": ("webp", {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_truncated_images(form, decoder):
    kind, options = FORMS[form]
    data = encode(draw((40, 50, 3)), kind, **options)
    for size in [*range(0, 64, 7), *range(64, len(data) - 30, 61)]:
        error = failure([data, data, data[:size]])
        assert str(error).startswith("birds.tfrecord: record 2 at byte 200: feature 'image': the ")


def outcome(data):
    """Return the pixels, or None if they cannot be decoded."""
    try:
        return decode([data])[0].tolist()
    except ExampleError:
        return None


def change_bytes(complete, count):
    """Return images, two bytes of which are random."""
    rng = np.random.default_rng(0)
    for number in range(count):
        data = bytearray(complete[number % len(complete)])
        for at in rng.integers(0, len(data), 2):
            data[at] = rng.integers(256)
        yield bytes(data)


def test_decoders_reject_the_same_jpegs():
    complete = [data for name, data in jpegs([(16, 20)]).items() if "exif" not in name]
    corrupt = list(change_bytes(complete, 480))
    with decoding_with("Pillow"):
        expected = [outcome(data) for data in corrupt]
    with decoding_with("native"):
        assert [outcome(data) for data in corrupt] == expected
    assert 60 < sum(each is None for each in expected) < 420


def test_jpegs_with_parts_of_other_images(decoder):
    data, large = encode(draw((16, 20, 3))), encode(draw((40, 50, 3)))
    at = data.index(b"\xff\xdb")  # quantization tables
    tables = int.from_bytes(data[at + 2 : at + 4], "big") + 2
    failure([data, data[:at] + data[at + tables :]])
    frame = large[large.index(b"\xff\xc0") :][:19]
    at = data.index(b"\xff\xc0")
    assert "bytes are not a valid image" in failure([data[:at] + frame + data[at:]]).reason


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"not an image"])
def test_bytes_that_are_not_an_image(data, decoder):
    error = failure([data])
    begin = f" that begin with {data[:8]!r}" if data else ""
    assert f"the {len(data)} bytes{begin} are not an image" in error.reason
    assert error.reason.endswith("PNG, JPEG, GIF, BMP, WEBP, TIFF, PPM")


def test_max_pixels(decoder, monkeypatch):
    for kind in ("jpeg", "png", "webp"):
        data = encode(draw((20, 30, 3)), kind)
        assert decode([data], max_pixels=600).shape == (1, 20, 30, 3)
        error = failure([data], max_pixels=599)
        assert (error.option, error.found) == ("max_pixels", 599)
    monkeypatch.setattr(PIL.Image, "open", None)
    for kind in ("jpeg", "png"):
        error = failure([claim(encode(draw((8, 8, 3)), kind), 65000, 65000)])
        assert "65000 x 65000 = 4,225,000,000 pixels" in error.reason


def test_long_sides(decoder):
    """The judge of the largest side that is decoded is Pillow."""
    for height, width in ((1, 2**16), (2**16, 1)):
        data = encode(draw((height, width, 1)), "png")
        assert (decode([data], Image(channels=1))[0] == pillow(data, 1)).all()
    for height, width in ((1, 2**16 + 1), (70_000, 1)):
        data = encode(draw((height, width, 1)), "png")
        for feature in (Image(), Image((height, width, 3))):
            error = failure([data], feature)
            assert f"{height:,} x {width:,} pixels; sides must be from 1 to 65,536" in error.reason
        assert read_pixels(Image(), data, (8, 8)).shape == (8, 8, 3)


def with_scans(height, width, count):
    """Return a progressive JPEG of gray pixels whose last scan is repeated."""
    data = encode(np.full((height, width, 1), 99, np.uint8), progressive=True)
    last, known = data.rindex(b"\xff\xda"), data.count(b"\xff\xda")
    return data[:last] + data[last:-2] * (count - known + 1) + data[-2:]


@pytest.mark.parametrize(
    ("height", "width", "allowed", "of_128_million"),
    [(64, 64, 500, 500), (2000, 1200, 426, 500), (7000, 7000, 20, 41)],
)
def test_scans_of_a_jpeg_are_limited(height, width, allowed, of_128_million, decoder):
    """16 scans of 64 million pixels; the third image is as large as an ordinary photo."""
    (found,) = decode([with_scans(height, width, 10)], Image(channels=1))
    assert (found == 99).all()
    data = with_scans(height, width, allowed + 1)
    reason = f"{height} x {width} pixels has {allowed + 1} scans; must have at most {allowed},"
    assert reason in failure([data]).reason
    data = with_scans(height, width, 501)
    assert f"at most {of_128_million}," in failure([data], max_pixels=128_000_000).reason


def test_markers_that_are_not_scans(decoder):
    """Markers in metadata, such as thumbnails, and after the image are not counted."""
    data = with_scans(64, 64, 400)
    metadata = b"\xff\xe1" + (2 + 800).to_bytes(2, "big") + b"\xff\xda\0\2" * 200
    assert (decode([data[:2] + metadata + data[2:] + data]) == 99).all()


def test_header_with_a_wrong_size(decoder):
    for kind in ("png", "jpeg"):
        wrong = claim(encode(draw((8, 8, 3)), kind), 600, 800)
        assert "has shape (600, 800, 3)" in failure([wrong], Image((8, 8, 3))).reason
        if kind == "png":
            assert "bytes are not a valid image" in failure([wrong]).reason
        else:
            assert (decode([wrong]) == pillow(wrong)).all()  # missing pixels are gray
