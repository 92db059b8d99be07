"""Where the layers of a model run, how long a step takes, and which layout is best."""

from .layout import Layout, Replica, Stage

__all__ = ["Layout", "Replica", "Stage"]
