"""Decoding of JPEGs on a GPU: encoded images of a batch to pixels on the device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from covey import _core
from covey.adapters.torch.resize import resize
from covey.adapters.torch.tensors import tensor
from covey.arrays import StringArray
from covey.errors import FeatureError, PlanError
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.plan.base import BatchKey
from covey.schema import Image
from covey.schema.pixels import ImageColumn


class EncodedBatch(NamedTuple):
    """A batch whose images are encoded."""

    batch: Any
    """Nested tensors; strings and images are a :class:`StringArray`."""
    request: Any
    """Identity of the batch, for :class:`covey.adapters.torch.StepDataset`."""


def leave_encoded(value: Any) -> Any:
    """Return the tensor of a value; strings and images are returned as they are."""
    return value if isinstance(value, StringArray) else tensor(value)


def encoded_loader(loader: Loader) -> Loader:
    """Return a loader of the same batches whose images are encoded.

    Raises:
        PlanError: If the GPU cannot decode the images of `loader`.
    """
    form = loader.format
    if not isinstance(form, BatchFormat) or not form.has_images:
        raise _refused("the batches have no images that are decoded")
    if form.has_hooks:
        raise _refused("hooks receive decoded images, on the CPU")
    if form.options.pixels.ragged and form.options.flip:
        raise _refused("images of any size are not mirrored")
    features = [form.features[name] for name in form.image_names]
    if any(isinstance(each, Image) and each.dtype != "uint8" for each in features):
        raise _refused("images of 16 bits are PNGs")
    if any(isinstance(each, Image) and each.exif_orientation for each in features):
        raise _refused("images are not rotated")
    # The options of decoded images have their defaults.
    options = replace(
        form.options,
        decode_images=False,
        image_size=None,
        crop="squash",
        flip=False,
        views=1,
        decode="exact",
    )
    return loader.copy(format=BatchFormat(form.examples, options))


def _refused(reason: str) -> PlanError:
    return PlanError(reason, option="decode", found="gpu", allowed="'cpu' for these batches")


def find_decoder(device: torch.device) -> Any:
    """Return ``torchvision.io``, or None on the CPU if it is not installed.

    Raises:
        PlanError: If it is not installed.
    """
    if importlib.util.find_spec("torchvision") is not None:
        return importlib.import_module("torchvision.io")
    if device.type == "cpu":
        return None
    raise PlanError(
        "torchvision, which decodes images on the GPU, is not installed",
        option="decode",
        found="gpu",
        allowed="'cpu'",
        remedy="run: pip install 'covey[gpu]'",
    )


class ImageDecoder:
    """Decodes the images of a batch on a device.

    JPEGs are decoded by torchvision, on a GPU by nvJPEG. Images that it does not decode (other
    formats, other color spaces, errors) are decoded by covey on the CPU, and copied.

    Args:
        loader: A loader whose images are decoded.
        build: Function from a request to the batch with images decoded on the CPU. It is called if
            an image cannot be decoded, and raises the error of the record.
    """

    def __init__(self, loader: Loader, build: Callable[[Any], Any]) -> None:
        form = loader.format
        assert isinstance(form, BatchFormat)
        self._build = build
        self._plan = loader.plan
        self._pixels = form.options.pixels
        self._max_pixels = form.examples.max_pixels
        self._positions = _positions(form)

    def __call__(self, encoded: EncodedBatch, device: torch.device) -> Any:
        """Return the batch with the images as tensors on `device`, (rows, height, width, channels).

        Images of any size are a list of tensors, if ``image_size="ragged"``; several views are a
        tuple.
        """
        request = encoded.request
        plan = self._plan.for_rank(request.rank, request.world_size, self._plan.mode)
        key = plan.key(0, request.batch)
        try:
            return self._fill(self._positions, encoded.batch, key, device)
        except FeatureError:
            return self._build(request)

    def _fill(self, positions: Any, batch: Any, key: BatchKey, device: torch.device) -> Any:
        if isinstance(positions, _Position):
            return self._decode(positions, batch, key, device)
        if isinstance(batch, Mapping):
            return {
                name: self._fill(positions[name], each, key, device) for name, each in batch.items()
            }
        if isinstance(batch, tuple):
            parts = zip(positions, batch, strict=True)
            return tuple(self._fill(position, each, key, device) for position, each in parts)
        return tensor(batch)

    def _decode(
        self, position: _Position, column: StringArray, key: BatchKey, device: torch.device
    ) -> Any:
        feature = position.feature
        images = self._decode_jpegs(feature, column, device)
        for row, each in enumerate(images):
            if each is None:
                pixels = feature.decode(column[row], max_pixels=self._max_pixels)
                images[row] = torch.from_numpy(pixels).to(device).permute(2, 0, 1)
        if self._pixels.ragged:
            return [each.permute(1, 2, 0).contiguous() for each in images]
        if self._pixels.size is None and len({tuple(each.shape) for each in images}) > 1:
            raise FeatureError("images of different sizes")  # the batch is built on the CPU
        assert position.column is not None
        size = position.column.shape[:2]
        spec = position.column.spec
        views = []
        for view in range(self._pixels.views):
            framings = [
                spec.box(each.shape[1], each.shape[2], key.seed, key.step, key.row + row, view)
                for row, each in enumerate(images)
            ]
            boxes = np.array([each[:4] for each in framings], np.int64)
            boxes[:, 2:] += boxes[:, :2]  # bottom and right instead of height and width
            flips = np.array([is_flipped for *_, is_flipped in framings], bool)
            views.append(resize(images, boxes, flips, size))
        return views[0] if len(views) == 1 else tuple(views)

    def _decode_jpegs(self, feature: Image, column: StringArray, device: torch.device) -> list[Any]:
        """Return the image of each row, (channels, height, width); None if it is not decoded."""
        images: list[Any] = [None] * len(column)
        torchvision = find_decoder(device)
        height, width, channels = feature.shape
        if torchvision is None or channels not in (None, 1, 3) or len(column) == 0:
            return images
        shapes = _core.jpeg_shapes(column.data, column.offsets).reshape(-1, 3)
        heights, widths, stored = shapes.T
        can_decode = (stored > 0) & (heights * widths <= self._max_pixels)
        for expected, found in ((height, heights), (width, widths)):
            if expected is not None:
                can_decode &= found == expected
        data = column.data if column.data.flags.writeable else column.data.copy()
        begins, lengths = column.offsets[:-1].tolist(), np.diff(column.offsets).tolist()
        parts = torch.from_numpy(data)
        modes = torchvision.ImageReadMode
        for count, mode in ((1, modes.GRAY), (3, modes.RGB)):
            chosen = can_decode & (stored == count if channels is None else channels == count)
            rows = np.flatnonzero(chosen).tolist()
            encoded = [parts[begins[row] : begins[row] + lengths[row]] for row in rows]
            decoded = _decode_all(torchvision.decode_jpeg, encoded, mode, device)
            for row, each in zip(rows, decoded, strict=True):
                images[row] = each
        return images


def _decode_all(decode: Any, encoded: list[Any], mode: Any, device: torch.device) -> list[Any]:
    if not encoded:
        return []
    try:
        return list(decode(encoded, mode=mode, device=device))
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # of any image
        if len(encoded) == 1:
            return [None]
    middle = len(encoded) // 2
    halves = encoded[:middle], encoded[middle:]
    return [image for half in halves for image in _decode_all(decode, half, mode, device)]


class _Position(NamedTuple):
    """The place of a column of images in a batch."""

    feature: Image
    column: ImageColumn | None
    """How its images are decoded; None if they keep their sizes."""


def _positions(form: BatchFormat) -> Any:
    """Return the structure of a batch, with a :class:`_Position` in place of images."""
    columns: dict[str, Any] = dict.fromkeys(form.features)
    for name in form.image_names:
        feature = form.features[name]
        assert isinstance(feature, Image)
        columns[name] = _Position(
            feature, None if form.options.pixels.ragged else form.images[name]
        )
    has_labels = form.examples.label is not None
    nested = form.features.nest(columns)
    return form.compose(nested, 0 if has_labels else None, BatchKey(0, 0))
