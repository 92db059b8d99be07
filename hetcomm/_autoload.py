"""Makes the backend's name known to torch. Cheap, and harmless if hetcomm is broken."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from typing import Any


def installed() -> bool:
    """Whether torch itself will call register() through its entry point."""
    return any(
        point.name == "hetcomm" for point in importlib.metadata.entry_points(group="torch.backends")
    )


def register() -> None:
    """Registers "hetcomm" with torch.distributed; the native part loads at first use.

    torch calls this while it is being imported, so nothing here may raise.
    """
    try:
        if importlib.util.find_spec("torch") is None:
            return
        import torch
        import torch.distributed as dist

        if not dist.is_available() or "hetcomm" in dist.Backend.backend_list:
            return
        devices = ["cpu", "cuda"]
        # A device type that an extension has added. One added later is to be named by the user:
        # init_process_group("cpu:hetcomm,<type>:hetcomm").
        added = torch._C._get_privateuse1_backend_name()
        if added != "privateuseone":
            devices.append(added)
        dist.Backend.register_backend("hetcomm", _create, extended_api=True, devices=devices)
    except Exception as error:
        print(f"hetcomm: backend not registered with torch: {error}", file=sys.stderr)


def _create(options: Any, backend_options: Any) -> Any:
    try:
        from hetcomm.backend import create
    except Exception as error:
        raise ImportError(
            f"the native part of hetcomm cannot be loaded: {error}; expected hetcomm._core beside "
            f"{__file__}; reinstall it: pip install --force-reinstall --no-build-isolation hetcomm"
        ) from error
    return create(options, backend_options)
