"""Check, repair, describe and index datasets."""
