"""The time of a training step with three levels of partition, beside fully_shard over all ranks.

    hetcomm emulate examples/clusters/four-hosts.toml -- python bench/three_levels.py

fully_shard sends all parameters twice and all gradients once between hosts, in each step. With
weights and gradients sharded inside the host, and optimizer states over the cluster, a step sends
gradients once and updated weights once (Frontier, arXiv 2501.04266). Codecs make both smaller. The
variants take turns, so that all meet the same disturbances. Times are medians of rank 0.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import hetcomm

# Levels of weights, gradients and optimizer states; codecs by traffic.
THREE_LEVELS = ("host", "host", "cluster")
VARIANTS: dict[str, dict[str, str | None]] = {
    "three levels": {"gradients": "none", "updates": "none"},
    "three levels, int8 gradients": {"gradients": "int8", "updates": "none"},
    "three levels, int4 gradients, int8 updates": {"gradients": "int4", "updates": "int8"},
}


def network(width: int, layers: int) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width)) for _ in range(layers)))


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, width: int, batch: int
) -> Callable[[], float]:
    """A step; returns its seconds."""
    x = torch.randn(batch, width, dtype=torch.bfloat16)

    def step() -> float:
        dist.barrier()
        start = time.perf_counter()
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return step


def flat(width: int, layers: int, batch: int) -> Callable[[], float]:
    model = network(width, layers)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for part in [*model, model]:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    return step_of(model, torch.optim.Adam(model.parameters()), width, batch)


def levels(
    width: int, layers: int, batch: int, codecs: dict[str, str | None]
) -> Callable[[], float]:
    model = network(width, layers)
    optimizer = torch.optim.Adam(model.parameters())
    hetcomm.partition(model, optimizer, *THREE_LEVELS, dtype=torch.bfloat16, codecs=codecs)
    return step_of(model, optimizer, width, batch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4, help="rows of a rank")
    parser.add_argument("--steps", type=int, default=7, help="of each variant; two more come first")
    parser.add_argument("--report", type=Path, help="figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("hetcomm")
    shape = (arguments.width, arguments.layers, arguments.batch)
    steps = {"fully_shard": flat(*shape)}
    steps |= {name: levels(*shape, codecs) for name, codecs in VARIANTS.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(arguments.steps + 2):
        for name, step in steps.items():
            taken[name].append(step())
    medians = {name: statistics.median(times[2:]) for name, times in taken.items()}
    if dist.get_rank() == 0:
        for name, seconds in medians.items():
            ratio = medians["fully_shard"] / seconds
            print(f"{name}: {1e3 * seconds:.0f} ms a step, {ratio:.2f}x", flush=True)
        if arguments.report:
            arguments.report.write_text(json.dumps(medians))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
