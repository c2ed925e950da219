"""A contact sheet: the images of a batch in one picture, with a row for each class.

These features are images, in this order: a :class:`covey.Image`, or bytes with the signature of a
PNG, JPEG, GIF or WebP file; a uint8 tensor of shape (h, w) or (h, w, 1 | 3 | 4); a flat uint8
tensor of at least 64 values that are a square of grey or RGB pixels.

Pillow is imported when an image is decoded or drawn.
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

from covey.cli.output import describe_feature
from covey.dataset.dataset import Dataset
from covey.errors import DatasetError, FeatureError
from covey.schema import Feature, Image, Tensor
from covey.schema.images import import_pillow
from covey.urls import shown
from covey.view.pictures import pixels_shape

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_ROWS = 64
MAX_COLUMNS = 32

SIDE = 128
"""Maximum side of a thumbnail in pixels."""
GAP = 4

_BACKGROUND = (236, 236, 236)
_INK = (0, 0, 0)
_TEXT_SIZE = 14
_LINE = 18
_NAME_WIDTH = 180
_MAX_NAME_CHARACTERS = 80

_ENCODED = re.compile(rb"\x89PNG\r\n|\xff\xd8\xff|GIF8|RIFF....WEBP", re.DOTALL)


@dataclass(frozen=True, eq=False)
class SheetRow:
    """A class and the thumbnails of its examples; None for an image without pixels."""

    name: str
    label: int | None
    """Class id; None if the row is not a class."""
    thumbnails: Sequence[Picture | None]


# Image features and thumbnails.


def image_features(dataset: Dataset, number: int) -> list[str]:
    """Return the features that are images, in the order of the module docstring.

    Args:
        dataset: Dataset with the features.
        number: Id of the example in which bytes are inspected.
    """
    kinds = dataset.features
    encoded = [
        name
        for name, kind in kinds.items()
        if isinstance(kind, Image) or (_is_bytes(kind) and _is_encoded(dataset, name, number))
    ]
    tensors = [name for name, kind in kinds.items() if pixels_shape(kind) is not None]
    return encoded + sorted(tensors, key=lambda name: _is_flat(kinds[name]))


def choose_feature(
    dataset: Dataset, number: int, selected: Sequence[str], path: str | None
) -> str | None:
    """Return the image feature of a sheet; None if there is none.

    Args:
        dataset: Dataset with the features.
        number: Id of the example in which bytes are inspected.
        selected: Features to choose from; empty for all.
        path: Path of the sheet that was requested; None if a sheet is optional.

    Raises:
        FeatureError: If a sheet was requested, or a feature selected, and there is no image.
    """
    images = image_features(dataset, number)
    found = [name for name in images if not selected or name in selected]
    if found:
        return found[0]
    if selected and (path is not None or len(selected) == 1):
        kind = describe_feature(dataset.features[selected[0]])
        others = f"images: {', '.join(images)}" if images else "there are no images"
        raise FeatureError(f"it is {kind}, not an image; {others}", feature=selected[0])
    if path is not None:
        raise FeatureError(
            f"{shown(path)} is not written: none of the features "
            f"{', '.join(dataset.features)} is an image",
            option="save",
        )
    return None


def thumbnails(dataset: Dataset, feature: str, ids: Iterable[int]) -> list[Picture | None]:
    """Return pictures of at most :data:`SIDE` pixels per side, enlarged by integers only.

    Raises:
        ExampleError: If an image cannot be decoded.
    """
    numbers = list(ids)
    kind = dataset.features[feature]
    shape = pixels_shape(kind)
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


def _stored(dataset: Dataset, name: str, numbers: Sequence[int]) -> Any:
    """Return the values of a feature of some examples; images stay encoded."""
    features = dataset.features.select([name])
    found: Any = dataset.decode(features, np.array(numbers, np.int64))
    return features.find(found, name)


def _decode(dataset: Dataset, name: str, number: int, data: bytes) -> NDArray[Any]:
    kind = dataset.features[name]
    try:
        image = kind if isinstance(kind, Image) else Image(channels=None)
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


def draw_sheet(rows: Sequence[SheetRow]) -> Picture:
    """Return the sheet: the class names at the left, and the thumbnails in cells of equal size."""
    from PIL import ImageDraw

    pillow = import_pillow()
    font = _CaptionFont()
    captions = [font.caption(row) for row in rows]
    sides = [max(each.size) for row in rows for each in row.thumbnails if each is not None]
    cell = max([*sides, 2 * _LINE])
    left = GAP + max(font.width(line) for lines in captions for line in lines) + 2 * GAP
    columns = max(len(row.thumbnails) for row in rows)
    size = (left + columns * (cell + GAP), GAP + len(rows) * (cell + GAP))
    sheet: Picture = pillow.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    for number, (row, lines) in enumerate(zip(rows, captions, strict=True)):
        top = GAP + number * (cell + GAP)
        middle = top + (cell - len(lines) * _LINE) // 2
        for below, line in enumerate(lines):
            draw.text((GAP, middle + below * _LINE), line, fill=_INK, font=font.font)
        for column, picture in enumerate(row.thumbnails):
            if picture is not None:
                x = left + column * (cell + GAP) + (cell - picture.width) // 2
                y = top + (cell - picture.height) // 2
                sheet.paste(picture, (x, y), picture if picture.mode == "RGBA" else None)
    return sheet


def save_sheet(sheet: Picture, path: str) -> None:
    """Save a sheet in the format of the extension.

    Raises:
        DatasetError: If the file cannot be written.
    """
    try:
        sheet.save(path)
    except OSError as error:
        raise DatasetError(
            f"the contact sheet cannot be saved: {error.strerror or error}", path=shown(path)
        ) from None


class _CaptionFont:
    """The default font of Pillow, which has little more than ASCII."""

    def __init__(self) -> None:
        from PIL import ImageFont

        try:
            self.font = ImageFont.load_default(_TEXT_SIZE)
        except (ImportError, TypeError):  # without FreeType, or before Pillow 10.1
            self.font = ImageFont.load_default()

    def caption(self, row: SheetRow) -> list[str]:
        """Return the name of a row, and its class id if that is not the name."""
        name = self._fit(row.name)
        if row.label is None or row.name == str(row.label):
            return [name]
        return [name, self._fit(f"label {row.label}")]

    def width(self, text: str) -> int:
        """Return the width of a text in pixels."""
        return math.ceil(self.font.getlength(text))

    def _fit(self, name: str) -> str:
        """Return a name in characters of the font, truncated to the width of the column."""
        text = "".join(map(drawable, name[:_MAX_NAME_CHARACTERS]))
        if len(name) <= _MAX_NAME_CHARACTERS and self.width(text) <= _NAME_WIDTH:
            return text
        while self.width(f"{text}...") > _NAME_WIDTH:
            text = text[:-1]
        return f"{text}..."


def drawable(character: str) -> str:
    r"""Return a character of ASCII, its base letters if it is accented, or its escape.

    >>> drawable("a"), drawable("é"), drawable("ж")
    ('a', 'e', '\\u0436')
    """
    if character.isascii() and character.isprintable():
        return character
    if unicodedata.combining(character):
        return ""
    decomposed = unicodedata.normalize("NFKD", character)
    plain = "".join(each for each in decomposed if each.isascii() and each.isprintable())
    return plain or character.encode("unicode_escape").decode()
