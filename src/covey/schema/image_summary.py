"""Summary of the encoded images of a split: formats, sizes, channels and bits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from covey import _core
from covey.schema.features import Features
from covey.schema.images import Image
from covey.tfrecord import Block

Size = tuple[int, int]


@dataclass(frozen=True)
class ImageSummary:
    """Counts of the images of one feature."""

    formats: Mapping[str, int] = field(default_factory=dict)
    """Number of images of each format: ``"jpeg"``, ``"png"``, ``"gif"``, ``"bmp"``, ``"webp"``."""
    channels: Mapping[int, int] = field(default_factory=dict)
    """Number of images by channels, as they are stored."""
    bits: Mapping[int, int] = field(default_factory=dict)
    """Number of images by bits of a channel."""
    oriented: int = 0
    """Number of images with an EXIF orientation other than 1."""
    unknown: int = 0
    """Number of images in other formats, such as TIFF. Only they are not counted above."""
    smallest: Size | None = None
    """Height and width of the image of the fewest pixels."""
    largest: Size | None = None
    """Height and width of the image of the most pixels; equal to `smallest` only if all images have
    one size."""

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(self.formats.values()) + self.unknown

    def __add__(self, other: ImageSummary) -> ImageSummary:
        sizes = [
            size
            for each in (self, other)
            for size in (each.smallest, each.largest)
            if size is not None
        ]
        return ImageSummary(
            _add(self.formats, other.formats),
            _add(self.channels, other.channels),
            _add(self.bits, other.bits),
            self.oriented + other.oriented,
            self.unknown + other.unknown,
            min(sizes, key=_order, default=None),
            max(sizes, key=_order, default=None),
        )

    def __str__(self) -> str:
        """Return the summary as one line.

        >>> str(ImageSummary({"jpeg": 9}, {3: 9}, {8: 9}, 0, 0, (256, 256), (256, 256)))
        '9 images: jpeg; all 256 x 256; 3 channels; 8 bits'
        """
        parts = [_listed(self._all_formats())]
        if self.smallest is not None and self.largest is not None:
            small, large = ("{} x {}".format(*size) for size in (self.smallest, self.largest))
            parts.append(f"all {small}" if small == large else f"{small} to {large}")
            parts.append(f"{_listed(self.channels)} channels")
            parts.append(f"{_listed(self.bits)} bits")
        if self.oriented:
            parts.append(f"{self.oriented:,} with an EXIF orientation")
        plural = "" if self.images == 1 else "s"
        return f"{self.images:,} image{plural}: {'; '.join(parts)}"

    def _all_formats(self) -> dict[str, int]:
        return {**self.formats, **({"other": self.unknown} if self.unknown else {})}

    def to_json(self) -> dict[str, Any]:
        """Return the summary as values of JSON, whose keys are strings."""
        return {
            name: {str(key): count for key, count in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, content: Any) -> ImageSummary:
        """Return the summary of :meth:`to_json`, which is not trusted.

        Raises:
            ValueError, TypeError, LookupError: If the content is not valid.
        """
        counts = {name: _counts(content[name]) for name in ("formats", "channels", "bits")}
        return cls(
            counts["formats"],
            {int(key): count for key, count in counts["channels"].items()},
            {int(key): count for key, count in counts["bits"].items()},
            _count(content["oriented"]),
            _count(content["unknown"]),
            _size(content["smallest"]),
            _size(content["largest"]),
        )


class ImageSurvey:
    """Summaries of the images of records, which may be added by several threads.

    Args:
        features: Features of the records.
    """

    def __init__(self, features: Features) -> None:
        self._names = [name for name, kind in features.items() if isinstance(kind, Image)]
        self._totals = {name: ImageSummary() for name in self._names}
        self._lock = threading.Lock()

    def add(self, block: Block) -> None:
        """Add the records of a block."""
        if not self._names:
            return
        survey = _core.ImageSurvey(self._names)
        survey.add_records(block.data, block.offsets, block.lengths)
        with self._lock:
            for name, found in zip(self._names, survey.results(), strict=True):
                self._totals[name] += ImageSummary(*found)

    def summaries(self) -> dict[str, ImageSummary]:
        """Return the summary of each image feature."""
        return dict(self._totals)


def join_summaries(
    parts: Iterable[Mapping[str, ImageSummary] | None],
) -> dict[str, ImageSummary] | None:
    """Return the summaries of all parts of a split; None if one is unknown."""
    total: dict[str, ImageSummary] = {}
    for part in parts:
        if part is None:
            return None
        for name, summary in part.items():
            total[name] = total.get(name, ImageSummary()) + summary
    return total


def _add(a: Mapping[Any, int], b: Mapping[Any, int]) -> dict[Any, int]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in sorted({*a, *b})}


def _order(size: Size) -> tuple[int, int]:
    return size[0] * size[1], size[0]


def _listed(counts: Mapping[Any, int]) -> str:
    """Return the keys, with their counts if there are several."""
    if len(counts) == 1:
        return str(next(iter(counts)))
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{key} ({count:,})" for key, count in ordered)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} is not a number of images")
    return value


def _counts(content: Any) -> dict[str, int]:
    if not isinstance(content, dict) or len(content) > 64:
        raise ValueError("the counts of images are not a dict of at most 64 numbers")
    return {str(key)[:16]: _count(value) for key, value in content.items()}


def _size(content: Any) -> Size | None:
    if content is None:
        return None
    height, width = content
    return _count(height), _count(width)
