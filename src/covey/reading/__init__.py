"""Record ids to records and decoded columns, from shards on any storage."""

from typing import TYPE_CHECKING, Any

from covey.reading.gather import Gatherer
from covey.reading.rows import Table

if TYPE_CHECKING:
    from covey.reading.stream import read_batches

__all__ = ["Gatherer", "Table", "read_batches"]


def __getattr__(name: str) -> Any:
    if name == "read_batches":  # not needed to open a dataset
        from covey.reading.stream import read_batches

        return read_batches
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
