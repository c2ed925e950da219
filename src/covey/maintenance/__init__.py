"""Looking after datasets: what is wrong with one, what can be saved, what is in it."""

from covey.maintenance.build_index import Indexed, make_index
from covey.maintenance.info import Info, SplitOverview, info
from covey.maintenance.repair import Repaired, repair
from covey.maintenance.report import Problem, Report
from covey.maintenance.verify import verify

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
