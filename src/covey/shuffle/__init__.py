"""The order of records: key hashes, and external merge sort."""

from covey.shuffle.external_sort import Spool
from covey.shuffle.keys import Key, OrderedRecords, Part, RecordOrder, hash_keys, hash_positions

__all__ = [
    "Key",
    "OrderedRecords",
    "Part",
    "RecordOrder",
    "Spool",
    "hash_keys",
    "hash_positions",
]
