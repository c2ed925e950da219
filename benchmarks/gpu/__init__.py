"""Measurements on a machine with a GPU; see run.sh."""
