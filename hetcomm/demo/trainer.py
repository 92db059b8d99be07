"""Trains a small byte-level GPT on the sources of Python's own standard library.

    torchrun --nproc-per-node 4 trainer.py --backend hetcomm --layout ddp --metrics metrics.jsonl

This is an ordinary PyTorch script. Only the backend's name differs between a run on gloo and a run
on hetcomm. A seed gives the same weights and batches on all backends and layouts, so the losses of
two runs are comparable step by step.

Layouts: `ddp` is DistributedDataParallel over all ranks. `pipeline` has two stages, each on half of
the ranks, host by host (the layout of Holmes, arXiv 2312.03549). A stage averages its gradients.
Only activations and their gradients pass between the halves.

`planned` is the layout of the file `--plan`, which hetcomm.plan runs.

`--codec int8` encodes the gradients of `ddp` between hosts, with error feedback. Only this option
and `planned` need more of hetcomm than its backend.
"""

import argparse
import json
import os
import socket
import sysconfig
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Optimizers import it late. Its default arguments would then hold the default group, and
# destroy_process_group could not end the group. So it is imported before there is a group.
import torch.distributed.nn
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

VOCABULARY = 256  # one token per byte
WIDTH, DEPTH, HEADS, CONTEXT, BATCH, LEARNING_RATE = 288, 4, 6, 64, 16, 1e-3  # of the demo


def standard_library() -> Tensor:
    """The top-level modules of the standard library, by name, as uint8 (bytes,)."""
    folder = Path(sysconfig.get_path("stdlib"))
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    if len(text) < 100_000:
        raise FileNotFoundError(
            f"expected the standard library's sources in {folder}, found {len(text)} bytes of *.py "
            "files; use a Python that is installed with its sources"
        )
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def sample(text: Tensor, sequences: int, context: int, seed: int, step: int) -> Tensor:
    """One step's windows into the text over all ranks: int64 (sequences, context + 1)."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(text) - context, (sequences,), generator=generator)
    return text[starts[:, None] + torch.arange(context + 1)].long()


class Embed(nn.Module):
    """Tokens (batch, time) to activations (batch, time, width)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position.weight[: tokens.shape[1]]


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer, each around a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        joined = self.query_key_value(self.attention_norm(x))
        query, key, value = joined.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(x)


def build_model(width: int, depth: int, heads: int, context: int, seed: int) -> nn.Sequential:
    """Tokens (batch, time) to logits (batch, time, 256); a slice of it is a pipeline stage."""
    torch.manual_seed(seed)
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False))
    blocks = [Block(width, heads) for _ in range(depth)]
    return nn.Sequential(Embed(width, context), *blocks, head)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class DataParallel:
    """Every rank holds the whole model and takes its share of each batch."""

    def __init__(self, model: nn.Sequential, arguments: argparse.Namespace) -> None:
        self.model = DistributedDataParallel(model)
        if arguments.codec:
            import hetcomm.hooks

            hetcomm.hooks.compressed(arguments.codec).register(self.model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
        self.writes_metrics = dist.get_rank() == 0

    def step(self, windows: Tensor) -> float:
        """One optimizer step; the mean loss over all ranks."""
        share = windows.chunk(dist.get_world_size())[dist.get_rank()]
        loss = cross_entropy(self.model(share[:, :-1]), share[:, 1:])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        return mean.item() / dist.get_world_size()


class Pipeline:
    """Two stages. Rank i of a stage exchanges activations with rank i of the other stage."""

    def __init__(
        self, model: nn.Sequential, arguments: argparse.Namespace, hosts: list[str]
    ) -> None:
        ranks = sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank))
        half = len(ranks) // 2
        place = ranks.index(dist.get_rank())
        self.is_last, self.replica = place >= half, place % half
        self.replicas = half
        self.partner = ranks[(place + half) % len(ranks)]
        groups = [dist.new_group(ranks[:half]), dist.new_group(ranks[half:])]
        self.group = groups[self.is_last]
        middle = len(model) // 2
        self.model = model[middle:] if self.is_last else model[:middle]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=arguments.learning_rate)
        self.micro_batches, self.width = arguments.micro_batches, arguments.width
        self.writes_metrics = self.is_last and self.replica == 0

    def step(self, windows: Tensor) -> float:
        """One optimizer step; the mean loss over all ranks, on the last stage (else 0)."""
        share = windows.chunk(self.replicas)[self.replica].chunk(self.micro_batches)
        loss = self.run_last(share) if self.is_last else self.run_first(share)
        parameters = self.model.parameters()
        gradients = [leaf.grad for leaf in parameters if leaf.grad is not None]
        average = parameters_to_vector(gradients)
        dist.all_reduce(average, group=self.group)
        vector_to_parameters(average / self.replicas, gradients)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.is_last:
            dist.all_reduce(loss, group=self.group)
        return loss.item() / self.replicas

    def run_first(self, share: tuple[Tensor, ...]) -> Tensor:
        """Alternates forward and backward, one micro-batch ahead, so no stage waits for long."""
        outputs, sent = [], []
        for index, windows in enumerate(share):
            outputs.append(self.model(windows[:, :-1]))
            sent.append(dist.isend(outputs[index].detach(), self.partner))
            if index > 0:
                self.run_backward(outputs[index - 1])
        self.run_backward(outputs[-1])
        for work in filter(None, sent):
            work.wait()
        return torch.zeros(())

    def run_backward(self, output: Tensor) -> None:
        gradient = torch.empty_like(output)
        dist.recv(gradient, self.partner)
        output.backward(gradient)

    def run_last(self, share: tuple[Tensor, ...]) -> Tensor:
        """Sends the gradient of each micro-batch back at once."""
        total, sent = torch.zeros(()), []
        for windows in share:
            activation = torch.empty(len(windows), windows.shape[1] - 1, self.width)
            dist.recv(activation, self.partner)
            activation.requires_grad_()
            loss = cross_entropy(self.model(activation), windows[:, 1:]) / len(share)
            loss.backward()
            assert activation.grad is not None
            sent.append(dist.isend(activation.grad, self.partner))
            total += loss.detach()
        for work in filter(None, sent):
            work.wait()
        return total


def layout_of(model: nn.Sequential, arguments: argparse.Namespace, hosts: list[str]) -> Any:
    """What carries out the steps. hosts: of all ranks."""
    if arguments.layout == "planned":
        from hetcomm.demo.planned import PlannedTraining

        return PlannedTraining(model, arguments.plan, arguments.context, arguments.learning_rate)
    if arguments.layout == "pipeline":
        return Pipeline(model, arguments, hosts)
    return DataParallel(model, arguments)


def sent_bytes() -> int:
    """Bytes this host has sent through its network cards."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    fields = [line.replace(":", " ").split() for line in lines]
    return sum(int(field[9]) for field in fields if field[0] != "lo")


def train(arguments: argparse.Namespace) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    hosts: list[str] = [""] * world
    host = socket.gethostname() + os.readlink("/proc/self/ns/net")
    dist.all_gather_object(hosts, os.environ.get("HETCOMM_HOST_ID", host))
    model = build_model(
        arguments.width, arguments.depth, arguments.heads, arguments.context, arguments.seed
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    layout = layout_of(model, arguments, hosts)
    text = standard_library()
    metrics = arguments.metrics.open("w") if layout.writes_metrics else None
    sent = [sent_bytes()]
    for step in range(arguments.steps):
        windows = sample(text, arguments.batch, arguments.context, arguments.seed, step)
        start = time.perf_counter()
        loss = layout.step(windows)
        seconds = time.perf_counter() - start
        sent.append(sent_bytes())
        if metrics:
            record = {"step": step, "loss": loss, "seconds": seconds}
            print(json.dumps(record), file=metrics, flush=True)

    # Counters belong to a host, so one rank of each host reports them.
    mine = sent if rank == hosts.index(hosts[rank]) else [0] * len(sent)
    counters: list[list[int]] = [[]] * world
    dist.all_gather_object(counters, mine)
    if metrics:
        totals = [sum(column) for column in zip(*counters, strict=True)]
        over_network = [after - before for before, after in pairwise(totals)]
        summary = {
            "network_bytes": None if arguments.uncounted else over_network,
            "parameters": parameters,
        }
        print(json.dumps(summary), file=metrics, flush=True)
        metrics.close()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--backend", default="hetcomm", help="name of the torch.distributed backend"
    )
    parser.add_argument("--layout", choices=["ddp", "pipeline", "planned"], default="ddp")
    parser.add_argument("--plan", type=Path, help="file of hetcomm plan --layout (planned)")
    parser.add_argument("--codec", default="", help="of hetcomm, for gradients between hosts (ddp)")
    parser.add_argument("--metrics", type=Path, required=True, help="JSON lines are written here")
    parser.add_argument(
        "--uncounted", action="store_true", help="hosts share a network: count none of its bytes"
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--batch", type=int, default=BATCH, help="sequences per step over all ranks"
    )
    parser.add_argument(
        "--micro-batches", type=int, default=4, help="per replica and step (pipeline)"
    )
    parser.add_argument("--context", type=int, default=CONTEXT, help="bytes per sequence")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--heads", type=int, default=HEADS)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    return parser.parse_args()


def check_arguments(arguments: argparse.Namespace, world: int) -> None:
    """Raises ValueError for uneven shares. The mean of the ranks' losses would then be wrong."""
    if (arguments.layout == "planned") != (arguments.plan is not None):
        raise ValueError("expected --plan FILE with the layout planned, and with no other layout")
    if arguments.codec and arguments.layout != "ddp":
        raise ValueError(
            f"--codec is for the layout ddp, got {arguments.layout}; leave --codec out"
        )
    if arguments.layout == "planned":
        return  # hetcomm.plan checks the batch
    pieces = world if arguments.layout == "ddp" else world // 2 * arguments.micro_batches
    if arguments.layout == "pipeline" and world % 2:
        raise ValueError(
            f"the pipeline needs an even number of ranks, got {world}; add or drop one"
        )
    if arguments.batch % pieces:
        raise ValueError(
            f"expected --batch to be a multiple of {pieces} (one share per rank or micro-batch), "
            f"got {arguments.batch}"
        )


def main() -> None:
    arguments = parse_arguments()
    dist.init_process_group(arguments.backend)
    check_arguments(arguments, dist.get_world_size())
    train(arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
