"""Reading and writing of TFRecord files.

A file is a sequence of frames, all little-endian::

    u64 length | u32 masked CRC-32C of the length | the data | u32 masked CRC-32C of the data

and may be compressed. Records are processed in blocks, many frames in one buffer, because single
Python objects are slow; :class:`RecordReader` and :class:`RecordWriter` also have an interface for
single records.
"""

from typing import TYPE_CHECKING, Any

from covey.tfrecord.block import LOCATION_DTYPE, Block

if TYPE_CHECKING:
    from covey.tfrecord.reader import RecordReader
    from covey.tfrecord.writer import RecordWriter

__all__ = ["LOCATION_DTYPE", "Block", "RecordReader", "RecordWriter"]


def __getattr__(name: str) -> Any:
    # Not needed for random access by an index.
    if name == "RecordReader":
        from covey.tfrecord.reader import RecordReader

        return RecordReader
    if name == "RecordWriter":
        from covey.tfrecord.writer import RecordWriter

        return RecordWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
