"""DistributedDataParallel of a small GPT over GPU and CPU ranks, beside one process on the CPU.

The process takes the whole batches. The losses must be equal within rounding.
"""

from __future__ import annotations

import time

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
SEED, BATCH, CONTEXT = 0, 16, 64


def model_and_text(width: int) -> tuple:
    from hetcomm.demo.trainer import build_model, standard_library

    return build_model(width, 4, 4, CONTEXT, SEED), standard_library()


def rank_main(emulated: bool, width: int, steps: int) -> None:
    import torch
    import torch.distributed as dist
    from groups import Groups
    from torch.nn.parallel import DistributedDataParallel

    from hetcomm.demo.trainer import cross_entropy, sample

    torch.backends.cuda.matmul.allow_tf32 = False
    groups = Groups(emulated)
    network, text = model_and_text(width)
    model = DistributedDataParallel(network.to(groups.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds = [], []
    for step in range(steps):
        windows = sample(text, BATCH, CONTEXT, SEED, step).chunk(groups.size)[groups.rank]
        windows = windows.to(groups.device)
        begin = time.perf_counter()
        loss = cross_entropy(model(windows[:, :-1]), windows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / groups.size)
        seconds.append(time.perf_counter() - begin)
    parameters = torch.cat([value.detach().flatten() for value in model.parameters()]).double()
    sums = [float(parameters.sum()), float(parameters.abs().sum())]
    ranks.give({"losses": losses, "seconds": seconds, "parameters": sums})
    dist.destroy_process_group()


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


def main() -> None:
    arguments = parser().parse_args()
    width, steps = (256, 30) if not arguments.smallest else (32, 3)
    if ranks.is_rank():
        return rank_main(arguments.emulated, width, steps)
    report = Report(arguments.folder)
    wanted = alone(width, steps)
    for case, members in list(CASES.items())[: 1 if arguments.smallest else None]:
        given = ranks.try_launch(report, case, members, arguments, 0.45)
        if given is None:
            continue
        losses = given[0]["losses"]
        apart = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True))
        report.figure(
            f"{case}: loss", losses[-1], "", peer="one process", peer_value=wanted[-1],
            target=f"within {TOLERANCE} of one process at each of {steps} steps",
            met=apart <= TOLERANCE, largest_difference=apart, first=losses[0],
            parameters=[rank["parameters"] for rank in given],
        )  # fmt: skip
        seconds = sorted(given[0]["seconds"])
        report.figure(f"{case}: step", seconds[len(seconds) // 2], "s")


if __name__ == "__main__":
    main()
