"""Open datasets: random access to examples, with known classes."""
