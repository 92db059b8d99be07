"""The torch.distributed backend behind init_process_group(backend="hetcomm")."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import hetcomm._core as _core
from hetcomm import _attempts, _autoload, diagnosis
from hetcomm._vendors import of_torch, torch_devices, vendors

_UNSET_TIMEOUT = timedelta(milliseconds=-1)  # torch's
_LONGEST = 1e9  # seconds that the core waits


def create(options: Any, backend_options: Any) -> Any:
    """Makes the c10d Backend of one process group.

    Args:
        options: torch's DistributedBackendOptions (store, rank, size, timeout, name of the group).
        backend_options: pg_options of the caller: None, hetcomm.Options, or the options of
            another hetcomm group. The caller's timeout replaces theirs.

    Raises:
        hetcomm.InvalidArgumentError: the options are another backend's, or HETCOMM_DEFAULT is
            wrong.
        hetcomm.VendorError: hetcomm was built without torch, or for another torch.
        hetcomm.Error: a rank cannot join. Every rank raises it.
    """
    native = _torch_module()
    diagnosis.tell_warnings()
    _check_default()
    timeout = options.timeout
    _check_options(backend_options, timeout)
    if timeout == _UNSET_TIMEOUT:  # DeviceMesh takes the timeout of hetcomm.Options
        from torch.distributed.constants import default_pg_timeout

        timeout = default_pg_timeout
    asked = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    # In torch a timedelta of more than 292,000 years overflows, mostly to a number far below zero.
    seconds = _core.timeout(-asked if asked < -_LONGEST else asked)
    store = _attempts.store_of_attempt(
        options.store, options.group_rank, options.group_size, seconds, options.group_id
    )
    return native.ProcessGroupHetcomm(
        store,
        options.group_rank,
        options.group_size,
        timedelta(seconds=seconds),
        name=options.group_id,
        bridge_codec=getattr(backend_options, "bridge_codec", ""),
    )


def _check_default() -> None:
    try:
        _autoload.default_devices(_autoload.known_devices())
    except ValueError as error:
        raise _core.InvalidArgumentError(str(error)) from None


def vendor_and_index(device: Any) -> tuple[str, int]:
    """The vendor and index of a torch.device; -1 without an index. None asks _detect_device().

    Raises:
        hetcomm.InvalidArgumentError: the device is invalid, or of an unknown type.
    """
    import torch

    if device is None:
        return _detect_device()
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _core.InvalidArgumentError(
            f"device: expected a torch.device, or None; got {device!r} ({error})"
        ) from None
    if chosen.type == "cpu":
        return "cpu", -1
    vendor = of_torch(torch)
    if chosen.type != vendors()[vendor]["torch"]["device"]:
        types = " or ".join(f'"{name}"' for name in ["cpu", *torch_devices()])
        raise _core.InvalidArgumentError(
            f"device: expected one of type {types}; got {chosen}; choose one of these, or leave it "
            "out and name the vendor in HETCOMM_VENDOR"
        )
    return vendor, _current_index() if chosen.index is None else chosen.index


def _check_version(built_for: str) -> None:
    """Requires the minor version of the build, because torch's classes differ between them."""
    import torch

    if torch.__version__.split(".")[:2] != built_for.split(".")[:2]:
        raise _core.VendorError(
            f"expected torch {built_for}, for which hetcomm was built, got {torch.__version__}; "
            "build hetcomm again: `pip install --force-reinstall --no-deps --no-build-isolation .`"
        )


def _detect_device() -> tuple[str, int]:
    """The vendor and index of this process's device.

    HETCOMM_VENDOR decides, then "cpu:hetcomm", then the GPUs that torch sees. Index -1 leaves the
    choice to HETCOMM_DEVICE and LOCAL_RANK. Another index is the device that the caller has chosen.
    """
    import torch

    served = {device for device, backend in _backends().items() if backend == "hetcomm"}
    on_device = _device_module().is_available() and served != {"cpu"}
    found = of_torch(torch) if on_device else "cpu"
    vendor = os.environ.get("HETCOMM_VENDOR") or found
    if vendor != found or not on_device:
        return vendor, -1
    return vendor, _current_index()


def _current_index() -> int:
    """The index of torch's current device, as _detect_device() returns it."""
    from torch.distributed import distributed_c10d as dist

    devices = _device_module()
    if not devices.is_available() or os.environ.get("HETCOMM_DEVICE"):
        return -1
    bound = dist._get_default_group().bound_device_id if dist.is_initialized() else None
    if bound is not None:  # device_id of the default group
        return int(bound.index)
    return devices.current_device() or -1


def _device_module() -> Any:
    """torch's module for the devices of the vendor for which it is built: torch.cuda."""
    import torch

    return getattr(torch, vendors()[of_torch(torch)]["torch"]["device"])


def _check_options(given: Any, timeout: Any) -> None:
    """Rejects options of another backend, unless another backend serves the group too."""
    if given is None:
        return
    of = getattr(given, "backend", None)
    if of == "hetcomm":
        if given._timeout not in (timeout, _UNSET_TIMEOUT):
            warnings.warn(
                f"hetcomm: the timeout of pg_options, {given._timeout}, is not used: the group's "
                f"is that of the call, {timeout}; pass timeout=",
                stacklevel=2,
            )
    elif set(_backends().values()) <= {"hetcomm"}:
        raise _core.InvalidArgumentError(
            "pg_options: expected None, hetcomm.Options, or a copy of the options of another "
            f"hetcomm group; got {type(given).__qualname__}{f' of {of}' if of else ''}; leave "
            "pg_options out, or pass hetcomm.Options(bridge_codec=...)"
        )


def _backends() -> dict[str, str]:
    """The new group's backends by type of device; empty if unknown.

    torch calls create() once for all types of hetcomm, without their names. So this reads them from
    the frame of torch's own function. If a later torch keeps them elsewhere, a group for CPU
    tensors still works, through the GPU.
    """
    from torch.distributed.distributed_c10d import BackendConfig

    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config = frame.f_locals.get("backend_config")
    if not isinstance(config, BackendConfig):
        return {}
    return dict(config.get_device_backend_map())


def register_buffer(tensor: Any, group: Any = None) -> None:
    """Registers memory of repeated collectives with a group's native library.

    All ranks of an island register their buffers, outside of collectives. The library may then
    avoid copies. A registration ends with the group or deregister_buffer(). The memory must live as
    long.

    Args:
        tensor: contiguous, on the group's device.
        group: a process group of hetcomm; None is the default group.

    Raises:
        hetcomm.InvalidArgumentError: the ranks' engine knows no registered buffers, or the memory
            is registered already.
        hetcomm.VendorError: the library cannot register it.
    """
    _torch_module().register_buffer(_backend_of(group, tensor.device), tensor)


def deregister_buffer(tensor: Any, group: Any = None) -> None:
    """Ends register_buffer() of the same memory."""
    _torch_module().deregister_buffer(_backend_of(group, tensor.device), tensor)


@contextmanager
def trace(group: Any = None, device: str = "cpu") -> Iterator[list[_core.Trace]]:
    """Records start and end of the steps of every operation inside.

    group: a process group of hetcomm; None is the default group. device: a type of its devices. At
    the end the list gets a Trace of each completed operation, in the order of calls.
    """
    import torch

    backend = _backend_of(group, torch.device(device))
    traces: list[_core.Trace] = []
    _torch_module().begin_trace(backend)
    try:
        yield traces
    finally:
        traces += _core.traces_of(_torch_module().end_trace(backend))


def __getattr__(name: str) -> Any:
    if name == "ProcessGroupHetcomm":  # loads torch
        return _torch_module().ProcessGroupHetcomm
    if name == "Options":
        return _torch_module().Options
    raise AttributeError(f"module 'hetcomm.backend' has no attribute {name!r}")


def _torch_module() -> Any:
    try:
        import torch
    except ImportError as error:
        raise _core.VendorError(
            f"expected torch, got {error}; install torch first, then hetcomm with "
            "`pip install --no-build-isolation hetcomm`"
        ) from error
    try:
        from hetcomm import _torch
    except ImportError as error:
        raise _core.VendorError(
            f"hetcomm._torch cannot be loaded with torch {torch.__version__}: {error}; expected "
            "hetcomm built against the installed torch; reinstall it with "
            "`pip install --no-build-isolation hetcomm` after torch"
        ) from error
    _check_version(_torch.built_for)
    return _torch


def _backend_of(group: Any, device: Any) -> Any:
    import torch.distributed as dist

    chosen: Any = group or dist.group.WORLD
    return chosen._get_backend(device)


# Runs before torch destroys objects that callbacks of futures may use.
atexit.register(_core.shut_down)
