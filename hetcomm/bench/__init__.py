"""`hetcomm bench`: collectives and messages of any backend, measured side by side and checked.

For programs: `launch` starts the ranks of a run by its `Settings`, and a `Page` collects its rows.
In a rank, `Meeting` is where all talk beside what is measured, `open_backends` joins them in every
backend, and `measure` gives a `Row` for each backend and `Case`.
"""

from hetcomm.bench import launch
from hetcomm.bench.backends import Backend, Operation, open_backends
from hetcomm.bench.case import KINDS, Case, case_of
from hetcomm.bench.error import BenchError
from hetcomm.bench.gap import Gap
from hetcomm.bench.measure import Effort, measure
from hetcomm.bench.meeting import Meeting
from hetcomm.bench.progress import Page
from hetcomm.bench.row import Row
from hetcomm.bench.settings import Settings

__all__ = [
    "KINDS",
    "Backend",
    "BenchError",
    "Case",
    "Effort",
    "Gap",
    "Meeting",
    "Operation",
    "Page",
    "Row",
    "Settings",
    "case_of",
    "launch",
    "measure",
    "open_backends",
]
