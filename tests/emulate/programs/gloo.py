"""torch's own gloo backend across the emulated hosts."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
values = torch.arange(100_000, dtype=torch.float64) + rank
dist.all_reduce(values)
expected = torch.arange(100_000, dtype=torch.float64) * world + world * (world - 1) / 2
assert torch.equal(values, expected)
dist.barrier()
print("reduced", flush=True)
dist.destroy_process_group()
