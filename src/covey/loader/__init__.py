"""Loaders: build the batches of a plan, and prefetch them."""

from covey.loader.loader import Loader
from covey.loader.options import LoadOptions

__all__ = ["LoadOptions", "Loader"]
