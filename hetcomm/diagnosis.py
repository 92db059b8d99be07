"""The state of all ranks of the groups of this process, its counters and its warnings."""

from __future__ import annotations

import logging
import warnings
from os import PathLike
from pathlib import Path

from hetcomm import _core

logger = logging.getLogger("hetcomm")


class PerformanceWarning(RuntimeWarning):
    """A rank comes late to many collectives, a path is slow, or a NIC has failed."""


def _tell(text: str) -> None:
    logger.warning(text)
    warnings.warn(text, PerformanceWarning, stacklevel=1)


def tell_warnings() -> None:
    """Warnings about what makes a job slow go to `warnings` and to the logger "hetcomm"."""
    _core.set_warning_sink(_tell)


def metrics() -> str:
    """The counters of all groups of this process, as Prometheus text."""
    return str(_core.metrics())


def dump(trace: str | PathLike[str] | None = None) -> str:
    """Asks all ranks of all groups of this process for their state.

    Returns who waits for whom and since when. It takes a second and a half at most; ranks that do
    not answer in a second are named. The other ranks need not call anything. `hetcomm dump PID`
    does the same for another process.

    Args:
        trace: a file for the last steps of all ranks, as JSON of Chrome's trace viewer.

    Raises:
        OSError: the file cannot be written.
    """
    text, timelines = _core.dump("asked by hetcomm.dump()", trace is not None)
    if trace is not None:
        Path(trace).write_text(timelines, encoding="utf-8")
    return str(text)
