"""DeepSpeed on hetcomm: `torchrun --nproc-per-node=2 deepspeed_zero.py --stage 3`."""

import argparse

import deepspeed
import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="hetcomm")
parser.add_argument("--stage", type=int, default=1, help="of ZeRO, 0 to 3")
asked = parser.parse_args()

deepspeed.init_distributed(dist_backend=asked.backend)  # names hetcomm, before initialize()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
engine, _, _, _ = deepspeed.initialize(
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": asked.stage},
        "zero_allow_untested_optimizer": True,
    },
)
losses = []
torch.manual_seed(dist.get_rank())
for _ in range(8):
    loss = engine(torch.randn(8, 32, device=engine.device)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
if dist.get_rank() == 0:
    print("backend", dist.get_backend())
    print("losses", *losses)
dist.destroy_process_group()
