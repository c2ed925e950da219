"""Record ids to records and decoded columns, from shards on any storage."""

from covey.reading.gather import Gatherer, Table

__all__ = ["Gatherer", "Table"]
