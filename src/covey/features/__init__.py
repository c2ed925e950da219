"""The schema of a dataset, and the way between examples and ``tf.train.Example`` records."""

from covey.features.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.features.images import Image
from covey.features.kinds import ClassLabel, Feature, Tensor
from covey.features.schema import Features
from covey.features.structures import Ragged, Sparse, Steps

__all__ = [
    "ClassLabel",
    "Feature",
    "Features",
    "Image",
    "Ragged",
    "RaggedArray",
    "Sparse",
    "SparseArray",
    "SparseBatch",
    "Steps",
    "StringArray",
    "Tensor",
]
