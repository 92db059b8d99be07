"""Overlap of a collective on device memory with matrix products on the GPU.

There is a rank of the GPU and one of the CPU. The rank of the GPU starts an all_reduce and then
computes on its current stream.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import ranks
from ranks import Rank
from report import Report, parser

ROUNDS = 7


def rank_main(emulated: bool, smallest: bool) -> None:
    import torch
    import torch.distributed as dist
    from groups import Groups

    from hetcomm.timing import seconds_of

    groups = Groups(emulated)
    elements = (64 << 20) // 4 if not smallest else 1 << 14
    tensor = torch.zeros(elements, device=groups.device)
    side = 4096 if groups.on_gpu else 64
    matrix = torch.randn(side, side, device=groups.device)
    product = torch.empty_like(matrix)
    computes = ranks.on_gpu()  # the other rank only takes part

    def compute(times: int) -> None:
        for _ in range(times if computes else 0):
            torch.mm(matrix, matrix, out=product)

    def timed(work: Callable[[], None]) -> float:
        groups.synchronize()
        return seconds_of(work, finish=groups.finish)

    calling = 0.0

    def communicate(times: int = 0) -> None:
        nonlocal calling
        begin = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        calling = time.perf_counter() - begin
        compute(times)
        work.wait()

    communicate()
    timed(lambda: compute(3))
    alone = groups.largest(statistics.median(timed(communicate) for _ in range(3)))
    one = timed(lambda: compute(10)) / 10
    times = max(1, min(1000, int(alone / one)))
    rows: dict[str, list[float]] = {"communicate": [], "compute": [], "both": [], "calling": []}
    for _ in range(ROUNDS if not smallest else 2):
        rows["communicate"].append(timed(communicate))
        rows["compute"].append(timed(lambda: compute(times)))
        rows["both"].append(timed(lambda: communicate(times)))
        rows["calling"].append(calling)
    medians = {name: statistics.median(values) for name, values in rows.items()}
    ranks.give(medians | {"products": times, "bytes": elements * 4})
    dist.destroy_process_group()


def main() -> None:
    arguments = parser().parse_args()
    if ranks.is_rank():
        return rank_main(arguments.emulated, arguments.smallest)
    report = Report(arguments.folder)
    members = [Rank(True, "a"), Rank(False, "b")]
    given = ranks.try_launch(report, "overlap", members, arguments)
    if given is None:
        return
    found = given[0]
    for name in ("communicate", "compute"):
        report.figure(f"{name} alone", found[name], "s")
    report.figure("call of the host", found["calling"], "s")
    longer = max(found["communicate"], found["compute"])
    report.figure(
        "both", found["both"], "s", peer="the longer of both alone", peer_value=longer,
        products=found["products"], bytes=found["bytes"],
    )  # fmt: skip
    hidden = found["communicate"] + found["compute"] - found["both"]
    report.figure(
        "overlap", hidden / min(found["communicate"], found["compute"]), "of the shorter one"
    )


if __name__ == "__main__":
    main()
