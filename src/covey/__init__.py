"""covey: labelled data to TFRecords, and TFRecords to exactly balanced batches.

Names are resolved when they are first used: ``import covey`` loads numpy and nothing heavier.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.errors import (
        ClosedError,
        CorruptRecordError,
        CoveyError,
        ExampleError,
        FeatureError,
        FormatError,
        SkippedRecordsWarning,
    )
    from covey.features import (
        ClassLabel,
        Feature,
        Features,
        Image,
        Ragged,
        RaggedArray,
        Sparse,
        SparseArray,
        SparseBatch,
        Steps,
        StringArray,
        Tensor,
    )
    from covey.records import Block, RecordReader, RecordWriter, Skipped
    from covey.streaming import read_batches

__version__ = "0.1.0"

_MODULES = {
    "covey.errors": (
        "ClosedError",
        "CorruptRecordError",
        "CoveyError",
        "ExampleError",
        "FeatureError",
        "FormatError",
        "SkippedRecordsWarning",
    ),
    "covey.features": (
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
    ),
    "covey.records": ("Block", "RecordReader", "RecordWriter", "Skipped"),
    "covey.streaming": ("read_batches",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Block",
    "ClassLabel",
    "ClosedError",
    "CorruptRecordError",
    "CoveyError",
    "ExampleError",
    "Feature",
    "FeatureError",
    "Features",
    "FormatError",
    "Image",
    "Ragged",
    "RaggedArray",
    "RecordReader",
    "RecordWriter",
    "Skipped",
    "SkippedRecordsWarning",
    "Sparse",
    "SparseArray",
    "SparseBatch",
    "Steps",
    "StringArray",
    "Tensor",
    "read_batches",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
