"""The device of this rank, and the name of its kind."""

from __future__ import annotations

import os

import torch

from hetcomm import _core, backend, topo_save
from hetcomm._vendors import vendors
from hetcomm.plan.refuse import refuse


def find() -> tuple[str, torch.device]:
    """The kind of this rank's device, as in the cluster file, and torch's name of the device.

    The device is the one that a group of hetcomm's would take. Emulated devices are host memory.
    Raises hetcomm.InvalidArgumentError for a GPU that torch does not see.
    """
    vendor, index = backend.vendor_and_index(None)
    if emulated := os.environ.get("HETCOMM_EMULATED_KIND"):
        return emulated, torch.device("cpu")
    info = _core.probe_rank()
    info.vendor = vendor
    kind = topo_save.kind_of(_core.probe_device(info))
    if vendor not in vendors():
        return kind, torch.device("cpu")
    type_name = vendors()[vendor]["torch"]["device"]
    module = getattr(torch, type_name)
    if index < 0:
        names = ("HETCOMM_DEVICE", "LOCAL_RANK")
        index = int(next((os.environ[name] for name in names if os.environ.get(name)), 0))
    if index >= module.device_count():
        remedy = f"install torch for {vendor}, or start fewer ranks on this host"
        refuse(f"{vendor} {index}", "a device that torch sees", module.device_count(), remedy)
    module.set_device(index)
    return kind, torch.device(type_name, index)
