"""What a loader requires of a dataset: random access to examples, also for the native core."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError
from covey.schema import Features
from covey.schema.codec import RowArray
from covey.schema.diagnostics import RecordLocation
from covey.schema.pixels import ImageColumn

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NativeSource:
    """What the native core needs to read and decode examples without Python.

    Args:
        gather: Mapped shards.
        decoder: Decoder of the features.
        check: Level of verification of a record frame.
        label: Column of the class id, or -1.
        has_labels: Whether the index stores class ids; they are compared with those of the plan.
        numbers: Record id of each example, if they differ from the example ids.
        class_ids: Class id of each example, if they differ from those of the index.
        columns: Shape and dtype of one row of each column.
        images: For each column of decoded images its index, and how images are decoded.
    """

    gather: _core.Gather
    decoder: _core.Decoder
    check: int
    label: int
    has_labels: bool
    numbers: Ids | None
    class_ids: Ids | None
    columns: tuple[RowArray, ...]
    images: tuple[tuple[int, ImageColumn], ...] = ()

    @property
    def add_labels(self) -> bool:
        """Whether the class ids are appended as a column."""
        return self.label < 0 and self.has_labels

    @property
    def outputs(self) -> tuple[RowArray, ...]:
        """Shape and dtype of one row of each output.

        The columns, the labels if they are added, and the further views of images.
        """
        labels: list[RowArray] = [((), np.dtype(np.int64))] if self.add_labels else []
        further: list[RowArray] = []
        for _, image in self.images:
            further += [(image.shape, image.dtype)] * (image.views - 1)
        return (*self.columns, *labels, *further)

    @property
    def views(self) -> dict[int, list[int]]:
        """The outputs of each column of images, by the index of the column."""
        following = len(self.columns) + self.add_labels
        outputs: dict[int, list[int]] = {}
        for column, image in self.images:
            outputs[column] = [column, *range(following, following + image.views - 1)]
            following += image.views - 1
        return outputs

    @property
    def row_bytes(self) -> int:
        """Size in bytes of one decoded example."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.outputs)


class Examples(Protocol):
    """Random access to examples by id: the interface that a loader requires of a dataset."""

    @property
    def features(self) -> Features:
        """Features of an example."""

    @property
    def label(self) -> str | None:
        """Name of the label feature, or None."""

    def decode(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Return examples by column; images remain encoded."""

    def labels_of(self, ids: Ids) -> Ids:
        """Return the class ids of examples."""

    def place(self, number: int) -> RecordLocation:
        """Return the location of an example, for error messages."""

    @property
    def max_pixels(self) -> int:
        """Maximum number of pixels of an image that is decoded."""

    def native_source(
        self, features: Features, ids: Ids, images: Mapping[str, ImageColumn]
    ) -> NativeSource | None:
        """Return what the native core needs to read examples, or None if it cannot read them.

        Args:
            features: The features to decode.
            ids: The examples that are read first; their shards are opened now.
            images: How the images of each feature are decoded.
        """


def check_classes(examples: Examples, ids: Ids, classes: Ids) -> None:
    """Compare the class ids of examples in the class table of the index with those in its rows.

    Raises:
        FormatError: If they differ.
    """
    try:
        agree = np.array_equal(examples.labels_of(ids), classes)
    except IndexError:
        agree = False
    if not agree:
        raise FormatError(
            f"the class table of the index lists records of other classes under the class ids "
            f"{np.unique(classes)[:5]}",
            remedy="rebuild the index with `covey index`",
        )
