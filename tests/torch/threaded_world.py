"""Ranks as threads of this process, each with a world of its own, as in torch's multi-threaded
tests.

Prints "ok" for each rank that succeeded.
"""

from __future__ import annotations

import sys
import threading

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

import hetcomm  # noqa: F401

SIZE = int(sys.argv[1])


def run(rank: int, store: dist.Store, found: list[str]) -> None:
    try:
        dist.init_process_group("hetcomm", rank=rank, world_size=SIZE, store=store)
        for _ in range(3):
            tensor = torch.full((1000,), rank + 1.0)
            dist.all_reduce(tensor)
            assert (tensor == SIZE * (SIZE + 1) / 2).all()
        got = torch.zeros(300_000)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.full((300_000,), float(rank)), (rank + 1) % SIZE),
            dist.P2POp(dist.irecv, got, (rank - 1) % SIZE),
        ])  # fmt: skip
        for work in works:
            work.wait()
        assert (got == (rank - 1) % SIZE).all()
        dist.barrier()
        dist.destroy_process_group()
        found.append("ok")
    except Exception as error:
        found.append(repr(error))


_install_threaded_pg()
torch._C._distributed_c10d._set_thread_isolation_mode(True)  # as torch's own tests do
store, found = dist.HashStore(), []
threads = [threading.Thread(target=run, args=(rank, store, found)) for rank in range(SIZE)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*found, sep="\n")
