"""covey: labelled data to TFRecords, and TFRecords to exactly balanced batches.

Names are resolved when they are first used: ``import covey`` loads numpy and nothing heavier.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.classes import ClassTable
    from covey.dataset import Dataset, open  # noqa: A004
    from covey.errors import (
        AccessRefusedError,
        ClosedError,
        CommittedError,
        CorruptRecordError,
        CoveyError,
        DatasetError,
        DatasetExistsError,
        DuplicateKeyError,
        ExampleError,
        FeatureError,
        FileChangedError,
        FileMissingError,
        FormatError,
        PlanError,
        SkippedRecordsWarning,
        SmallClassesWarning,
        SourceError,
        StorageError,
    )
    from covey.index.format import Shard
    from covey.loader import Loader
    from covey.maintenance import (
        Indexed,
        Info,
        Problem,
        Repaired,
        Report,
        info,
        make_index,
        repair,
        verify,
    )
    from covey.reading.stream import read_batches
    from covey.schema import (
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
    from covey.sources import Source, open_source
    from covey.tfrecord import Block, RecordReader, RecordWriter, Skipped
    from covey.writing.inputs import LeftOut
    from covey.writing.write import Written, write

__version__ = "0.1.0"

# In the order of the data's way.
_MODULES = (
    "covey.errors",
    "covey.tfrecord",
    "covey.schema",
    "covey.reading.stream",
    "covey.sources",
    "covey.writing.shards",
    "covey.classes",
    "covey.writing.inputs",
    "covey.writing.write",
    "covey.loader",
    "covey.dataset",
    "covey.maintenance",
)

__all__ = [
    "AccessRefusedError",
    "Block",
    "ClassLabel",
    "ClassTable",
    "ClosedError",
    "CommittedError",
    "CorruptRecordError",
    "CoveyError",
    "Dataset",
    "DatasetError",
    "DatasetExistsError",
    "DuplicateKeyError",
    "ExampleError",
    "Feature",
    "FeatureError",
    "Features",
    "FileChangedError",
    "FileMissingError",
    "FormatError",
    "Image",
    "Indexed",
    "Info",
    "LeftOut",
    "Loader",
    "PlanError",
    "Problem",
    "Ragged",
    "RaggedArray",
    "RecordReader",
    "RecordWriter",
    "Repaired",
    "Report",
    "Shard",
    "Skipped",
    "SkippedRecordsWarning",
    "SmallClassesWarning",
    "Source",
    "SourceError",
    "Sparse",
    "SparseArray",
    "SparseBatch",
    "Steps",
    "StorageError",
    "StringArray",
    "Tensor",
    "Written",
    "info",
    "make_index",
    "open",
    "open_source",
    "read_batches",
    "repair",
    "verify",
    "write",
]


# By the names of their modules: `covey.samplers.MultiShotMemorySampler`.
_SUBMODULES = ("adapters", "augmenters", "plan", "samplers", "writer")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"covey.{name}")
    if name in __all__:
        for module in map(importlib.import_module, _MODULES):
            if hasattr(module, name):
                value = getattr(module, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module 'covey' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
