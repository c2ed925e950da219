"""Record ids to records and decoded columns, from shards on any storage."""

from covey.reading.gather import Gatherer
from covey.reading.local_shards import Table
from covey.reading.stream import read_batches

__all__ = ["Gatherer", "Table", "read_batches"]
