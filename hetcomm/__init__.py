"""hetcomm: one communicator for unlike hardware.

Importing it registers the backend, so that
``torch.distributed.init_process_group(backend="hetcomm")`` works. Nothing heavy is loaded before
it is used.
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

_BUFFERS = ("register_buffer", "deregister_buffer")

__all__ = ["__version__", *_BUFFERS, *_ERRORS]

if "torch" in sys.modules or not _autoload.installed():
    _autoload.register()


def __getattr__(name: str) -> Any:
    if name in _ERRORS:
        return getattr(import_module("hetcomm._core"), name)
    if name in _BUFFERS:
        return getattr(import_module("hetcomm.backend"), name)
    raise AttributeError(f"module 'hetcomm' has no attribute {name!r}")
