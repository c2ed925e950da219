"""Changing the examples of a batch by chance, such that seed and step say how."""

from covey.augmenters.base import Augmenter
from covey.augmenters.contrastive import ContrastiveAugmenter

__all__ = ["Augmenter", "ContrastiveAugmenter"]
