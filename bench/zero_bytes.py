"""Bytes that each host sends in a step of fully_shard: as it is, and compressed as in ZeRO++.

    hetcomm emulate examples/clusters/four-hosts.toml -- python bench/zero_bytes.py

In ZeRO-3, each collective of M bytes makes each of H hosts send at least M (H - 1) / H. A step has
three: it gathers the parameters for the forward and for the backward pass, and reduces the
gradients. ZeRO++ sends the parameters as int8, and only once: the backward pass takes them from a
secondary shard within the host. ZeRO++ sends the gradients as int4. That is 0.75 instead of 3.

Parameters and gradients are bfloat16. The kernel counts the bytes, with headers, of all steps after
the first one.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import hetcomm

BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


def network(width: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def sharded(model: nn.Sequential, mesh: DeviceMesh, within: int | bool) -> nn.Sequential:
    for part in [*model, model]:
        fully_shard(part, mesh=mesh, mp_policy=BFLOAT16, reshard_after_forward=within)
    return model


def sent() -> int:
    """Bytes that this host has sent, over all NICs but the loopback, while no rank sends."""
    dist.barrier()
    rows = (line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines()[2:])
    total = sum(int(fields.split()[8]) for name, fields in rows if name.strip() != "lo")
    dist.barrier()
    return total


def bytes_of_step(model: nn.Sequential, width: int, steps: int) -> float:
    """What this host sends in a step."""
    before = 0
    for step in range(steps + 1):
        if step == 1:
            before = sent()
        model(torch.randn(4, width, dtype=torch.bfloat16)).float().square().mean().backward()
        model.zero_grad()
    return (sent() - before) / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--all-gather", default="int8", help="the codec of parameters")
    parser.add_argument("--reduce-scatter", default="int4", help="the codec of gradients")
    parser.add_argument("--report", type=Path, help="figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("hetcomm")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    hosts = dist.get_world_size() // hetcomm.hooks.ranks_of_host(mesh)

    def model(within: int | bool) -> nn.Sequential:
        return sharded(network(arguments.width, arguments.layers), mesh, within)

    variants = {"ZeRO-3": model(True), "ZeRO++": model(hetcomm.hooks.ranks_of_host(mesh))}
    hetcomm.hooks.compress_fsdp(variants["ZeRO++"], arguments.all_gather, arguments.reduce_scatter)
    parameters = 2 * sum(each.numel() for each in variants["ZeRO-3"].parameters())
    crossing = parameters * (hosts - 1) / hosts  # of one collective, sent by all hosts together
    report = {}
    for name, each in variants.items():
        mine = bytes_of_step(each, arguments.width, arguments.steps)
        of_ranks: list[float] = [0.0] * dist.get_world_size()
        dist.all_gather_object(of_ranks, mine)
        of_hosts = of_ranks[:: dist.get_world_size() // hosts]
        report[name] = {"bytes": of_hosts, "share": [sent / crossing for sent in of_hosts]}
        if dist.get_rank() == 0:
            shares = ", ".join(f"{share:.3f}" for share in report[name]["share"])
            print(f"{name}: each host sends {shares} M (H - 1) / H a step", flush=True)
    if dist.get_rank() == 0:
        ratio = sum(report["ZeRO-3"]["bytes"]) / sum(report["ZeRO++"]["bytes"])
        print(f"M = {parameters / 1e6:.2f} MB; ZeRO++ sends {ratio:.2f} times fewer bytes")
        if arguments.report:
            arguments.report.write_text(json.dumps(report | {"ratio": ratio, "M": parameters}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
