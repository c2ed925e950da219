"""Record ids to records and decoded columns, from shards on any storage."""

from covey.reading.gather import Gatherer
from covey.reading.rows import Table

__all__ = ["Gatherer", "Table"]
