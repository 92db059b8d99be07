"""Messages of staged device memory, beside the copies and the wire alone.

Two ranks are islands of their own: first a rank of the GPU and one of the CPU, then two of the GPU.
They talk over shared memory and over TCP. In the end two ranks of the GPU talk without staging,
where UCX can. A round measures the pinned copies, the wire between pinned buffers, and hetcomm's
messages and all_reduce of device memory. The figures are medians over the rounds. A slow wire gets
fewer rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np
import ranks
from memory import Buffers
from ranks import FolderStore, Rank, view
from report import Report, parser

from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec
from hetcomm.timing import seconds_of

TARGET = 0.85  # of the slowest of copies and wire
CHUNK = 1 << 20  # the size of a staged part of a message
MOST_ROUNDS = 5
CASES = {
    "GPU and CPU, shared memory": [Rank(True, "a", "x"), Rank(False, "a", "y")],
    "GPU and CPU, TCP": [Rank(True, "a", "x"), Rank(False, "b", "y")],
    "GPU and GPU, shared memory": [Rank(True, "a", "x", False), Rank(True, "a", "y", False)],
    "GPU and GPU, TCP": [Rank(True, "a", "x"), Rank(True, "b", "y")],
}
DIRECT = "GPU and GPU, direct"
EVERY = {"HETCOMM_DIRECT_BYTES": "0"}  # short messages are direct, too
CASES[DIRECT] = [Rank(True, "a", label, settings=EVERY) for label in "xy"]


class Member:
    """One of the two ranks: buffers, and a communicator for device and one for pinned memory."""

    def __init__(self, size: int, times: int) -> None:
        self.rank, _, folder = ranks.place()
        self.peer, self.size, self.times = 1 - self.rank, size, times
        self.buffers = Buffers(ranks.on_gpu())
        make = self.buffers.make
        self.source, self.target = make(size), make(size)
        self.pinned_source, self.pinned_target = make(size, True), make(size, True)
        self.staged = Communicator(FolderStore(folder / "staged"), self.rank, 2, 60.0, "staged")
        self.wire = Communicator(
            FolderStore(folder / "wire"), self.rank, 2, 60.0, "wire", vendor="cpu"
        )
        if len(self.staged.topology.islands) != 2:
            raise RuntimeError(f"expected two islands, got {self.staged.topology.islands}")

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds from a barrier of both ranks on."""
        self.wire.submit(Spec(Collective.barrier, Dtype.uint8), b"").wait()
        return seconds_of(work)

    def fewest(self, number: int) -> int:
        """The smallest number of the ranks."""
        value = np.array([number], np.int32)
        spec = Spec(Collective.all_reduce, Dtype.int32, ReduceOp.min, count=1, in_place=True)
        self.wire.submit(spec, value).wait()
        return int(value[0])

    def move(
        self, communicator: Communicator, source: int, target: int, froms: set[int], chunk: int
    ) -> Callable[[], None]:
        """Sends whole buffers from the ranks `froms`, in messages of `chunk` bytes."""

        def work() -> None:
            for _ in range(self.times):
                pending = []
                for start in range(0, self.size, chunk):
                    part = min(chunk, self.size - start)
                    if self.rank not in froms or len(froms) == 2:
                        into = view(target + start, part)
                        pending.append(communicator.recv(into, Dtype.bytes1, self.peer))
                    if self.rank in froms:
                        out = view(source + start, part)
                        pending.append(communicator.send(out, Dtype.bytes1, self.peer))
                for each in pending:
                    each.wait()

        return work

    def all_reduce(self) -> None:
        spec = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=self.size // 4)
        for _ in range(self.times):
            self.staged.submit(
                spec, view(self.source, self.size), view(self.target, self.size)
            ).wait()

    def check(self) -> list[str]:
        """Checks messages both ways and an all_reduce. Returns the errors."""
        inputs = [
            np.random.default_rng(seed).integers(0, 100, self.size // 4).astype(np.float32)
            for seed in (0, 1)
        ]
        self.buffers.write(self.source, inputs[self.rank])
        self.move(self.staged, self.source, self.target, {0, 1}, self.size)()
        wrong = []
        if not np.array_equal(self.buffers.read(self.target, inputs[0]), inputs[self.peer]):
            wrong.append(f"rank {self.rank}: a message brought other bytes than were sent")
        self.all_reduce()
        if not np.array_equal(self.buffers.read(self.target, inputs[0]), inputs[0] + inputs[1]):
            wrong.append(f"rank {self.rank}: all_reduce gave a wrong sum")
        return wrong

    def round(self) -> dict[str, float]:
        """Bytes per second and direction of everything, once."""
        found: dict[str, float] = {}
        moved = self.times * self.size
        out = (self.pinned_source, self.source)
        into = (self.target, self.pinned_target)
        for owner in (0, 1):  # one after the other, since they may share the device

            def copies(mine: bool = self.rank == owner) -> None:
                if mine and self.buffers.device:
                    for name, pairs in {"out": [out], "in": [into], "both": [out, into]}.items():
                        found[f"copy {name}"] = self.buffers.copy_rate(pairs, self.size, self.times)

            self.timed(copies)
        pinned = (self.pinned_source, self.pinned_target)
        for name, froms in {"0 to 1": {0}, "1 to 0": {1}, "both": {0, 1}}.items():
            for chunk in (self.size, CHUNK):
                work = self.move(self.wire, *pinned, froms, chunk)
                rate = moved / self.timed(work)
                found[f"wire {name}"] = max(rate, found.get(f"wire {name}", 0.0))
            work = self.move(self.staged, self.source, self.target, froms, self.size)
            found[f"staged {name}"] = moved / self.timed(work)
        found["all_reduce"] = moved / self.timed(self.all_reduce)
        return found


def rank_main(size: int, times: int, seconds: float) -> None:
    member = Member(size, times)
    wrong = member.check()
    taken = seconds_of(member.round)  # warms up
    rounds = member.fewest(min(MOST_ROUNDS, max(1, int(seconds / taken))))
    found = [member.round() for _ in range(rounds)]
    medians = {name: statistics.median(row[name] for row in found) for name in found[0]}
    path = member.staged.path_to(member.peer)
    topology = member.staged.topology
    messages = topology.rank(member.rank).libraries.get("messages", "host memory")
    direct = not topology.staged(member.rank, member.peer, size)
    ranks.give(
        {"rates": medians, "wrong": wrong, "path": path, "direct": direct, "messages": messages,
         "rounds": rounds}
    )  # fmt: skip
    for communicator in (member.staged, member.wire):
        communicator.leave()


def judge(report: Report, case: str, given: list[dict], size: int, judged: bool) -> None:
    """Figures of one case; a rate is that of the slower rank."""
    report.fact(f"messages, {case}", [rank["messages"] for rank in given])
    if case == DIRECT and not all(rank["direct"] for rank in given):
        return  # the fact says why
    way = "direct" if case == DIRECT else "staged"
    for wrong in (text for rank in given for text in rank["wrong"]):
        report.failure(f"{case}: {wrong}")
    rates = [rank["rates"] for rank in given]
    slower = {name: min(rank[name] for rank in rates) for name in rates[1] if name in rates[0]}
    both = []
    for rank, each in enumerate(rates):
        for name in ("out", "in", "both"):
            if f"copy {name}" in each:
                report.figure(
                    f"{case}: rank {rank} pinned copy {name}", each[f"copy {name}"], "B/s"
                )
        both.append(each.get("copy both", float("inf")))
    for name, (sender, receiver) in {"0 to 1": (0, 1), "1 to 0": (1, 0)}.items():
        limits = {"wire": slower[f"wire {name}"]}
        if way == "staged":
            limits["copy out"] = rates[sender].get("copy out", float("inf"))
            limits["copy in"] = rates[receiver].get("copy in", float("inf"))
        slowest = min(limits, key=lambda stage: limits[stage])
        report.figure(f"{case}: wire {name}", limits["wire"], "B/s")
        value = slower[f"staged {name}"]
        report.figure(
            f"{case}: {way} {name}", value, "B/s", peer=f"slowest stage ({slowest})",
            peer_value=limits[slowest], target=f"at least {TARGET:.0%} of the slowest stage",
            met=value >= TARGET * limits[slowest] if judged and way == "staged" else None,
            bytes=size,
        )  # fmt: skip
    limits = {"wire both ways": slower["wire both"], "copies both ways": min(both)}
    for name in ("staged both", "all_reduce"):
        slowest = min(limits, key=lambda stage: limits[stage])
        report.figure(
            f"{case}: {name.replace('staged', way)}", slower[name], "B/s",
            peer=f"slowest stage ({slowest})", peer_value=limits[slowest], bytes=size,
        )  # fmt: skip
    report.fact(f"path, {case}", [rank["path"] for rank in given])
    report.fact(f"rounds, {case}", given[0]["rounds"])


def main() -> None:
    arguments = parser().parse_args()
    size, times = (64 << 20, 2) if not arguments.smallest else (1 << 18, 1)
    if ranks.is_rank():
        share = arguments.bound / len(CASES)  # of each case; a start takes some of it
        return rank_main(size, times, share / 2 if not arguments.smallest else 0)
    report = Report(arguments.folder)
    for case, members in CASES.items():
        if given := ranks.try_launch(report, case, members, arguments, 1 / len(CASES)):
            judge(report, case, given, size, not arguments.emulated)


if __name__ == "__main__":
    main()
