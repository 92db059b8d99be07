"""The torch.distributed backend: what init_process_group(backend="hetcomm") calls."""

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
from hetcomm import _attempts, _autoload


def create(options: Any, backend_options: Any) -> Any:
    """Makes the c10d Backend of one process group.

    Args:
        options: torch's DistributedBackendOptions (store, rank, size, timeout, name of the group).
        backend_options: pg_options of the caller: none, or those of another group of hetcomm, which
            say nothing that the caller's timeout does not.

    Raises:
        hetcomm.InvalidArgumentError: the options are of another backend, or HETCOMM_DEFAULT names
            no device.
        hetcomm.VendorError: hetcomm was installed without torch, or against another torch.
        hetcomm.Error: a rank cannot take part; on every rank.
    """
    native = _torch_module()
    _check_default()
    timeout = options.timeout
    _check_options(backend_options, timeout)
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=float(timeout))
    store = _attempts.fresh(
        options.store,
        options.group_rank,
        options.group_size,
        timeout.total_seconds(),
        options.group_id,
    )
    return native.ProcessGroupHetcomm(
        store, options.group_rank, options.group_size, timeout, name=options.group_id
    )


def _check_default() -> None:
    from torch.distributed import Backend

    try:
        _autoload.default_devices(Backend.backend_capability["hetcomm"])
    except ValueError as error:
        raise _core.InvalidArgumentError(str(error)) from None


def place(device: Any) -> tuple[str, int]:
    """The vendor of a torch.device, and its index among the vendor's, -1 if it names none; of None
    what _detect() finds.

    Raises:
        hetcomm.InvalidArgumentError: it is no device, or of a type that hetcomm does not know.
    """
    import torch

    if device is None:
        return _detect()
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise _core.InvalidArgumentError(
            f"device: expected a torch.device, or None; got {device!r} ({error})"
        ) from None
    if chosen.type == "cpu":
        return "cpu", -1
    if chosen.type != "cuda":
        raise _core.InvalidArgumentError(
            f'device: expected one of type "cpu" or "cuda"; got {chosen}; or leave it out, and '
            "name the vendor in HETCOMM_VENDOR"
        )
    index = _current() if chosen.index is None else chosen.index
    return "amd" if torch.version.hip else "nvidia", index


def _check_version(built_for: str) -> None:
    """Torch's classes differ from one minor version to the next."""
    import torch

    if torch.__version__.split(".")[:2] != built_for.split(".")[:2]:
        raise _core.VendorError(
            f"expected torch {built_for}, for which hetcomm was built, got {torch.__version__}; "
            "build hetcomm again: `pip install --force-reinstall --no-deps --no-build-isolation .`"
        )


def _detect() -> tuple[str, int]:
    """The vendor and index of the device whose memory this process works on.

    HETCOMM_VENDOR goes first, then "cpu:hetcomm", then what torch is built for and sees. The index
    is -1, which leaves the choice to HETCOMM_DEVICE and LOCAL_RANK, unless the caller chose another
    than the first.
    """
    import torch

    on_device = torch.cuda.is_available() and _served_devices() != {"cpu"}
    found = ("amd" if torch.version.hip else "nvidia") if on_device else "cpu"
    vendor = os.environ.get("HETCOMM_VENDOR") or found
    if vendor != found or not on_device:
        return vendor, -1
    return vendor, _current()


def _current() -> int:
    """The index of the device on which torch works in this process, as _detect() has it."""
    import torch
    from torch.distributed import distributed_c10d as dist

    if not torch.cuda.is_available() or os.environ.get("HETCOMM_DEVICE"):
        return -1
    bound = dist._get_default_group().bound_device_id if dist.is_initialized() else None
    if bound is not None:  # the device_id with which the default group was made
        return int(bound.index)
    return torch.cuda.current_device() or -1


def _check_options(given: Any, timeout: Any) -> None:
    """Refuses options of another backend, unless such a one serves the group as well."""
    if given is None:
        return
    of = getattr(given, "backend", None)
    if of == "hetcomm":
        if given._timeout != timeout:
            warnings.warn(
                f"hetcomm: the timeout of pg_options, {given._timeout}, is not used: the group's "
                f"is that of the call, {timeout}; pass timeout=",
                stacklevel=2,
            )
    elif set(_backends().values()) <= {"hetcomm"}:
        raise _core.InvalidArgumentError(
            "pg_options: expected None, or a copy of the options of another hetcomm group; got "
            f"{type(given).__qualname__}{f' of {of}' if of else ''}; leave pg_options out: a group "
            "of hetcomm has only timeout="
        )


def _served_devices() -> set[str]:
    """The types of the devices whose tensors the new group gives to hetcomm; empty if unknown."""
    return {device for device, backend in _backends().items() if backend == "hetcomm"}


def _backends() -> dict[str, str]:
    """The new group's backends by type of device; empty if unknown.

    torch calls create() once for all types that hetcomm serves and does not say which they are, so
    this looks where torch's own function has them. Should a later torch keep them elsewhere, a
    group of CPU tensors is what it is without this: correct, through the GPU.
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
    """Tells a group's native library of memory that collectives will use again and again.

    All ranks of an island register theirs, while none of them is in a collective. The library may
    then do without copies. Registrations end with the group; the memory must live until then, or
    until deregister_buffer().

    Args:
        tensor: contiguous, on the group's device.
        group: a process group of hetcomm; the default group without it.

    Raises:
        hetcomm.InvalidArgumentError: the ranks' engine knows no registered buffers, or the memory
            is registered already.
        hetcomm.VendorError: the library cannot register it.
    """
    _torch_module().register_buffer(_backend_of(group, tensor.device), tensor)


def deregister_buffer(tensor: Any, group: Any = None) -> None:
    """Takes back register_buffer() of the same memory."""
    _torch_module().deregister_buffer(_backend_of(group, tensor.device), tensor)


@contextmanager
def trace(group: Any = None, device: str = "cpu") -> Iterator[list[_core.Trace]]:
    """Records when the steps of every operation inside start and end, of a process group of hetcomm
    (the default one without it) that serves this type of device. The list is filled at the end,
    with a Trace of each operation that is over by then, in the order of their calls."""
    import torch

    backend = _backend_of(group, torch.device(device))
    traces: list[_core.Trace] = []
    _torch_module().begin_trace(backend)
    try:
        yield traces
    finally:
        traces += _core.traces_of(_torch_module().end_trace(backend))


def __getattr__(name: str) -> Any:
    if name == "ProcessGroupHetcomm":  # needs torch, which nothing else here loads before its use
        return _torch_module().ProcessGroupHetcomm
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


# Before torch takes down what the callbacks of futures may use.
atexit.register(_core.shut_down)
