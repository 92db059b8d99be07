"""`hetcomm bench`: collectives and messages of any backend, measured side by side and checked.

For programs: `Meeting` is where the ranks of a job talk beside what is measured, `open_backends`
joins them in every backend, and `measure` gives a `Row` for each backend and `Case`.
"""

from hetcomm.bench.backends import Backend, Operation, open_backends
from hetcomm.bench.case import KINDS, Case, case_of
from hetcomm.bench.error import BenchError
from hetcomm.bench.measure import Effort, measure
from hetcomm.bench.meeting import Meeting
from hetcomm.bench.row import Row

__all__ = [
    "KINDS",
    "Backend",
    "BenchError",
    "Case",
    "Effort",
    "Meeting",
    "Operation",
    "Row",
    "case_of",
    "measure",
    "open_backends",
]
