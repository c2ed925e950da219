"""Augmenters: random changes of the examples of a batch, as functions of seed and step."""

from covey.augmenters.contrastive import Augmenter, ContrastiveAugmenter

__all__ = ["Augmenter", "ContrastiveAugmenter"]
