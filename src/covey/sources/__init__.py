"""Labelled data in other formats, read as (key, example) pairs.

:func:`open_source` detects the format of a file or directory by its content. Each module of this
package registers the formats that it reads.
"""

from covey.sources import (  # noqa: F401
    audio,
    csv,
    image_table,
    images,
    json,
    npz,
    parquet,
    tar,
    tfrecord,
)
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
