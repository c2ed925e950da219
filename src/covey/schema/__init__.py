"""The schema of a dataset, and the way between examples and ``tf.train.Example`` records."""

from covey.arrays import RaggedArray, SparseArray, SparseBatch, StringArray
from covey.schema.audio import Audio
from covey.schema.features import Features
from covey.schema.images import Image
from covey.schema.tensor import Steps, Tensor
from covey.schema.types import ClassLabel, Feature, Ragged, Sparse

__all__ = [
    "Audio",
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
