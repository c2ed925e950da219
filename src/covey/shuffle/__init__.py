"""The order of records: key hashes, and external sort by runs and buckets."""

from covey.shuffle.keys import Key, RecordOrder, hash_keys, hash_positions
from covey.shuffle.runs import Spool

__all__ = ["Key", "RecordOrder", "Spool", "hash_keys", "hash_positions"]
