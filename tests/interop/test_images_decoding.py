"""Decoded images have the pixels of Pillow and TensorFlow, with every decoder."""

import contextlib
import io
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.features
import PIL.Image
import pytest
import simplejpeg
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ExampleError, FeatureError
from covey.schema import Features, Image, StringArray
from covey.schema.diagnostics import RecordLocation
from covey.schema.pixels import decode_images, find_simplejpeg

BILINEAR = PIL.Image.Resampling.BILINEAR
JPEGS = {
    "baseline": {},
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "progressive": {"progressive": True},
    "optimized": {"optimize": True},
    "restarting": {"restart_marker_blocks": 1},
    "rgb": {"keep_rgb": True},
    "turned": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
}


@contextlib.contextmanager
def decoding_with(decoder):
    """Decode JPEG with Pillow, as if simplejpeg were not installed, or with simplejpeg."""
    with pytest.MonkeyPatch.context() as patch:
        if decoder == "Pillow":
            patch.setitem(sys.modules, "simplejpeg", None)
        find_simplejpeg.cache_clear()
        yield
    find_simplejpeg.cache_clear()


@pytest.fixture(params=["Pillow", "simplejpeg"])
def decoder(request):
    with decoding_with(request.param):
        yield request.param


@pytest.fixture
def buffers(monkeypatch):
    """The buffers that simplejpeg was called with."""
    passed = []

    def decode_jpeg(*args, **options):
        passed.append(options["buffer"])
        return original(*args, **options)

    original = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", decode_jpeg)
    return passed


def locate(row):
    return RecordLocation("birds.tfrecord", row, 100 * row)


def draw(shape, seed=0, dtype=np.uint8):
    """Waves and some noise, of which all channels differ."""
    height, width, channels = shape
    y, x, c = np.mgrid[:height, :width, :channels]
    noise = np.random.default_rng(seed).uniform(-0.2, 0.2, shape)
    waves = np.sin(x / 5 + c) + np.cos(y / 7 + seed) + noise
    return ((waves + 3) / 6 * np.iinfo(dtype).max).astype(dtype)


def encode(pixels, format="jpeg", mode=None, **options):
    image = PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    out = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(out, format, **options)
    return out.getvalue()


def pillow(data, mode=None, size=None):
    """The pixels that Pillow decodes."""
    with PIL.Image.open(io.BytesIO(data)) as image:
        image = image if mode is None else image.convert(mode)
        found = np.asarray(image if size is None else image.resize(size[::-1], BILINEAR))
    return found if found.ndim == 3 else found[:, :, np.newaxis]


def decode(encoded, feature=None, **options):
    features = Features({"image": feature or Image(channels=None)})
    return decode_images(features, {"image": StringArray.of(encoded)}, locate, **options)["image"]


def failure(encoded, feature=None, **options):
    with pytest.raises(ExampleError) as raised:
        decode(encoded, feature, **options)
    return raised.value


def check_location(error, record):
    found = (error.path, error.record, error.offset, error.feature)
    assert found == ("birds.tfrecord", record, 100 * record, "image")


# Decoders.


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("form", JPEGS)
def test_jpeg_pixels_equal_those_of_pillow(form, channels, decoder):
    for height, width in ((1, 1), (7, 5), (33, 17), (48, 64)):
        data = encode(draw((height, width, channels)), **JPEGS[form])
        (found,) = decode([data])
        assert found.dtype == np.uint8
        assert (found == pillow(data)).all()


@settings(max_examples=50)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    quality=st.integers(1, 100),
    subsampling=st.integers(0, 2),
    progressive=st.booleans(),
    noise=st.integers(0, 2**32 - 1),
)
def test_simplejpeg_and_pillow_agree(height, width, quality, subsampling, progressive, noise):
    pixels = np.random.default_rng(noise).integers(0, 256, (height, width, 3), np.uint8)
    data = encode(pixels, quality=quality, subsampling=subsampling, progressive=progressive)
    found = np.empty_like(pixels)
    simplejpeg.decode_jpeg(data, "RGB", buffer=found)
    assert (found == pillow(data)).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_tensorflow_decodes_the_same(channels, decoder):
    encoded = [encode(draw((40, 50, channels), n)) for n in range(3)]
    theirs = [tf.io.decode_jpeg(each, dct_method="INTEGER_ACCURATE").numpy() for each in encoded]
    assert (decode(encoded) == np.stack(theirs)).all()
    encoded = [encode(draw((40, 50, channels), n), "png") for n in range(3)]
    assert (decode(encoded) == [tf.io.decode_png(each).numpy() for each in encoded]).all()


def test_jpeg_is_decoded_into_the_result(buffers):
    encoded = [encode(draw((20, 30, 3), n)) for n in range(4)]
    found = decode(encoded, Image((20, 30, 3)))
    assert len(buffers) == 4
    assert all(np.shares_memory(*pair) for pair in zip(buffers[1:], found[1:], strict=True))
    assert (found == [pillow(each) for each in encoded]).all()


def test_images_that_simplejpeg_does_not_decode(buffers):
    color, grey = encode(draw((20, 30, 3))), encode(draw((20, 30, 1)))
    inks = encode(draw((20, 30, 3)), mode="CMYK")
    assert (decode([inks]) == pillow(inks, "RGB")).all()
    assert (decode([grey], Image((None, None, 3))) == pillow(grey, "RGB")).all()
    assert (decode([color], Image((None, None, 1))) == pillow(color, "L")).all()
    assert (decode([color], Image((None, None, 4))) == pillow(color, "RGBA")).all()
    assert (decode([color], Image(dtype="uint16")) == pillow(color)).all()
    assert (decode([color], size=(10, 10)) == pillow(color, size=(10, 10))).all()
    assert buffers == []
    assert (decode([color], size=(20, 30)) == pillow(color)).all()
    assert len(buffers) == 1


def test_simplejpeg_is_not_used_if_pillow_has_another_library(buffers):
    data = encode(draw((20, 30, 3)))
    with decoding_with("simplejpeg"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(PIL.features, "check_feature", lambda name: name != "libjpeg_turbo")
        assert (decode([data]) == pillow(data)).all()
    assert buffers == []


# Resizing.

FORMS = {
    "grey": (1, "png", None),
    "color": (3, "png", None),
    "transparent": (4, "png", None),
    "grey and transparent": (4, "png", "LA"),
    "palette": (3, "png", "P"),
    "jpeg": (3, "jpeg", None),
    "grey jpeg": (1, "jpeg", None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(12, 9), (24, 32), (1, 80)])
def test_images_of_all_shapes_become_one_array(form, size, decoder):
    channels, kind, mode = FORMS[form]
    shapes = [(24, 32, channels), (60, 31, channels), (3, 90, channels)]
    encoded = [encode(draw(shape), kind, mode) for shape in shapes]
    converted = "RGB" if mode == "P" else None
    found = decode(encoded, size=size)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.uint8
    assert (found == [pillow(each, converted, size) for each in encoded]).all()


@pytest.mark.parametrize("size", [(16, 20), (37, 29), (90, 120)])
def test_tensorflow_resizes_the_same(size):
    pixels = [draw((61, 83, 3), 1), draw((40, 30, 3), 2)]
    found = decode([encode(each, "png") for each in pixels], size=size)
    theirs = [tf.image.resize(each, size, antialias=True).numpy() for each in pixels]
    assert np.abs(found - np.stack(theirs)).max() < 1.1  # Pillow rounds twice, TensorFlow never


def test_resizing_down_averages():
    board = np.indices((64, 64)).sum(0)[:, :, np.newaxis] % 2 * 255
    found = decode([encode(board.astype(np.uint8), "png")], size=(8, 8))
    assert np.abs(found.astype(int) - 127).max() <= 2


@pytest.mark.parametrize("size", [(16, 20), (90, 120)])
def test_16_bits_are_resized_as_16_bits(size):
    feature = Image((None, None, 1), "uint16")
    pixels = [draw((40, 30, 1), 1, np.uint16), draw((61, 83, 1), 2, np.uint16)]
    encoded = [encode(each, "png") for each in pixels]
    found = decode(encoded, feature, size=size)
    assert found.dtype == np.uint16
    theirs = [tf.image.resize(each.astype(np.float32), size, antialias=True) for each in pixels]
    assert np.abs(found - np.stack(theirs)).max() < 0.6
    assert (decode(encoded[:1], feature, size=(40, 30))[0] == pixels[0]).all()


def test_8_bits_in_a_feature_of_16():
    data = encode(draw((40, 30, 3)), "png")
    found = decode([data, data], Image((None, None, 3), "uint16"), size=(20, 15))
    assert found.dtype == np.uint16
    assert (found == pillow(data, size=(20, 15))).all()


@pytest.mark.parametrize("size", [None, (5, 6)])
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colors_of_16_bits_are_rejected(size, channels):
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (8, 9, channels), np.uint16)
    data = tf.io.encode_png(pixels).numpy()
    error = failure([data], Image(dtype="uint16", channels=None), size=size)
    check_location(error, 0)
    assert "16 bits in several channels" in error.reason
    assert "tf.io.decode_png" in error.remedy


@pytest.mark.parametrize("channels", [3, 4])
def test_colors_of_16_bits_in_a_feature_of_8(channels):
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (8, 9, channels), np.uint16)
    data = tf.io.encode_png(pixels).numpy()
    assert (decode([data]) == tf.io.decode_png(data, dtype=tf.uint8).numpy()).all()


def test_values_too_large_for_the_feature_are_rejected():
    data = encode(np.full((4, 5, 1), 256, np.uint16), "png")
    assert "is 256; must be from 0 to 255" in str(failure([data]))
    assert "is 256; must be from 0 to 255" in str(failure([data], size=(2, 2)))


def test_images_are_converted_to_the_channels_of_the_feature(decoder):
    encoded = [encode(draw((9, 8, c)), f) for c, f in ((1, "png"), (3, "jpeg"), (4, "png"))]
    for channels, mode in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        found = decode(encoded, Image((None, None, channels)), size=(5, 6))
        assert (found == [pillow(each, mode, (5, 6)) for each in encoded]).all()


def test_different_channels_are_rejected():
    encoded = [encode(draw((9, 8, c)), "png") for c in (3, 3, 1)]
    error = failure(encoded, size=(5, 6))
    check_location(error, 2)
    assert error.reason == "the image has 1 channels, the first of the batch has 3"
    assert "Image(shape=(None, None, 3))" in error.remedy
    assert str(error).startswith("birds.tfrecord: record 2 at byte 200: feature 'image': the image")
    assert [each.shape for each in decode(encoded)] == [(9, 8, 3), (9, 8, 3), (9, 8, 1)]


def test_shape_of_the_feature_is_checked_before_resizing(decoder):
    for kind in ("png", "jpeg"):
        data = encode(draw((9, 8, 3)), kind)
        assert decode([data], Image((9, 8, 3)), size=(5, 6)).shape == (1, 5, 6, 3)
        error = failure([data], Image((5, 6, 3)), size=(5, 6))
        assert "has shape (9, 8, 3), expected (5, 6, 3)" in str(error)


def test_no_images():
    assert decode([]) == []
    assert decode([], Image((4, 5, 3))).shape == (0, 4, 5, 3)
    found = decode([], Image((None, None, 3), "uint16"), size=(5, 6))
    assert (found.shape, found.dtype) == ((0, 5, 6, 3), np.uint16)
    assert decode([], size=(5, 6)).shape == (0, 5, 6, 0)


@pytest.mark.parametrize("size", [(0, 5), (5, -1), (5,), (5, 6, 3), 0, (5.0, 6.0), "56"])
def test_invalid_sizes(size):
    with pytest.raises(FeatureError, match=r"must be \(height, width\)"):
        decode([encode(draw((9, 8, 3)))], size=size)


# Columns.


def test_other_columns_and_the_input_are_unchanged():
    features = Features({"a": {"b": Image(), "c": "int64"}, "d": "bytes", "e": Image()})
    data = encode(draw((9, 8, 3)))
    columns = {"a": {"b": [data], "c": np.ones(1, np.int64)}, "d": [data], "e": [data]}
    found = decode_images(features, columns, locate, size=(3, 4))
    assert found["a"]["b"].shape == found["e"].shape == (1, 3, 4, 3)
    assert found["d"] == [data]
    assert found["a"]["c"] is columns["a"]["c"]
    assert columns["a"]["b"] == columns["e"] == [data]


@pytest.mark.parametrize("shape", [(9, 8, 3), (None, None, None)])
def test_pixels_can_be_written_to(shape, decoder):
    one, other = encode(draw((9, 8, 3))), encode(draw((7, 8, 3)), "png")
    for found in (decode([one], Image(shape)), decode([one, one], Image(shape))):
        assert isinstance(found, np.ndarray)
        assert found.flags.writeable
    assert all(each.flags.writeable for each in decode([one, other]))
    assert decode([one, other], size=(3, 3)).flags.writeable
    assert Image().decode(one).flags.writeable


def test_one_image_is_decoded_like_a_column(decoder):
    for channels in (1, 3, None):
        feature = Image((None, None, channels))
        for data in (encode(draw((9, 8, 3))), encode(draw((9, 8, 4)), "png")):
            assert (decode([data], feature)[0] == feature.decode(data)).all()


def test_concurrent_decoding(decoder):
    encoded = [encode(draw((60, 80, 3), n), "jpeg" if n % 3 else "png") for n in range(24)]
    plain, small = decode(encoded), decode(encoded, size=(20, 30))
    with ThreadPoolExecutor(4) as pool:
        same = pool.map(lambda _: (decode(encoded) == plain).all(), range(8))
        resized = pool.map(lambda _: (decode(encoded, size=(20, 30)) == small).all(), range(8))
        assert [*same, *resized] == [True] * 16


# Corrupt images.


def outcome(data, **options):
    """Pixels, or the message of the error."""
    try:
        return decode([data], **options).tolist()
    except ExampleError as error:
        return str(error)


def test_both_decoders_reject_the_same_images():
    rng = np.random.default_rng(0)
    forms = set(JPEGS) - {"turned"}  # Pillow warns about a corrupt one
    complete = [encode(draw((16, 20, n)), **JPEGS[form]) for form in sorted(forms) for n in (1, 3)]
    corrupt = []
    for number in range(240):
        data = bytearray(complete[number % len(complete)])
        for at in rng.integers(0, len(data), 2):
            data[at] = rng.integers(256)
        corrupt.append(bytes(data))
    found = [outcome(data) for data in corrupt]
    with decoding_with("Pillow"):
        assert [outcome(data) for data in corrupt] == found
    assert 20 < sum(isinstance(each, list) for each in found) < 220


@pytest.mark.parametrize("size", [None, (4, 4)])
@pytest.mark.parametrize("format", ["jpeg", "png"])
def test_truncated_images(format, size, decoder):
    data = encode(draw((40, 50, 3)), format)
    error = failure([data, data, data[: len(data) - 100]], size=size)
    check_location(error, 2)
    assert "image file is truncated" in error.reason


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"not an image"])
def test_bytes_that_are_not_an_image(data, decoder):
    error = failure([data])
    check_location(error, 0)
    assert f"the {len(data)} bytes are not an image" in error.reason
    assert error.reason.endswith("PNG, JPEG, GIF, BMP, WEBP, TIFF, PPM")


def claim(data, height, width):
    """The same image with another size in its header."""
    if data.startswith(b"\x89PNG"):
        header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + data[24:29]
        return data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:]
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]


@pytest.mark.parametrize("size", [None, (4, 4)])
@pytest.mark.parametrize("format", ["jpeg", "png"])
def test_header_with_a_size_over_the_limit_of_pillow(format, size, decoder, buffers):
    data = claim(encode(draw((8, 8, 3)), format), 65000, 65000)
    error = failure([data], size=size)
    assert "exceeds limit" in str(error)
    assert "decompression bomb" in str(error)
    assert buffers == []


def test_header_with_a_wrong_size(decoder):
    wrong = claim(encode(draw((8, 8, 3)), "png"), 600, 800)
    assert "image file is truncated" in str(failure([wrong]))
    assert "has shape (600, 800, 3)" in str(failure([wrong], Image((8, 8, 3))))
    wrong = claim(encode(draw((8, 8, 3)), "jpeg"), 600, 800)
    assert (decode([wrong]) == pillow(wrong)).all()  # missing pixels are grey
    assert "has shape (600, 800, 3)" in str(failure([wrong], Image((8, 8, 3))))


def test_limit_of_pillow(monkeypatch, decoder, buffers):
    data = encode(draw((40, 50, 3)))
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 40 * 50 // 2 - 1)
    assert "exceeds limit" in str(failure([data]))
    assert buffers == []
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 40 * 50)
    assert decode([data]).shape == (1, 40, 50, 3)


def test_second_header_is_rejected(decoder):
    large, small = encode(draw((40, 50, 3))), encode(draw((8, 8, 3)))
    frame = large[large.index(b"\xff\xc0") :][:19]
    at = small.index(b"\xff\xc0")
    error = failure([small[:at] + frame + small[at:]])
    check_location(error, 0)
    assert "bytes are not a valid image: " in error.reason


def test_simplejpeg_result_of_another_size_is_discarded(monkeypatch):
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_, buffer: buffer[:4])
    data = encode(draw((8, 8, 3)))
    assert (decode([data]) == pillow(data)).all()


def test_wrong_shape_in_the_schema_allocates_nothing():
    encoded = [encode(draw((8, 8, 1)), "png")] * 1000
    error = failure(encoded, Image((40000, 50000, 1)))
    assert "has shape (8, 8, 1), expected (40000, 50000, 1)" in str(error)
