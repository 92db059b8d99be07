"""The device layer on the GPU: rates of copies, and the cases of tests/core/devices.py.

Each case runs in a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import ranks
from ranks import Rank
from report import Report, parser

CASES = ("copies", "order", "between_streams", "memory", "damage", "loaded", "fork")
PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "core" / "devices.py"
ROUNDS = 5


def rank_main(size: int) -> None:
    from memory import Buffers

    buffers = Buffers(True)
    first, second = buffers.make(size), buffers.make(size)
    pinned, other = buffers.make(size, pinned=True), buffers.make(size, pinned=True)
    ways = {
        "device to pinned": [(pinned, first)],
        "pinned to device": [(second, pinned)],
        "both ways": [(pinned, first), (second, other)],
        "device to device": [(second, first)],
    }
    for pairs in ways.values():
        buffers.copy_rate(pairs, size, 1)
    found = {
        name: statistics.median(buffers.copy_rate(pairs, size, 8) for _ in range(ROUNDS))
        for name, pairs in ways.items()
    }
    small = [1 / buffers.copy_rate(ways["device to pinned"], 1, 100) for _ in range(ROUNDS)]
    ranks.give({"rates": found, "small": statistics.median(small)})


def main() -> None:
    arguments = parser().parse_args()
    size = 256 << 20 if not arguments.smallest else 1 << 20
    if ranks.is_rank():
        return rank_main(size)
    report = Report(arguments.folder)
    for case in CASES:
        environment = Rank(True).environment(0, 1, arguments.folder, arguments.emulated)
        try:
            done = subprocess.run(
                [sys.executable, str(PROGRAM), case, "nvidia"],
                env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, timeout=arguments.bound / 4, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            report.failure(f"case {case}: no end within {arguments.bound / 4:.0f} s")
            continue
        if done.returncode != 0:
            report.failure(f"case {case}: {done.stdout[-1500:]}")
    report.fact("cases", CASES)
    found = ranks.try_launch(report, "copies", [Rank(True)], arguments, 1 / 2)
    if found is None:
        return
    (given,) = found
    for name, rate in given["rates"].items():
        report.figure(f"copy {name}", rate, "B/s", bytes=size)
    report.figure("copy of one byte, in a batch of 100", given["small"], "s")


if __name__ == "__main__":
    main()
