"""`hetcomm bench`: collectives and messages of any backend, measured side by side and checked.

For programs: `launch.start` runs the ranks of a `Settings`, and a `Page` collects their rows. In a
rank, a `ControlChannel` exchanges values outside the measured backends, `open_backends` joins the
ranks in every backend, and `measure` returns a `Row` for each backend and `Case`.
"""

from hetcomm.bench import launch
from hetcomm.bench.backends import Backend, Operation, open_backends
from hetcomm.bench.case import KINDS, Case, case_of
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.error import BenchError
from hetcomm.bench.gap import Gap
from hetcomm.bench.measure import Effort, measure
from hetcomm.bench.progress import Page
from hetcomm.bench.row import Row
from hetcomm.bench.settings import Settings

__all__ = [
    "KINDS", "Backend", "BenchError", "Case", "ControlChannel", "Effort", "Gap", "Operation",
    "Page", "Row", "Settings", "case_of", "launch", "measure", "open_backends",
]  # fmt: skip
