"""Labelled data as it lies about, read as (key, example) pairs.

A source is opened with :func:`open_source`, which finds out what it is. Each module here registers
the kinds that it reads.
"""

from covey.sources import csv, image_folder, image_table, json, npz, parquet, tfrecord  # noqa: F401
from covey.sources.registry import KINDS, Kind, ProbedPath, open_source, register
from covey.sources.source import Item, LazyItems, Source
from covey.sources.tfds import from_tfds_builder

__all__ = [
    "KINDS",
    "Item",
    "Kind",
    "LazyItems",
    "ProbedPath",
    "Source",
    "from_tfds_builder",
    "open_source",
    "register",
]
