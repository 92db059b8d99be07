"""The ranks of a host in tensor groups, and a clock that they share."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hetcomm.bench.control import ControlChannel
from hetcomm.plan.measure.timing import Clock

ADDRESS = "127.0.0.1"  # ranks of one host share its loopback


class HostGroups:
    """torch's process group of a host's ranks. open() and close() are collectives of these."""

    def __init__(
        self, control: ControlChannel, ranks: list[int], device: torch.device, name: str
    ) -> None:
        """ranks: of the host, in the job. name: unlike that of other hosts."""
        self._control, self._ranks, self._device = control, ranks, device
        self._part = control.part(f"host groups/{name}")

    def open(self) -> None:
        """Makes the default group. Raises hetcomm.TimeoutError if a rank is missing."""
        timeout = timedelta(seconds=self._control.timeout)
        rank, size = self._ranks.index(self._control.rank), len(self._ranks)
        if rank == 0:
            store = dist.TCPStore(ADDRESS, 0, size, True, timeout, wait_for_workers=False)
            self._part.set("port", str(store.port).encode())
        else:
            port = int(bytes(self._part.get("port", timeout)))
            store = dist.TCPStore(ADDRESS, port, size, False, timeout, wait_for_workers=False)
        dist.init_process_group("hetcomm", store=store, rank=rank, world_size=size, timeout=timeout)

    def mesh(self, degree: int) -> DeviceMesh:
        """Of this rank's tensor group: `degree` ranks in a row. A collective of the host."""
        places = torch.arange(len(self._ranks)).view(-1, degree)
        return DeviceMesh(self._device.type, places, mesh_dim_names=("groups", "tensor"))["tensor"]

    def close(self) -> None:
        dist.barrier()
        dist.destroy_process_group()


class GroupClock(Clock):
    """The clock of a tensor group: the time that passes, because ranks wait for each other."""

    def __init__(self, device: torch.device, mesh: DeviceMesh) -> None:
        super().__init__(device)
        self._now = time.perf_counter
        self._group = mesh.get_group()

    def any(self, wish: bool) -> bool:
        flag = torch.tensor(int(wish), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag.item())

    def same(self, value: Any) -> Any:
        found = [value]
        first = dist.get_process_group_ranks(self._group)[0]
        dist.broadcast_object_list(found, first, group=self._group, device=self.device)
        return found[0]
