"""What a loader needs to know of a dataset."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from covey import _core
from covey.errors import FormatError
from covey.features import Features
from covey.features.explain import Place

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NativeSource:
    """What the native core needs to read examples by itself."""

    gather: _core.Gather
    decoder: _core.Decoder
    check: int
    """How much of a frame is checked."""
    label: int
    """The column that holds the class, or -1;"""
    has_labels: bool
    """in which case the index may have it. It is compared with what a plan says."""
    numbers: Ids | None
    """The numbers of examples among all records, if they are others."""
    columns: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    """The shape and type of a row of each column."""

    @property
    def row_bytes(self) -> int:
        """The memory of one example."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.columns)


class Examples(Protocol):
    """Examples by their numbers: a dataset."""

    @property
    def features(self) -> Features:
        """What an example holds."""

    @property
    def label(self) -> str | None:
        """What tells the class."""

    def decode(self, features: Features, ids: Ids) -> dict[str, Any]:
        """Examples by column, as they are stored: images are not decoded."""

    def labels_of(self, ids: Ids) -> Ids:
        """The numbers of the classes of examples."""

    def place(self, number: int) -> Place:
        """Where an example is, for messages."""

    @property
    def max_pixels(self) -> int:
        """Most pixels of an image that is decoded."""

    def native_source(self, features: Features, ids: Ids) -> NativeSource | None:
        """What the native core needs to read examples by itself; None if it cannot.

        Args:
            features: What of them.
            ids: Those that are wanted first: their files are opened now.
        """


def check_classes(examples: Examples, ids: Ids, classes: Ids) -> None:
    """Compare the classes of examples by the class table of an index with those by its rows.

    Raises:
        FormatError: If they differ.
    """
    try:
        agree = np.array_equal(examples.labels_of(ids), classes)
    except IndexError:
        agree = False
    if not agree:
        raise FormatError(
            f"the index has records in the classes {np.unique(classes)[:5]} that are not of "
            "them; rebuild it with `covey index`"
        )
