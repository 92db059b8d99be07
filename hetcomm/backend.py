"""The torch.distributed backend: what init_process_group(backend="hetcomm") calls."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import hetcomm._core as _core


def create(options: Any, backend_options: Any) -> Any:
    """Makes the c10d Backend of one process group.

    Args:
        options: torch's DistributedBackendOptions (store, rank, size, timeout, name of the group).
        backend_options: pg_options of the caller; hetcomm has none.

    Raises:
        hetcomm.VendorError: hetcomm was installed without torch, or against another torch.
        hetcomm.Error: a rank cannot take part; on every rank.
    """
    try:
        from hetcomm import _torch
    except ImportError as error:
        import torch

        raise _core.VendorError(
            f"hetcomm._torch cannot be loaded with torch {torch.__version__}: {error}; expected "
            "hetcomm built against the installed torch; reinstall it with "
            "`pip install --no-build-isolation hetcomm` after torch"
        ) from error

    timeout = options.timeout
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return _torch.create_backend(
        options.store, options.group_rank, options.group_size, seconds, options.group_id
    )


# Without it, the others could not tell a process that ends in good order from one that died.
atexit.register(_core.shut_down)
