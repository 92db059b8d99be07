"""Messages and collectives of two ranks by size: direct where UCX can, staged, and with the CPU.

Each rank is an island, and both are on this host. A figure is the time of one operation. It is the
median of three batches, each from a barrier on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import ranks
from ranks import Rank, view
from report import Report, parser
from staging import Member

from hetcomm._core import Collective, Dtype, ReduceOp, Spec

CASES = {
    "direct": [Rank(True, "a", "x"), Rank(True, "a", "y")],
    "staged": [Rank(True, "a", "x", False), Rank(True, "a", "y", False)],
    "GPU and CPU": [Rank(True, "a", "x"), Rank(False, "a", "y")],
}
SIZES = [8, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
MOST_CALLS, ROUNDS = 50, 3


def works(member: Member, size: int, calls: int) -> dict[str, Callable[[], None]]:
    """By name, so many operations in a row."""
    member.size, member.times = size, calls
    ways = {"message": {0}, "messages both ways": {0, 1}}

    def collective(spec: Spec, sent: int) -> Callable[[], None]:
        def work() -> None:
            source, target = view(member.source, sent), view(member.target, size)
            for _ in range(calls):
                member.staged.submit(spec, source, target).wait()

        return work

    gathers = Spec(Collective.all_gather, Dtype.float32, count=size // 8)
    reduces = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=size // 4)
    return {
        name: member.move(member.staged, member.source, member.target, froms, size)
        for name, froms in ways.items()
    } | {"all_gather": collective(gathers, size // 2), "all_reduce": collective(reduces, size)}


def rank_main(sizes: list[int]) -> None:
    member = Member(max(sizes), 1)
    found: dict[int, dict[str, float]] = {}
    for size in sizes:
        calls = max(2, min(MOST_CALLS, max(sizes) // size))
        found[size] = {}
        for name, work in works(member, size, calls).items():
            member.timed(work)  # warms up
            found[size][name] = statistics.median(member.timed(work) for _ in range(ROUNDS)) / calls
    ranks.give(found)
    for communicator in (member.staged, member.wire):
        communicator.leave()


def main() -> None:
    arguments = parser().parse_args()
    sizes = SIZES if not arguments.smallest else SIZES[:2]
    if ranks.is_rank():
        return rank_main(sizes)
    report = Report(arguments.folder)
    for case, members in CASES.items():
        given = ranks.try_launch(report, case, members, arguments, 1 / len(CASES))
        for size, row in (given[0] if given else {}).items():
            for name, seconds in row.items():
                report.figure(f"{case}: {name}, {size} B", seconds, "s")


if __name__ == "__main__":
    main()
