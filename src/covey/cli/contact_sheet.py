"""A contact sheet: the images of a batch in one picture, a row for each class.

What is an image, in this order: an :class:`covey.Image`, or bytes that begin like a PNG, JPEG, GIF
or WebP file; a uint8 tensor of shape (h, w) or (h, w, 1 | 3 | 4); and a flat one of 64 values or
more, if a square of grey pixels, or of colours, has as many.

Pillow is imported only when an image is really decoded or drawn.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from covey.dataset.dataset import Dataset
from covey.errors import DatasetError, FeatureError
from covey.schema import Feature, Image, Tensor
from covey.schema.images import import_pillow
from covey.urls import shown

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MOST_ROWS = 64
MOST_COLUMNS = 32
"""A sheet of more would be too large to look at, and for some viewers to open."""

SIDE = 128
"""Of a thumbnail, at the most: 32 pixels are enlarged four times, photos are made smaller."""
GAP = 4

_BACKGROUND = (236, 236, 236)
_INK = (0, 0, 0)
_TEXT_SIZE = 14
_LINE = 18
_NAME_WIDTH = 180
_NAME_LENGTH = 80  # longer names are cut before anybody measures them

_ENCODED = re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8|RIFF....WEBP", re.DOTALL)
_LEAST_FLAT = 64


@dataclass(frozen=True, eq=False)
class Row:
    """A class, and thumbnails of its examples; None for those that have no pixels."""

    name: str
    label: int
    thumbnails: Sequence[Picture | None]


# Which features are images, and their thumbnails.


def image_features(dataset: Dataset, number: int) -> list[str]:
    """The features that are images, the likeliest first.

    Args:
        dataset: Which has the features.
        number: An example, in which is looked whether bytes are images.
    """
    kinds = dataset.features
    encoded = [
        name
        for name, kind in kinds.items()
        if isinstance(kind, Image) or (_is_bytes(kind) and _is_encoded(dataset, name, number))
    ]
    tensors = [name for name, kind in kinds.items() if _pixels_shape(kind) is not None]
    return encoded + sorted(tensors, key=lambda name: _is_flat(kinds[name]))


def thumbnails(dataset: Dataset, feature: str, ids: Iterable[int]) -> list[Picture | None]:
    """Examples as pictures of :data:`SIDE` pixels at the most, enlarged by whole factors only.

    Raises:
        ExampleError: If one cannot be decoded, saying which.
    """
    numbers = list(ids)
    kind = dataset.features[feature]
    shape = _pixels_shape(kind)
    made = []
    for number, value in zip(numbers, _stored(dataset, feature, numbers), strict=True):
        if shape is None:
            pixels = _decode(dataset, feature, number, value)
        else:
            pixels = value.reshape(shape) if _is_flat(kind) else value
        made.append(_thumbnail(pixels) if pixels.size else None)
    return made


def _is_bytes(kind: Feature) -> bool:
    return isinstance(kind, Tensor) and kind.dtype == "bytes" and kind.shape == ()


def _is_encoded(dataset: Dataset, name: str, number: int) -> bool:
    (value,) = _stored(dataset, name, [number])
    return _ENCODED.match(value) is not None


def _is_flat(kind: Feature) -> bool:
    return isinstance(kind, Tensor) and len(kind.shape) == 1


def _pixels_shape(kind: Feature) -> tuple[int | None, ...] | None:
    """The shape that a tensor has as an image; None if it is not an image."""
    if not isinstance(kind, Tensor) or kind.dtype != "uint8":
        return None
    match kind.shape:
        case (_, _) | (_, _, 1 | 3 | 4):
            return kind.shape
        case (int(size),) if size >= _LEAST_FLAT:
            for channels in (1, 3):
                side = math.isqrt(size // channels)
                if side * side * channels == size:
                    return side, side, channels
    return None


def _stored(dataset: Dataset, name: str, numbers: Sequence[int]) -> Any:
    """A feature of some examples; images are not decoded."""
    features = dataset.features.select([name])
    found: Any = dataset.decode(features, np.array(numbers, np.int64))
    return features.find(found, name)


def _decode(dataset: Dataset, name: str, number: int, data: bytes) -> NDArray[Any]:
    kind = dataset.features[name]
    try:
        image = kind if isinstance(kind, Image) else Image()
        return image.decode(data, max_pixels=dataset.max_pixels)
    except FeatureError as error:
        raise dataset.place(number).error(error, name) from None


def _thumbnail(pixels: NDArray[Any]) -> Picture:
    pillow = import_pillow()
    if pixels.dtype == np.uint16:
        pixels = (pixels >> 8).astype(np.uint8)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    picture = pillow.fromarray(np.ascontiguousarray(pixels))
    if picture.mode in ("LA", "RGBA"):
        picture = picture.convert("RGBA")
    longest = max(picture.size)
    if longest <= SIDE:
        factor = SIDE // longest
        size = (picture.width * factor, picture.height * factor)
        return picture.resize(size, pillow.Resampling.NEAREST)  # type: ignore[no-any-return]
    size = tuple(max(1, round(side * SIDE / longest)) for side in picture.size)
    return picture.resize(size, pillow.Resampling.LANCZOS)  # type: ignore[no-any-return]


# The sheet.


def draw_sheet(rows: Sequence[Row]) -> Picture:
    """One picture of all: the names at the left, and the thumbnails in cells of one size."""
    from PIL import ImageDraw

    pillow = import_pillow()
    writing = _Writing()
    captions = [writing.caption(row) for row in rows]
    sides = [max(each.size) for row in rows for each in row.thumbnails if each is not None]
    cell = max([*sides, 2 * _LINE])
    left = GAP + max(writing.width(line) for lines in captions for line in lines) + 2 * GAP
    columns = max(len(row.thumbnails) for row in rows)
    size = (left + columns * (cell + GAP), GAP + len(rows) * (cell + GAP))
    sheet: Picture = pillow.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (row, lines) in enumerate(zip(rows, captions, strict=True)):
        top = GAP + number * (cell + GAP)
        middle = top + (cell - len(lines) * _LINE) // 2
        for below, line in enumerate(lines):
            draw.text((GAP, middle + below * _LINE), line, fill=_INK, font=writing.font)
        for column, picture in enumerate(row.thumbnails):
            if picture is not None:
                x = left + column * (cell + GAP) + (cell - picture.width) // 2
                y = top + (cell - picture.height) // 2
                sheet.paste(picture, (x, y), picture if picture.mode == "RGBA" else None)
    return sheet


def save_sheet(sheet: Picture, path: str) -> None:
    """Save a sheet in the format that the name of the file says.

    Raises:
        DatasetError: If that cannot be.
    """
    try:
        sheet.save(path)
    except OSError as error:
        raise DatasetError(
            f"the contact sheet cannot be saved there: {error.strerror or error}", path=shown(path)
        ) from None


class _Writing:
    """Strings in Pillow's own font, which has little more than ASCII, and is there everywhere."""

    def __init__(self) -> None:
        from PIL import ImageFont

        try:
            self.font = ImageFont.load_default(_TEXT_SIZE)
        except (ImportError, TypeError):  # without FreeType, or before Pillow 10.1
            self.font = ImageFont.load_default()
        self._missing = self._look("\uffff")

    def caption(self, row: Row) -> list[str]:
        """The lines beside a row: the name of the class, and its label if that is not its name."""
        name = self._cut(row.name)
        return [name] if row.name == str(row.label) else [name, self._cut(f"label {row.label}")]

    def width(self, text: str) -> int:
        """In pixels."""
        return math.ceil(self.font.getlength(text))

    def _cut(self, name: str) -> str:
        """As much of a name as there is room for, in characters that the font has."""
        text = "".join(map(self._drawable, name[:_NAME_LENGTH]))
        if len(name) <= _NAME_LENGTH and self.width(text) <= _NAME_WIDTH:
            return text
        while self.width(f"{text}...") > _NAME_WIDTH:
            text = text[:-1]
        return f"{text}..."

    def _drawable(self, character: str) -> str:
        r"""The character itself; a letter without its accents; or its number, such as \u0436."""
        if self._has(character):
            return character
        if unicodedata.combining(character):
            return ""
        plain = [each for each in unicodedata.normalize("NFKD", character) if self._has(each)]
        return "".join(plain) or character.encode("unicode_escape").decode()

    def _has(self, character: str) -> bool:
        return character.isprintable() and self._look(character) not in (self._missing, None)

    def _look(self, character: str) -> bytes | None:
        try:
            return bytes(self.font.getmask(character))
        except UnicodeEncodeError:  # of a font that has only so many characters
            return None
