"""Datasets that are open: random access to examples, with known classes."""

from covey.dataset.dataset import Dataset
from covey.dataset.open import open  # noqa: A004

__all__ = ["Dataset", "open"]
