"""Record numbers to records and decoded columns, from shards wherever they are."""

from covey.gather.gatherer import Gatherer
from covey.gather.shards import Table

__all__ = ["Gatherer", "Table"]
