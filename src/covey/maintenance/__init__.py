"""Maintenance of datasets: verify, repair, info and build_index."""
