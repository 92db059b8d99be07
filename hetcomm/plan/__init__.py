"""Where the layers of a model run, how long a step takes, and which layout is best.

The search and what runs a layout load at first use: the latter needs torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hetcomm.plan.layout import Layout, Replica, Stage
from hetcomm.plan.model import Model
from hetcomm.plan.prediction.memory import Memory
from hetcomm.plan.prediction.network import Curve, Curves, Network, Place, PlannedNetwork
from hetcomm.plan.prediction.predict import Prediction, predict
from hetcomm.plan.prediction.runtime import HostPath, Runtime
from hetcomm.plan.profile import Device, Profile, Row
from hetcomm.plan.run.orders import rank_order

if TYPE_CHECKING:
    from hetcomm.plan.run.chunks import split as split
    from hetcomm.plan.run.job import Job as Job
    from hetcomm.plan.run.job import load as load
    from hetcomm.plan.run.partition import partition as partition
    from hetcomm.plan.run.schedule import schedule as schedule
    from hetcomm.plan.search.propose import Limits as Limits
    from hetcomm.plan.search.propose import Proposal as Proposal
    from hetcomm.plan.search.propose import propose as propose

# The modules of names that load at first use.
_HOMES = {
    "Job": "hetcomm.plan.run.job",
    "load": "hetcomm.plan.run.job",
    "split": "hetcomm.plan.run.chunks",
    "schedule": "hetcomm.plan.run.schedule",
    "partition": "hetcomm.plan.run.partition",
    "Limits": "hetcomm.plan.search.propose",
    "Proposal": "hetcomm.plan.search.propose",
    "propose": "hetcomm.plan.search.propose",
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
    "PlannedNetwork",
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
