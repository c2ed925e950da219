"""Arrays of batches that numpy has no type for."""

from covey.schema.arrays import RaggedArray, SparseArray, SparseBatch, StringArray

__all__ = ["RaggedArray", "SparseArray", "SparseBatch", "StringArray"]
