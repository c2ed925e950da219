"""Decoded images have the pixels of Pillow and TensorFlow, with every decoder.

docs/images.md defines the results.
"""

import io
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import PIL.features
import PIL.Image
import pytest
import simplejpeg
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
JPEGS, PNGS = jpegs(), pngs()
SMALL_JPEG = encode(draw((9, 8, 3)))


@pytest.fixture(params=DECODERS)
def decoder(request):
    with decoding_with(request.param):
        yield request.param


@pytest.fixture
def calls(monkeypatch):
    """The names of the functions of simplejpeg and Pillow that were called."""
    found = []

    def record(module, name):
        original = getattr(module, name)

        def call(*args, **options):
            found.append(name)
            return original(*args, **options)

        monkeypatch.setattr(module, name, call)

    record(simplejpeg, "decode_jpeg")
    record(PIL.Image, "open")
    return found


@pytest.fixture
def without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)


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


def check_pillow_is_missing(encoded, feature):
    with pytest.raises(FeatureError, match="Pillow") as raised:
        decode(encoded, feature)
    assert (raised.value.feature, raised.value.record) == ("image", None)


# Pixels.


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_pixels_equal_those_of_pillow(kind, channels, decoder):
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
def test_noise(decoder, height, width, quality, subsampling, progressive, noise):
    pixels = np.random.default_rng(noise).integers(0, 256, (height, width, 3), np.uint8)
    data = encode(pixels, quality=quality, subsampling=subsampling, progressive=progressive)
    assert (decode([data]) == pillow(data)).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_tensorflow_decodes_the_same_jpegs(channels, decoder):
    encoded = [encode(draw((40, 50, channels), n)) for n in range(3)]
    theirs = [tf.io.decode_jpeg(each, dct_method="INTEGER_ACCURATE").numpy() for each in encoded]
    assert (decode(encoded, Image(channels=channels)) == np.stack(theirs)).all()


SHALLOW = tuple(f"{color} {bits} " for color in ("gray", "palette") for bits in (1, 2, 4))


@pytest.mark.parametrize("channels", [3, 4])
def test_tensorflow_decodes_the_same_pngs(channels, decoder):
    for name, data in pngs().items():
        # TensorFlow applies tRNS to RGB, and opaque alpha of less than 8 bits is less than 255.
        if "tRNS" in name or (channels == 4 and name.startswith(SHALLOW)):
            continue
        theirs = tf.io.decode_png(data, channels=channels).numpy()
        assert (decode([data], Image(channels=channels))[0] == theirs).all(), name


def test_decoders_that_are_called(decoder, calls):
    jpeg, other = encode(draw((20, 30, 3))), encode(draw((20, 30, 3)), "png")
    expected = {"native": [], "simplejpeg": ["open", "decode_jpeg"], "Pillow": ["open"]}
    decode([jpeg])
    assert calls == expected[decoder]
    calls.clear()
    decode([other])
    assert calls == ([] if decoder == "native" else ["open"])


def test_pillow_is_required_by_other_decoders_only(decoder, without_pillow):
    expected = {"native": (9, 8, 3)}.get(decoder)
    for data in (png(draw((9, 8, 3))), SMALL_JPEG):
        if expected is None:
            check_pillow_is_missing([data], Image(channels=3))
        else:
            assert decode([data]).shape[1:] == expected


def test_images_that_native_decoders_read_without_pillow(without_pillow):
    with decoding_with("native"):
        for name, data in {**JPEGS, **PNGS}.items():
            for channels in (1, 3, 4):
                if channels == 4 and name in ("color tRNS", "gray tRNS"):
                    check_pillow_is_missing([data], Image(channels=4))
                else:
                    assert decode([data], Image(channels=channels)).shape[3] == channels


def test_corrupt_headers_without_pillow(without_pillow):
    with decoding_with("native"):
        for data in (SMALL_JPEG[:30], PNGS["exif"][:20]):
            assert "not a valid image" in failure([data]).reason


def test_simplejpeg_is_not_used_if_pillow_has_another_library(calls):
    data = encode(draw((20, 30, 3)))
    with decoding_with("simplejpeg"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(PIL.features, "check_feature", lambda name: name != "libjpeg_turbo")
        assert (decode([data]) == pillow(data)).all()
    assert "decode_jpeg" not in calls


def test_simplejpeg_result_of_another_size_is_discarded(monkeypatch):
    data = encode(draw((8, 8, 3)))
    with decoding_with("simplejpeg"):
        monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_: np.zeros((4, 8, 3), np.uint8))
        assert (decode([data]) == pillow(data)).all()


# 16 bits.


@pytest.mark.parametrize("channels", [3, 4])
def test_16_bits_equal_those_of_tensorflow(channels):
    feature = Image(channels=channels, dtype="uint16")
    with decoding_with("native"):
        for stored in (1, 2, 3, 4):
            data = png(draw((33, 17, stored), stored, np.uint16), bits=16)
            theirs = tf.io.decode_png(data, channels=channels, dtype=tf.uint16).numpy()
            (found,) = decode([data], feature)
            assert found.dtype == np.uint16
            assert (found == theirs).all()


def test_16_bits_as_stored():
    feature = Image(channels=None, dtype="uint16")
    with decoding_with("native"):
        for stored in (1, 2, 3, 4):
            pixels = draw((33, 17, stored), stored, np.uint16)
            for interlaced in (False, True):
                data = png(pixels, bits=16, interlaced=interlaced)
                assert (decode([data], feature)[0] == pixels).all()


def test_grayscale_of_16_bits(decoder):
    feature = Image(channels=1, dtype="uint16")
    gray = draw((33, 17, 1), 1, np.uint16)
    assert (decode([png(gray, bits=16)], feature)[0] == gray).all()
    if decoder == "native":
        color = draw((33, 17, 4), 2, np.uint16)
        luma = color[:, :, :3] @ [0.299, 0.587, 0.114]
        for stored in (3, 4):
            (found,) = decode([png(color[:, :, :stored], bits=16)], feature)
            assert np.abs(found[:, :, 0] - luma).max() <= 1
        (found,) = decode([png(color[:, :, :2], bits=16)], feature)
        assert (found == color[:, :, :1]).all()


def test_grayscale_of_16_bits_in_several_channels(decoder):
    gray = draw((33, 17, 1), 1, np.uint16)
    (found,) = decode([png(gray, bits=16)], Image(dtype="uint16"))
    assert (found == gray.repeat(3, 2)).all()
    (found,) = decode([png(gray, bits=16)], Image(channels=4, dtype="uint16"))
    assert (found[:, :, :3] == gray).all()
    assert (found[:, :, 3] == 2**16 - 1).all()


@pytest.mark.parametrize("stored", [2, 3, 4])
def test_colors_of_16_bits_require_libpng(stored):
    data = png(draw((8, 9, stored), dtype=np.uint16), bits=16)
    for decoder in ("simplejpeg", "Pillow"):
        with decoding_with(decoder):
            error = failure([data], Image(dtype="uint16"))
            assert "16 bits in several channels" in error.reason
            assert "libpng" in error.remedy


def test_transparent_color_of_16_bits(decoder):
    data = png(draw((8, 9, 3), dtype=np.uint16), bits=16, transparency=bytes(6))
    error = failure([data], Image(channels=4, dtype="uint16"))
    assert "16 bits in several channels" in error.reason


def test_8_bits_in_a_feature_of_16(decoder):
    for data in (encode(draw((40, 30, 3)), "png"), encode(draw((40, 30, 1)))):
        found = decode([data, data], Image(dtype="uint16"))
        assert found.dtype == np.uint16
        assert (found == pillow(data)).all()


def test_16_bits_of_tiff_in_a_feature_of_8(decoder):
    pixels = draw((8, 9, 1), dtype=np.uint16)
    data = encode(pixels, "tiff")
    assert (decode([data])[0] == (pixels >> 8).repeat(3, 2)).all()
    assert (decode([data], Image(channels=1, dtype="uint16"))[0] == pixels).all()


def test_12_bits_are_rejected(decoder):
    data = as_12_bits(encode(draw((40, 30, 3))))
    error = failure([data])
    assert error.reason == "the JPEG image has 12 bits per channel; must be 8"
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
        assert found.shape[1:3] == ((30, 20) if 5 <= orientation <= 8 else (20, 30))


def test_exif_orientation_of_tiff_is_applied_always(decoder):
    for orientation in range(1, 9):
        data = with_orientation("tiff", orientation)
        for feature in (Image(), Image(exif_orientation=True)):
            assert (decode([data], feature) == pillow(data, oriented=True)).all()


def test_exif_orientation_of_16_bits():
    pixels = draw((20, 30, 2), dtype=np.uint16)
    data = png(pixels, bits=16, exif=exif_orientation(6))
    with decoding_with("native"):
        (found,) = decode([data], Image(channels=None, dtype="uint16", exif_orientation=True))
        assert (found == np.rot90(pixels, -1)).all()
        (found,) = decode([data], Image(channels=1, dtype="uint16", exif_orientation=True))
        assert (found == np.rot90(pixels[:, :, :1], -1)).all()


def test_orientation_and_the_shape_of_the_feature(decoder):
    data = with_orientation("jpeg", 6)
    feature = Image((30, 20, 3), exif_orientation=True)
    assert decode([data], feature).shape == (1, 30, 20, 3)
    assert "(20, 30, 3)" in failure([data], Image((30, 20, 3))).reason


# Columns.


def test_images_of_one_size_are_an_array(decoder):
    encoded = [encode(draw((9, 8, 3), n), "jpeg" if n % 2 else "png") for n in range(4)]
    found = decode(encoded)
    assert isinstance(found, np.ndarray)
    assert (found == [pillow(each) for each in encoded]).all()
    other = encode(draw((7, 8, 3)), "png")
    found = decode([*encoded, other])
    assert isinstance(found, list)
    assert [each.shape for each in found] == [(9, 8, 3)] * 4 + [(7, 8, 3)]


def test_different_channels_are_a_list(decoder):
    encoded = [encode(draw((9, 8, c)), "png") for c in (3, 1, 4)]
    found = decode(encoded, Image(channels=None))
    assert [each.shape for each in found] == [(9, 8, 3), (9, 8, 1), (9, 8, 4)]


def test_shape_of_the_feature_is_checked(decoder):
    for kind in ("png", "jpeg", "webp"):
        data = encode(draw((9, 8, 3)), kind)
        assert decode([data], Image((9, None, 3))).shape == (1, 9, 8, 3)
        error = failure([data], Image((5, 6, 3)))
        assert "has shape (9, 8, 3), expected (5, 6, 3)" in error.reason


def test_no_images():
    assert decode([]).shape == (0, 0, 0, 3)
    assert decode([], Image((4, 5, 3))).shape == (0, 4, 5, 3)


def test_other_columns_and_the_input_are_unchanged():
    features = Features({"a": {"b": Image(), "c": "int64"}, "d": "bytes", "e": Image()})
    data = StringArray.of([encode(draw((9, 8, 3)))])
    columns = {"a": {"b": data, "c": np.ones(1, np.int64)}, "d": data, "e": data}
    found = decode_images(features, columns, locate)
    assert found["a"]["b"].shape == found["e"].shape == (1, 9, 8, 3)
    assert found["a"]["c"] is columns["a"]["c"]
    assert columns["a"]["b"] is columns["e"] is found["d"] is data


def test_pixels_can_be_written_to(decoder):
    one, other = encode(draw((9, 8, 3))), encode(draw((7, 8, 3)), "png")
    assert decode([one, one]).flags.writeable
    assert all(each.flags.writeable for each in decode([one, other]))
    assert Image().decode(one).flags.writeable


def test_one_image_is_decoded_like_a_column(decoder):
    for channels in CHANNELS:
        feature = Image(channels=channels)
        for data in (encode(draw((9, 8, 3))), encode(draw((9, 8, 4)), "png")):
            assert (decode([data], feature)[0] == feature.decode(data)).all()


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


@pytest.mark.parametrize("decoder", ["native", "simplejpeg"])
def test_decoders_reject_the_same_jpegs(decoder):
    complete = [data for name, data in jpegs([(16, 20)]).items() if "exif" not in name]
    corrupt = list(change_bytes(complete, 480))
    with decoding_with("Pillow"):
        expected = [outcome(data) for data in corrupt]
    with decoding_with(decoder):
        assert [outcome(data) for data in corrupt] == expected
    assert 60 < sum(each is None for each in expected) < 420


def test_tables_of_another_image_are_not_used(decoder):
    data = encode(draw((16, 20, 3)))
    at = data.index(b"\xff\xdb")  # quantization tables
    tables = int.from_bytes(data[at + 2 : at + 4], "big") + 2
    failure([data, data[:at] + data[at + tables :]])


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"not an image"])
def test_bytes_that_are_not_an_image(data, decoder):
    error = failure([data])
    assert f"the {len(data)} bytes are not an image" in error.reason
    assert error.reason.endswith("PNG, JPEG, GIF, BMP, WEBP, TIFF, PPM")


@pytest.mark.parametrize("format", ["jpeg", "png"])
def test_header_with_a_size_over_the_limit(format, decoder, calls):
    data = claim(encode(draw((8, 8, 3)), format), 65000, 65000)
    error = failure([data])
    assert "65000 x 65000 = 4,225,000,000 pixels" in error.reason
    assert error.option == "max_pixels"
    assert calls == []


def test_max_pixels(decoder):
    for kind in ("jpeg", "png", "webp"):
        data = encode(draw((20, 30, 3)), kind)
        assert decode([data], max_pixels=600).shape == (1, 20, 30, 3)
        error = failure([data], max_pixels=599)
        assert (error.option, error.found) == ("max_pixels", 599)


def test_header_with_a_wrong_size(decoder):
    for kind in ("png", "jpeg"):
        wrong = claim(encode(draw((8, 8, 3)), kind), 600, 800)
        assert "has shape (600, 800, 3)" in failure([wrong], Image((8, 8, 3))).reason
        if kind == "png":
            assert "bytes are not a valid image" in failure([wrong]).reason
        else:
            assert (decode([wrong]) == pillow(wrong)).all()  # missing pixels are gray


def test_second_header_is_rejected(decoder):
    large, small = encode(draw((40, 50, 3))), encode(draw((8, 8, 3)))
    frame = large[large.index(b"\xff\xc0") :][:19]
    at = small.index(b"\xff\xc0")
    assert "bytes are not a" in failure([small[:at] + frame + small[at:]]).reason


def test_wrong_shape_in_the_schema_allocates_nothing():
    error = failure([encode(draw((8, 8, 1)), "png")], Image((40000, 50000, 1)))
    assert "has shape (8, 8, 1), expected (40000, 50000, 1)" in error.reason


def test_pixels_of_pillow_are_those_of_its_file():
    """The judge is Pillow's own decoder, with libjpeg-turbo."""
    assert PIL.features.check_feature("libjpeg_turbo")
    pixels = draw((9, 8, 3))
    with PIL.Image.open(io.BytesIO(png(pixels))) as image:
        assert (np.asarray(image) == pixels).all()
