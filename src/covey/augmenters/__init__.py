"""Augmenters: random changes of the examples of a batch, as functions of seed and step."""

from covey.augmenters.base import Augmenter
from covey.augmenters.contrastive import ContrastiveAugmenter

__all__ = ["Augmenter", "ContrastiveAugmenter"]
