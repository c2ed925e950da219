"""Decoding of JPEGs on a GPU: encoded images of a batch to pixels on the device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from covey.adapters.jpeg import JpegHeaders, read_headers
from covey.adapters.torch.resize import resize
from covey.adapters.torch.tensors import tensor
from covey.arrays import StringArray
from covey.errors import FeatureError, PlanError
from covey.loader import Loader
from covey.loader.batch import BatchFormat
from covey.plan.base import BatchKey
from covey.schema import Image
from covey.schema.pixels import PixelOptions


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
    pixels = form.options.pixels
    if pixels.crop != "squash" or pixels.flip or pixels.views > 1:
        raise _refused("crop=, flip= and views= are applied while images are decoded")
    if any(each.dtype != "uint8" for each in _images(form).values()):
        raise _refused("images of 16 bits are PNGs")
    options = replace(form.options, decode_images=False, image_size=None)
    return loader.copy(format=BatchFormat(form.examples, options))


def _refused(reason: str) -> PlanError:
    return PlanError(reason, option="decode", found="gpu", allowed="'cpu' for these batches")


def _images(form: BatchFormat) -> dict[str, Image]:
    kinds = {name: form.features[name] for name in form.names}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, Image)}


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
        remedy="run: pip install torchvision",
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
        self._pixels = form.options.pixels
        self._max_pixels = form.examples.max_pixels
        self._positions = _positions(form)

    def __call__(self, encoded: EncodedBatch, device: torch.device) -> Any:
        """Return the batch with the images as tensors on `device`, (rows, height, width, channels).

        Images of any size are a list of tensors, if ``image_size="ragged"``.
        """
        try:
            return self._fill(self._positions, encoded.batch, device)
        except FeatureError:
            return self._build(encoded.request)

    def _fill(self, positions: Any, batch: Any, device: torch.device) -> Any:
        if isinstance(positions, Image):
            return self._decode(positions, batch, device)
        if isinstance(batch, Mapping):
            return {key: self._fill(positions[key], each, device) for key, each in batch.items()}
        if isinstance(batch, tuple):
            parts = zip(positions, batch, strict=True)
            return tuple(self._fill(position, each, device) for position, each in parts)
        return tensor(batch)

    def _decode(self, feature: Image, column: StringArray, device: torch.device) -> Any:
        headers = read_headers(column.data, column.offsets)
        images = self._decode_jpegs(feature, column, headers, device)
        for row, each in enumerate(images):
            if each is None:
                pixels = feature.decode(column[row], max_pixels=self._max_pixels)
                images[row] = torch.from_numpy(pixels).to(device).permute(2, 0, 1)
        return _stack(images, self._pixels)

    def _decode_jpegs(
        self, feature: Image, column: StringArray, headers: JpegHeaders, device: torch.device
    ) -> list[Any]:
        """Return the image of each row, (channels, height, width); None if it is not decoded."""
        images: list[Any] = [None] * len(column)
        torchvision = find_decoder(device)
        height, width, channels = feature.shape
        if torchvision is None or channels not in (None, 1, 3) or len(column) == 0:
            return images
        can_decode = (headers.components > 0) & (
            headers.heights * headers.widths <= self._max_pixels
        )
        for expected, found in ((height, headers.heights), (width, headers.widths)):
            if expected is not None:
                can_decode &= found == expected
        data = column.data if column.data.flags.writeable else column.data.copy()
        begins, lengths = column.offsets[:-1].tolist(), np.diff(column.offsets).tolist()
        parts = torch.from_numpy(data)
        modes = torchvision.ImageReadMode
        for count, mode in ((1, modes.GRAY), (3, modes.RGB)):
            chosen = can_decode & (
                headers.components == count if channels is None else channels == count
            )
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


def _boxes(
    pixels: PixelOptions, images: Sequence[torch.Tensor]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the part of each image that is resized: top, left, bottom, right; and the flips."""
    boxes = np.array([(0, 0, each.shape[1], each.shape[2]) for each in images], np.int64)
    return boxes, np.zeros(len(images), bool)


def _stack(images: list[torch.Tensor], pixels: PixelOptions) -> Any:
    """Return images as one tensor, (rows, height, width, channels)."""
    if pixels.ragged:
        return [each.permute(1, 2, 0).contiguous() for each in images]
    if pixels.size is not None:
        boxes, flips = _boxes(pixels, images)
        return resize(images, boxes, flips, pixels.size)
    shapes = {tuple(each.shape) for each in images}
    if len(shapes) > 1:
        raise FeatureError("images of different sizes")  # the batch is built on the CPU
    return torch.stack(images).permute(0, 2, 3, 1).contiguous()


def _positions(form: BatchFormat) -> Any:
    """Return the structure of a batch, with the feature of an image in place of its column."""
    images = _images(form)
    columns = form.features.nest({name: images.get(name) for name in form.features})
    has_labels = form.examples.label is not None
    return form.compose(columns, 0 if has_labels else None, BatchKey(0, 0))
