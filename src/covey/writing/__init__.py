"""The way of examples into a dataset: taken in, encoded, ordered, written, committed."""
