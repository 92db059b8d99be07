"""Accelerate on hetcomm: `torchrun --nproc-per-node=2 accelerate_loop.py`.

Accelerate takes the group that the program has made. Without one it makes gloo's for CPU.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="hetcomm")
parser.add_argument("--patched", action="store_true", help="Accelerate has accelerate.patch")
asked = parser.parse_args()
if not asked.patched:
    dist.init_process_group(asked.backend)  # names hetcomm, before Accelerator
accelerator = Accelerator(
    cpu=not torch.cuda.is_available(),
    kwargs_handlers=[InitProcessGroupKwargs(backend=asked.backend)] if asked.patched else [],
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(128, 32), batch_size=8)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses = []
for batch in data:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    losses.append(accelerator.gather(loss.detach()).mean().item())
if accelerator.is_main_process:
    print("backend", dist.get_backend())
    print("losses", *losses)
accelerator.end_training()
