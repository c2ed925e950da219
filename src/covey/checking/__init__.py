"""Looking after datasets: what is wrong with one, what can be saved, what is in it."""

from covey.checking.repairing import Repaired, repair
from covey.checking.report import Problem, Report
from covey.checking.verifying import verify

__all__ = ["Problem", "Repaired", "Report", "repair", "verify"]
