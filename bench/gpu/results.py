"""Whether results are right, beside oracles that know nothing of hetcomm.

All collectives, dtypes and operations at odd sizes, by tests/torch/collectives.py: NumPy has the
exact sums of integers, torch in double precision the others. Then large random sums, which torch
computes on the device from the inputs of all ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ranks
from ranks import Rank
from report import Report, parser

CASES = {
    "one GPU rank": [Rank(True)],
    "GPU and CPU": [Rank(True, "a", "x"), Rank(False, "b", "y")],
}
TWO_RANKS = {
    "two ranks on the GPU": [Rank(True), Rank(True)],
    "two on the GPU and one on the CPU": [Rank(True, "a"), Rank(True, "a"), Rank(False, "b")],
}
LARGE = (1_000_003, 16_777_213)  # elements
SEED = 7


def large_sums(size: int, rank: int, device: str, count: int) -> str:
    """The first error; empty if the sum of random values is right."""
    import torch
    import torch.distributed as dist

    parts = []
    for peer in range(size):
        random = torch.Generator().manual_seed(SEED + peer)
        parts.append(torch.randn(count, generator=random))
    total = parts[rank].to(device, copy=True)
    dist.all_reduce(total)
    exact, magnitude = (
        torch.zeros(count, dtype=torch.float64, device=total.device) for _ in range(2)
    )
    for part in parts:
        exact += part.to(total.device)
        magnitude += part.abs().to(total.device)
    bound = size * torch.finfo(torch.float32).eps * magnitude
    wrong = int(((total - exact).abs() > bound).sum())
    return f"{wrong} of {count} elements are wrong" if wrong else ""


def rank_main(emulated: bool, smallest: bool) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "torch"))
    import torch.distributed as dist
    from collectives import cases, ccl_has, failures_on
    from groups import Groups

    groups = Groups(emulated)
    device = str(groups.device)
    layout = "direct"  # every rank takes the same cases
    wrong = failures_on(device, groups.rank, groups.size, SEED, layout, whole=not smallest)
    for count in LARGE[: 1 if smallest else None]:
        if found := large_sums(groups.size, groups.rank, device, count):
            wrong.append(f"rank {groups.rank}, sum of {count} random values: {found}")
    checked = cases(SEED, groups.size, layout, whole=not smallest)
    ranks.give({"wrong": wrong, "cases": sum(map(ccl_has, checked)) + len(LARGE)})
    dist.destroy_process_group()


def main() -> None:
    parsed = parser()
    parsed.add_argument("--two-ranks", action="store_true", help="two ranks on the GPU")
    arguments = parsed.parse_args()
    if ranks.is_rank():
        return rank_main(arguments.emulated, arguments.smallest)
    report = Report(arguments.folder)
    cases = TWO_RANKS if arguments.two_ranks else CASES
    if arguments.smallest:
        cases = {name: members for name, members in cases.items() if len(members) == 2}
    checked = {}
    for case, members in cases.items():
        given = ranks.try_launch(
            report, case, members, arguments, 1 / len(cases),
            "find the smallest wrong case: pytest tests/gpu/test_gpu_collectives.py",
        )  # fmt: skip
        for one in given or []:
            checked[case] = one["cases"]
            report.fact("cases", checked)
            if one["wrong"]:
                report.failure(f"{case}: {len(one['wrong'])} wrong, such as {one['wrong'][0]}")


if __name__ == "__main__":
    main()
