"""Registers the backend's name with torch. Cheap, and harmless if hetcomm is broken."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any


def installed() -> bool:
    """Whether torch itself will call register() through its entry point."""
    return any(
        point.name == "hetcomm" for point in importlib.metadata.entry_points(group="torch.backends")
    )


def register() -> None:
    """Registers "hetcomm" with torch.distributed; the native part loads at first use.

    torch calls this during its own import, so it must not raise.
    """
    try:
        if importlib.util.find_spec("torch") is None:
            return
        import torch.distributed as dist

        if not dist.is_available() or "hetcomm" in dist.Backend.backend_list:
            return
        devices = known_devices()
        dist.Backend.register_backend("hetcomm", _create, extended_api=True, devices=devices)
        capability: dict[str, Any] = dist.Backend.backend_capability
        capability["hetcomm"] = _PresentDevices()
        _set_default(dist.Backend.default_device_backend_map, devices)
    except Exception as error:
        print(f"hetcomm: backend not registered with torch: {error}", file=sys.stderr)


def known_devices() -> list[str]:
    """The device types that hetcomm serves where they exist, such as "cpu" and "cuda"."""
    import torch

    from hetcomm._vendors import torch_devices

    added = torch._C._get_privateuse1_backend_name()  # of an extension
    return ["cpu", *torch_devices(), *([added] if added != "privateuseone" else [])]


class _PresentDevices(Sequence[str]):
    """The known device types that torch has now. torch maps these when it makes a group, and some
    of its functions then make tensors on each."""

    def _now(self) -> list[str]:
        return [name for name in known_devices() if name == "cpu" or _is_available(name)]

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return repr(self._now())


def _is_available(device: str) -> bool:
    """Also for a device whose module does not say."""
    import torch

    ask = getattr(getattr(torch, device, None), "is_available", None)
    return ask is None or bool(ask())


def default_devices(served: list[str]) -> list[str]:
    """The device types of HETCOMM_DEFAULT, such as "cpu,cuda". For these hetcomm is the backend of
    programs that name none.

    Raises:
        ValueError: hetcomm does not serve one of the types.
    """
    given = os.environ.get("HETCOMM_DEFAULT", "")
    named = [name.strip() for name in given.split(",")] if given else []
    if not set(named) <= set(served):
        raise ValueError(
            f'HETCOMM_DEFAULT: expected some of "{",".join(served)}"; got "{given}"; correct it, '
            "or leave it out"
        )
    return named


def _set_default(backends: dict[str, str], served: list[str]) -> None:
    try:
        named = default_devices(served)
    except ValueError as error:
        print(f"hetcomm: {error}", file=sys.stderr)
        named = served  # a group without a named backend then asks hetcomm, which raises this
    backends.update(dict.fromkeys(named, "hetcomm"))


def _create(options: Any, backend_options: Any) -> Any:
    try:
        from hetcomm.backend import create
    except Exception as error:
        raise ImportError(
            f"the native part of hetcomm cannot be loaded: {error}; expected hetcomm._core beside "
            f"{__file__}; reinstall it: pip install --force-reinstall --no-build-isolation hetcomm"
        ) from error
    return create(options, backend_options)
