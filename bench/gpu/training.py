"""DistributedDataParallel of a small GPT over GPU and CPU ranks, beside one process on the CPU.

The process takes the whole batches. The losses must be equal within rounding. With --two-ranks two
ranks of the GPU train, and then the same ranks with gloo on the CPU.
"""

from __future__ import annotations

import time
from typing import Any

import ranks
from ranks import Rank
from report import Report, parser

TOLERANCE = 1e-3  # of the loss; orders of sums differ between GPU and CPU
CASES = {
    "GPU and CPU": [Rank(True, "a"), Rank(False, "b")],
    "two on the GPU and two on CPUs": [
        Rank(True, "a"), Rank(False, "b"), Rank(True, "a"), Rank(False, "b"),
    ],
}  # fmt: skip
TWO_RANKS = {"two on the GPU": [Rank(True, "a"), Rank(True, "a")]}
SEED, BATCH, CONTEXT = 0, 16, 64


def model_and_text(width: int) -> tuple:
    from hetcomm.demo.trainer import build_model, standard_library

    return build_model(width, 4, 4, CONTEXT, SEED), standard_library()


def rank_main(emulated: bool, width: int, steps: int, beside_gloo: bool) -> None:
    import torch
    import torch.distributed as dist
    from groups import Groups

    torch.backends.cuda.matmul.allow_tf32 = False
    groups = Groups(emulated)
    found = train(groups.device, dist.group.WORLD, width, steps)
    if beside_gloo:
        on_cpu = train(torch.device("cpu"), groups.gloo, width, steps)
        found["losses of gloo"] = on_cpu["losses"]
    ranks.give(found)
    dist.destroy_process_group()


def train(device: Any, group: Any, width: int, steps: int) -> dict[str, list[float]]:
    """Losses, seconds of the steps, and sums of the parameters at the end."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from hetcomm.demo.trainer import cross_entropy, sample

    rank, size, _ = ranks.place()
    network, text = model_and_text(width)
    model = DistributedDataParallel(network.to(device), process_group=group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for step in range(steps):
        windows = sample(text, BATCH, CONTEXT, SEED, step).chunk(size)[rank].to(device)
        begin = time.perf_counter()
        loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=group)
        losses.append(mean.item() / size)
        seconds.append(time.perf_counter() - begin)
    parameters = torch.cat([value.detach().flatten() for value in model.parameters()]).double()
    sums = [float(parameters.sum()), float(parameters.abs().sum())]
    return {"losses": losses, "seconds": seconds, "parameters": sums}


def alone(width: int, steps: int) -> list[float]:
    """The losses of one process."""
    import torch

    from hetcomm.demo.trainer import cross_entropy, sample

    model, text = model_and_text(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        windows = sample(text, BATCH, CONTEXT, SEED, step)
        loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def largest_difference(losses: list[float], wanted: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True))


def main() -> None:
    parsed = parser()
    parsed.add_argument("--two-ranks", action="store_true", help="two ranks on the GPU")
    arguments = parsed.parse_args()
    width, steps = (256, 30) if not arguments.smallest else (32, 3)
    if ranks.is_rank():
        return rank_main(arguments.emulated, width, steps, arguments.two_ranks)
    report = Report(arguments.folder)
    one_process = alone(width, steps)
    cases = TWO_RANKS if arguments.two_ranks else CASES
    for case, members in list(cases.items())[: 1 if arguments.smallest else None]:
        given = ranks.try_launch(report, case, members, arguments, 0.45)
        if given is None:
            continue
        losses = given[0]["losses"]
        peers = {"one process": one_process}
        if "losses of gloo" in given[0]:
            peers["gloo"] = given[0]["losses of gloo"]
        for peer, wanted in peers.items():
            apart = largest_difference(losses, wanted)
            report.figure(
                f"{case}: loss", losses[-1], "", peer=peer, peer_value=wanted[-1],
                target=f"within {TOLERANCE} of {peer} at each of {steps} steps",
                met=apart <= TOLERANCE, largest_difference=apart, first=losses[0],
                parameters=[rank["parameters"] for rank in given],
            )  # fmt: skip
        seconds = sorted(given[0]["seconds"])
        report.figure(f"{case}: step", seconds[len(seconds) // 2], "s")


if __name__ == "__main__":
    main()
