"""Open datasets: random access to examples by record id and by class."""
