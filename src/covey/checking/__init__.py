"""Looking after datasets: what is wrong with one, what can be saved, what is in it."""

from covey.checking.making import Indexed, make_index
from covey.checking.overview import Info, SplitOverview, info
from covey.checking.repairing import Repaired, repair
from covey.checking.report import Problem, Report
from covey.checking.verifying import verify

__all__ = [
    "Indexed",
    "Info",
    "Problem",
    "Repaired",
    "Report",
    "SplitOverview",
    "info",
    "make_index",
    "repair",
    "verify",
]
