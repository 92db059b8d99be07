"""Where the layers of a model run, how long a step takes, and which layout is best.

What runs a layout needs torch, and is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .layout import Layout, Replica, Stage
from .memory import Memory
from .model import Model
from .network import Curve, Curves, Network, Place, Planned
from .orders import rank_order
from .predict import Prediction, predict
from .profile import Device, Profile, Row
from .runtime import HostPath, Runtime

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

__all__ = [
    "Curve",
    "Curves",
    "Device",
    "HostPath",
    "Layout",
    "Memory",
    "Model",
    "Network",
    "Place",
    "Planned",
    "Prediction",
    "Profile",
    "Replica",
    "Row",
    "Runtime",
    "Stage",
    "predict",
    "rank_order",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hetcomm.plan' has no attribute {name!r}")
