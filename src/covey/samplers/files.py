"""`MultiShotFileSampler`: balanced batches of images in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covey.errors import FeatureError
from covey.samplers.base import Augmenting
from covey.samplers.memory import MultiShotMemorySampler
from covey.schema import Image
from covey.schema.images import check_max_pixels, parse_size, read_pixels
from covey.storage import open_storage


def load_image(
    path: str | os.PathLike[str],
    target_size: int | tuple[int, int] | None = None,
    *,
    max_pixels: int | None = None,
) -> NDArray[np.float32]:
    """Return the image in a file as an array (height, width, 3) with values from 0 to 1.

    Args:
        path: The path or URL of the file.
        target_size: The height and width to resize it to.
        max_pixels: The maximum number of pixels (height x width); 64 million by default.

    Raises:
        FeatureError: If the file is not an image, or exceeds the maximum.
    """
    limit = check_max_pixels(max_pixels)
    storage = open_storage(path)
    data = storage.read(storage.clean(path))
    size = None if target_size is None else parse_size(target_size)
    try:
        pixels = read_pixels(Image((None, None, 3)), data, size, max_pixels=limit)
    except FeatureError as error:
        error.path = os.fspath(path)
        raise
    return pixels.astype(np.float32) / np.float32(255)


class MultiShotFileSampler(MultiShotMemorySampler):
    """Balanced batches of examples that are loaded when they are drawn, such as images in files.

    Args:
        x: The paths of the files, or other arguments of ``load_example_fn``.
        y: The labels of the examples.
        load_example_fn: A function that returns the example for an item of x; by default it loads
            an image. All examples must have the same shape:
            ``functools.partial(load_image, target_size=224)``.
        classes_per_batch, examples_per_class_per_batch, steps_per_epoch, class_list,
            total_examples_per_class, augmenter, warmup, options: As for
            :class:`MultiShotMemorySampler`.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        load_example_fn: Callable[[Any], Any] = load_image,
        classes_per_batch: int = 2,
        examples_per_class_per_batch: int = 2,
        steps_per_epoch: int = 1000,
        class_list: Iterable[Any] | None = None,
        total_examples_per_class: int | None = None,
        augmenter: Augmenting | None = None,
        warmup: int = -1,
        **options: Any,
    ) -> None:
        super().__init__(
            x,
            y,
            classes_per_batch,
            examples_per_class_per_batch,
            steps_per_epoch,
            class_list,
            total_examples_per_class,
            augmenter,
            load_example_fn,
            warmup,
            **options,
        )
