"""Where the layers of a model run, how long a step takes, and which layout is best.

What runs a layout needs torch, and is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .layout import Layout, Replica, Stage
from .orders import rank_order

if TYPE_CHECKING:
    from .chunks import split as split
    from .job import Job as Job
    from .job import load as load
    from .partitions import partition as partition
    from .pipeline import schedule as schedule

# The modules of names that need torch.
_HOMES = {
    "Job": "hetcomm.plan.job",
    "load": "hetcomm.plan.job",
    "split": "hetcomm.plan.chunks",
    "schedule": "hetcomm.plan.pipeline",
    "partition": "hetcomm.plan.partitions",
}

__all__ = ["Layout", "Replica", "Stage", "rank_order"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hetcomm.plan' has no attribute {name!r}")
