"""The cost of the flight recorder: groups with and without, in turns, on one host.

    python bench/recorder.py --ranks 2

Each rank is a process with two groups of the same ranks: one with a recorder, one without. Blocks
of all_reduces alternate between both, so both meet the same disturbances. The table has the median
over pairs of blocks of the time with the recorder beside the time without, and its quartiles.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

import hetcomm
from hetcomm.rendezvous import free_port
from hetcomm.timing import seconds_of

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20)
BLOCK_SECONDS = 0.02


def compare(groups: list[hetcomm.Communicator], size: int, pairs: int) -> tuple[float, list[float]]:
    """Seconds of a call without recorder, and the ratio of each pair of blocks."""
    data = np.ones(max(1, size // 4), np.float32)

    def block(group: hetcomm.Communicator, calls: int) -> float:
        group.barrier()
        return seconds_of(lambda: group.all_reduce(data, data, op="max"), calls) / calls

    for group in groups:
        block(group, 200)
    slowest = np.array([block(groups[1], 200)])
    groups[0].all_reduce(slowest, slowest, op="max")
    calls = max(10, int(BLOCK_SECONDS / slowest[0]))
    ratios, base = [], []
    for pair in range(pairs):
        order = (0, 1) if pair % 2 == 0 else (1, 0)
        found = {which: block(groups[which], calls) for which in order}
        ratios.append(found[0] / found[1])
        base.append(found[1])
    return statistics.median(base), ratios


def rank(pairs: int, sizes: list[int]) -> None:
    first = hetcomm.Communicator.from_env()
    recording = first.split(0)
    os.environ["HETCOMM_RECORDER"] = "0"
    groups = [recording, first.split(0)]
    for size in sizes:
        base, ratios = compare(groups, size, pairs)
        if first.rank == 0:
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(
                f"{size:>9}{base * 1e6:>12.2f}{100 * (middle - 1):>+10.2f} %"
                f"{100 * (low - 1):>+12.2f} %{100 * (high - 1):>+10.2f} %",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args()
    if "RANK" in os.environ:
        return rank(options.pairs, options.sizes)
    print(f"{options.ranks} ranks, load {os.getloadavg()[0]:.2f}")
    print(f"{'bytes':>9}{'us without':>12}{'with':>12}{'quartiles':>14}")
    meeting = {"WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1"}
    meeting |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__)), *sys.argv[1:]],
            env=os.environ | meeting | {"RANK": str(number), "LOCAL_RANK": str(number)},
        )
        for number in range(options.ranks)
    ]
    for process in processes:
        if process.wait() != 0:
            raise SystemExit("a rank failed; its error is above")
    return None


if __name__ == "__main__":
    main()
