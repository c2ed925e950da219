"""TFRecord files: reading and writing framed records.

A file is nothing but frames, all little-endian::

    u64 length | u32 masked CRC-32C of the length | the data | u32 masked CRC-32C of the data

and may be compressed as a whole. Records move in blocks, many whole frames in one buffer, because
returning single records is what makes other readers slow; :class:`RecordReader` and
:class:`RecordWriter` also deal in single records, for people.
"""

from covey.tfrecord.block import Block
from covey.tfrecord.locations import LOCATION_DTYPE
from covey.tfrecord.reader import RecordReader
from covey.tfrecord.writer import RecordWriter

__all__ = ["LOCATION_DTYPE", "Block", "RecordReader", "RecordWriter"]
