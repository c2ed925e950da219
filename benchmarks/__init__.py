"""Measurements against others: both sides in turn in one run, medians, versions printed."""
