"""Where the layers of a model run, how long a step takes, and which layout is best."""

from .layout import Layout, Replica, Stage
from .memory import Memory
from .model import Model
from .network import Curve, Curves, Network, Place, Planned
from .predict import Prediction, predict
from .profile import Device, Profile, Row
from .runtime import HostPath, Runtime

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
]
