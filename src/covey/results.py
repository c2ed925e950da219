"""What :func:`covey.write`, ``info``, ``verify``, ``repair`` and ``build_index`` return."""

from covey.maintenance.build_index import IndexResult
from covey.maintenance.info import Info
from covey.maintenance.repair import RepairResult
from covey.maintenance.report import Problem, Report
from covey.tfrecord.reader import Skipped
from covey.writing.inputs import SkippedExample
from covey.writing.write import WriteResult

__all__ = [
    "IndexResult",
    "Info",
    "Problem",
    "RepairResult",
    "Report",
    "Skipped",
    "SkippedExample",
    "WriteResult",
]
