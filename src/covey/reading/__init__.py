"""Read records and decoded columns by record id, from shards in any storage."""

from covey.reading.gather import Gatherer
from covey.reading.open_shards import Table
from covey.reading.stream import read_batches

__all__ = ["Gatherer", "Table", "read_batches"]
