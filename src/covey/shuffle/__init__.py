"""Bringing records into order, the same in every run, with bounded memory."""

from covey.shuffle.ordering import Key, Ordered, Ordering, Part, hash_keys, hash_positions
from covey.shuffle.spool import Spool

__all__ = ["Key", "Ordered", "Ordering", "Part", "Spool", "hash_keys", "hash_positions"]
