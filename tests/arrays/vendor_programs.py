"""Programs of array ranks of different vendors."""

from __future__ import annotations

import os
import time

import numpy as np
from array_checks import refused, same, values
from device_arrays import DeviceArray

from hetcomm import Communicator, _core


def devices(comm: Communicator, seed: int) -> None:
    """Ranks of different vendors; ranks with a device have their arrays in its memory."""
    vendor, rank, size = os.environ["HETCOMM_VENDOR"], comm.rank, comm.size
    mine = [values("float32", (10, 3), seed, r) for r in range(size)]
    if vendor == "cpu":
        same(comm.all_reduce(mine[rank]), sum(mine), seed)
        for _ in range(30):
            comm.all_reduce(mine[rank])
        same(comm.broadcast(mine[rank].copy(), root=0), mine[0], seed)
        comm.send(mine[rank], 0)
        elsewhere = DeviceArray(_core.Device.open("nvidia", 0), mine[rank])
        refused(lambda: comm.send(elsewhere, 0), "in host memory", "one on a device")
        comm.barrier()
        return
    device = _core.Device.open(vendor, rank)
    given, out = DeviceArray(device, mine[rank]), DeviceArray(device, np.zeros_like(mine[rank]))
    stream = device.make_stream()
    assert comm.all_reduce(given, out, stream=stream) is out
    assert given.streams == [stream]
    event = device.make_event()
    device.record(event, stream)
    while not device.passed(event):
        pass
    same(out.numpy(), sum(mine), seed)
    # The host does not wait here, so the progress thread must move the operations.
    begun = time.monotonic()
    for _ in range(30):
        comm.all_reduce(given, out, stream=stream)
        device.record(event, stream)
        while not device.passed(event):
            pass
    assert time.monotonic() - begun < 60  # of one operation that nobody moves
    work = comm.broadcast(given, root=0, async_op=True)
    assert given.streams[-1] == (1 if vendor == "nvidia" else 0)  # the default stream
    assert work.wait(60) is given
    same(given.numpy(), mine[0], seed)
    if rank == 0:
        for sender in range(1, size):
            comm.recv(out, sender, async_op=True).wait(60)
            same(out.numpy(), mine[0] if sender < size - 1 else mine[sender], sender)
        other = DeviceArray(_core.Device.open(vendor, 1), mine[0])
        refused(lambda: comm.send(other, 1), "expected an array on", "GPU 0", "one on a device")
        refused(lambda: comm.recv(out), "name the sender")
    else:
        comm.send(given, 0, async_op=True).wait(60)
    comm.barrier(async_op=True).wait(60)
