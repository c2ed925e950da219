"""Record numbers to records and decoded columns, from shards wherever they are."""

from covey.reading.gather import Gatherer
from covey.reading.local_shards import Table

__all__ = ["Gatherer", "Table"]
