"""Benchmarks: all sides in turn in one run, medians, versions printed."""
