"""Labelled data in other formats, read as (key, example) pairs.

:func:`open_source` finds the format of a file or directory by names. Each module of this package
registers the formats that it reads.
"""

# In the order of the rules of open_source.
from covey.sources import tfrecord, npz, webdataset, tables, arrow, directories  # noqa: F401, I001
from covey.sources.registry import KINDS, Kind, ProbedPath, open_source, open_splits, register
from covey.sources.source import Item, LazyItems, Source, SourceOptions, SourceSplits
from covey.sources.tfrecord import from_tfds_builder

__all__ = [
    "KINDS",
    "Item",
    "Kind",
    "LazyItems",
    "ProbedPath",
    "Source",
    "SourceOptions",
    "SourceSplits",
    "from_tfds_builder",
    "open_source",
    "open_splits",
    "register",
]
