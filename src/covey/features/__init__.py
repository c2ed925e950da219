"""The schema of a dataset, and the way between examples and ``tf.train.Example`` records."""

from covey.features.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.features.kinds import ClassLabel, Feature, Image, Ragged, Sparse, Steps, Tensor
from covey.features.schema import Features

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
