"""hetcomm: one communicator for unlike hardware.

The import registers the backend for
``torch.distributed.init_process_group(backend="hetcomm")``. It loads nothing heavy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from hetcomm import _autoload

__version__ = "0.1.0"

_ERRORS = (
    "Error",
    "InvalidArgumentError",
    "TransportError",
    "VendorError",
    "TimeoutError",
    "AbortedError",
    "PeerFailedError",
)

# The modules of the other names, loaded at first use.
_HOMES = {
    **dict.fromkeys(_ERRORS, "hetcomm._core"),
    "Store": "hetcomm._core",
    "Communicator": "hetcomm.communicator",
    "Work": "hetcomm.work",
    "PrefixStore": "hetcomm.rendezvous",
    "torch_env": "hetcomm.launch",
    "TcpStore": "hetcomm.tcp_store",
    "TcpStoreServer": "hetcomm.store_server",
    "partition": "hetcomm.partitioning",
    "shared_empty": "hetcomm.shared",
    "register_buffer": "hetcomm.backend",
    "deregister_buffer": "hetcomm.backend",
    "trace": "hetcomm.backend",
    "dump": "hetcomm.diagnosis",
    "metrics": "hetcomm.diagnosis",
    "PerformanceWarning": "hetcomm.diagnosis",
    "codec": "hetcomm.codecs",
    "Feedback": "hetcomm.codecs",
    "Options": "hetcomm.backend",
    "ProcessGroupHetcomm": "hetcomm.backend",
}

_MODULES = ("functional", "hooks", "plan")  # loaded at first use

# Without names that need torch, so `from hetcomm import *` works without torch.
_OF_TORCH = ("ProcessGroupHetcomm", "Options", "partition", *_MODULES)
__all__ = ["__version__", *(name for name in _HOMES if name not in _OF_TORCH)]

if "torch" in sys.modules or not _autoload.installed():
    _autoload.register()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"hetcomm.{name}")
    raise AttributeError(f"module 'hetcomm' has no attribute {name!r}")
