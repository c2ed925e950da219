"""Bringing records into order, the same in every run, with bounded memory."""

from covey.shuffle.external_sort import Spool
from covey.shuffle.keys import Key, Ordered, Ordering, Part, hash_keys, hash_positions

__all__ = ["Key", "Ordered", "Ordering", "Part", "Spool", "hash_keys", "hash_positions"]
