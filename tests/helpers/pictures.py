"""Encoded images of many kinds, the decoders that read them, and the pixels that Pillow reads.

Only `png` and `SMALL_JPEG` are used by tests without Pillow.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from covey.schema import pixels

DECODERS = ("native", "Pillow")
Pixels = NDArray[Any]


@contextlib.contextmanager
def decoding_with(decoder: str) -> Iterator[None]:
    """Decode images with one of DECODERS inside the block.

    Args:
        decoder: The native core; or Pillow, as in a build without libraries.
    """
    if decoder == "native" and set(pixels.native_formats()) != {"jpeg", "png"}:
        pytest.skip("the native core is built without libjpeg-turbo or libpng")
    with pytest.MonkeyPatch.context() as patch:
        if decoder != "native":
            patch.setattr(pixels, "native_formats", tuple)
        yield


def draw(shape: tuple[int, int, int], seed: int = 0, dtype: Any = np.uint8) -> Pixels:
    """Return waves and some noise, of which all channels differ."""
    height, width, channels = shape
    y, x, c = np.mgrid[:height, :width, :channels]
    noise = np.random.default_rng(seed).uniform(-0.2, 0.2, shape)
    waves = np.sin(x / 5 + c) + np.cos(y / 7 + seed) + noise
    return ((waves + 3) / 6 * np.iinfo(dtype).max).astype(dtype)


# PNG, without a library.

_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2),
          (1, 0, 2, 1))  # fmt: skip
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}


def png(
    values: Pixels,
    *,
    bits: int = 8,
    palette: Pixels | None = None,
    transparency: bytes | None = None,
    interlaced: bool = False,
    exif: bytes | None = None,
) -> bytes:
    """Encode values, (height, width, channels), as PNG.

    Args:
        values: Samples, or the indices of a palette.
        bits: Bits of a sample: 1, 2, 4, 8 or 16.
        palette: Colours, (n, 3).
        transparency: Content of the chunk tRNS.
        interlaced: Whether rows are stored in seven passes.
        exif: Content of the chunk eXIf.
    """
    height, width, channels = values.shape
    color = 3 if palette is not None else _COLOR_TYPES[channels]
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlaced)
    parts = [_chunk(b"IHDR", header)]
    if palette is not None:
        parts.append(_chunk(b"PLTE", palette.astype(np.uint8).tobytes()))
    if transparency is not None:
        parts.append(_chunk(b"tRNS", transparency))
    if exif is not None:
        parts.append(_chunk(b"eXIf", exif))
    passes = _ADAM7 if interlaced else ((0, 0, 1, 1),)
    rows = b"".join(
        b"\0" + _pack(row, bits)
        for top, left, down, right in passes
        for row in values[top::down, left::right]
        if row.size
    )
    parts += [_chunk(b"IDAT", zlib.compress(rows)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _pack(row: Pixels, bits: int) -> bytes:
    if bits >= 8:
        return row.astype(">u2" if bits == 16 else np.uint8).tobytes()
    digits = row.reshape(-1, 1) >> np.arange(bits - 1, -1, -1) & 1
    return np.packbits(digits.astype(np.uint8).reshape(-1)).tobytes()


def _chunk(name: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(name + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + name + content + crc


def exif_orientation(orientation: int) -> bytes:
    """Return EXIF metadata with an orientation."""
    return (
        b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0" + bytes([orientation, 0, 0]) + bytes(4)
    )


# Pillow.


def encode(values: Pixels, format: str = "jpeg", mode: str | None = None, **options: Any) -> bytes:
    """Encode pixels with Pillow, after a conversion to `mode`."""
    import PIL.Image

    image = PIL.Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
    out = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(out, format, **options)
    return out.getvalue()


def pillow(
    data: bytes,
    channels: int | None = 3,
    *,
    box: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
    flipped: bool = False,
    oriented: bool = False,
) -> Pixels:
    """Return the pixels of Pillow, as uint8.

    Args:
        data: The encoded image.
        channels: Channels of the result; None for those of the image.
        box: Top, left, height and width of the part that is resized.
        size: Height and width of the result.
        flipped: Whether the result is mirrored.
        oriented: Whether the EXIF orientation is applied.
    """
    import PIL.Image
    import PIL.ImageOps

    with PIL.Image.open(io.BytesIO(data)) as opened:
        image: Any = PIL.ImageOps.exif_transpose(opened) if oriented else opened
        if image.mode.startswith("I;16"):  # Pillow clips when it converts
            image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
            image = image.convert("RGBA")  # Pillow warns of other conversions
            stored = "RGB"
        else:
            stored = {"1": "L", "P": "RGB", "CMYK": "RGB"}.get(image.mode, image.mode)
        has_gray_and_alpha = data[:4] == b"\x89PNG" and data[25] == 4
        image = image.convert({1: "L", 3: "RGB", 4: "RGBA", None: stored}[channels])
        if box is not None:
            top, left, height, width = box
            image = image.crop((left, top, left + width, top + height))
        if size is not None:
            bilinear = PIL.Image.Resampling.BILINEAR
            # Pillow resizes RGBA with weights of alpha; channels are resized independently here.
            parts = [each.resize(size[::-1], bilinear) for each in image.split()]
            image = PIL.Image.merge(image.mode, parts)
        found = np.asarray(image)
    found = found if found.ndim == 3 else found[:, :, np.newaxis]
    if channels is None and has_gray_and_alpha:
        found = found[:, :, [0, -1]]  # Pillow reads RGBA if there are 16 bits
    return found[:, ::-1] if flipped else found


JPEG_FORMS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "progressive": {"progressive": True},
    "optimized": {"optimize": True},
    "restarts": {"restart_marker_blocks": 1},
    "rgb": {"keep_rgb": True},
    "exif": {"exif": b"Exif\0\0" + exif_orientation(6)},
    "low quality": {"quality": 5},
}
SIZES = ((1, 1), (7, 5), (33, 17), (48, 64))


def jpegs(sizes: Any = SIZES) -> dict[str, bytes]:
    """Return JPEGs of all kinds: grayscale, colour, CMYK and YCCK."""
    found = {}
    for (form, options), (height, width) in itertools.product(JPEG_FORMS.items(), sizes):
        values = draw((height, width, 3))
        name = f"{form} {height}x{width}"
        found[f"{name} color"] = encode(values, **options)
        if form not in ("422", "420", "444", "rgb"):
            found[f"{name} gray"] = encode(values[:, :, :1], **options)
        if form in ("baseline", "progressive"):
            found[f"{name} cmyk"] = encode(values, mode="CMYK", **options)
            found[f"{name} ycck"] = as_ycck(encode(values, mode="CMYK", **options))
    return found


def as_ycck(cmyk: bytes) -> bytes:
    """Return a CMYK JPEG of Pillow, whose Adobe marker says that the colours are YCCK."""
    at = cmyk.index(b"\xff\xeeAdobe"[:2]) + 2
    marker = cmyk.index(b"Adobe", at)
    return cmyk[: marker + 11] + b"\x02" + cmyk[marker + 12 :]


def pngs(sizes: Any = SIZES) -> dict[str, bytes]:
    """Return PNGs of all colour types and bit depths, interlaced or not."""
    found = {}
    for (height, width), interlaced in itertools.product(sizes, (False, True)):
        name = f"{height}x{width}{' interlaced' if interlaced else ''}"
        for bits in (1, 2, 4, 8):
            values = draw((height, width, 1)) >> (8 - bits)
            colors = draw((1, 2**bits, 3), bits)[0]
            found[f"gray {bits} {name}"] = png(values, bits=bits, interlaced=interlaced)
            found[f"palette {bits} {name}"] = png(
                values, bits=bits, palette=colors, interlaced=interlaced
            )
        for channels, bits in itertools.product((2, 3, 4), (8, 16)):
            values = draw((height, width, channels), dtype=np.uint16 if bits == 16 else np.uint8)
            found[f"{channels} channels {bits} {name}"] = png(
                values, bits=bits, interlaced=interlaced
            )
        deep = draw((height, width, 1), dtype=np.uint16)
        found[f"gray 16 {name}"] = png(deep, bits=16, interlaced=interlaced)
    values = draw((33, 17, 3))
    colors = draw((1, 16, 3), 1)[0]
    key = struct.pack(">HHH", *values[4, 5].tolist())
    gray = struct.pack(">H", int(values[4, 5, 0]))
    found["color tRNS"] = png(values, transparency=key)
    found["gray tRNS"] = png(values[:, :, :1], transparency=gray)
    found["palette tRNS"] = png(
        values[:, :, :1] >> 4, bits=4, palette=colors, transparency=bytes(range(0, 128, 8))
    )
    found["exif"] = png(values, exif=exif_orientation(6))
    return found


def others() -> dict[str, bytes]:
    """Return images in formats that only Pillow decodes."""
    values = draw((33, 17, 4))
    color, gray = values[:, :, :3], values[:, :, :1]
    return {
        "gif": encode(color, "gif"),
        "gif gray": encode(gray, "gif"),
        "bmp": encode(color, "bmp"),
        "bmp gray": encode(gray, "bmp"),
        "bmp palette": encode(color, "bmp", "P"),
        "webp": encode(color, "webp"),
        "webp lossless": encode(color, "webp", lossless=True),
        "webp alpha": encode(values, "webp"),
        "tiff": encode(color, "tiff"),
        "tiff gray": encode(gray, "tiff"),
        "tiff cmyk": encode(color, "tiff", "CMYK"),
        "tiff lzw": encode(color, "tiff", compression="tiff_lzw"),
        "ppm": encode(color, "ppm"),
        "pgm": encode(gray, "ppm"),
    }


def as_12_bits(jpeg: bytes) -> bytes:
    """Return a baseline JPEG whose header says that samples have 12 bits."""
    at = jpeg.index(b"\xff\xc0")
    return jpeg[:at] + b"\xff\xc1" + jpeg[at + 2 : at + 4] + b"\x0c" + jpeg[at + 5 :]


def claim(data: bytes, height: int, width: int) -> bytes:
    """Return the same image with another size in its header."""
    if data.startswith(b"\x89PNG"):
        header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + data[24:29]
        return data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:]
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 4 :]
