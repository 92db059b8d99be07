"""Ray Train on hetcomm: `python ray_train.py`; the TorchConfig names it."""

import argparse
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model


def train(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.manual_seed(dist.get_rank())
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32, device=get_device())).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print("backend", dist.get_backend())
        print("losses", *losses)
    ray.train.report({"loss": losses[-1]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="hetcomm")
    parser.add_argument("--address", help="of a Ray cluster; without it, one of two CPUs here")
    parser.add_argument("--storage", help="folder for results that all hosts see")
    asked = parser.parse_args()
    ray.init(asked.address, **({} if asked.address else {"num_cpus": 3}))
    TorchTrainer(
        train,
        torch_config=TorchConfig(backend=asked.backend),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(storage_path=asked.storage),
    ).fit()
