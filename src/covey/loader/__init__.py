"""Batches of a plan, gathered ahead of whoever trains on them."""

from covey.loader.examples import Examples
from covey.loader.following import Follower
from covey.loader.loader import Loader

__all__ = ["Examples", "Follower", "Loader"]
