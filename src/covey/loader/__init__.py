"""Batches of a plan, gathered ahead of a caller that trains on them."""

from covey.loader.batch import Examples
from covey.loader.loader import Loader
from covey.loader.step_reader import StepReader

__all__ = ["Examples", "Loader", "StepReader"]
