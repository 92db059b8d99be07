"""All-reduce among ranks of one host, through torch: hetcomm against gloo, in turn in one run.

python bench/island.py [--ranks 2] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FLOAT32 = 4
SIZES = {8: 2000, 64 << 10: 500, 1 << 20: 100, 16 << 20: 20}  # bytes: operations per round
ROUNDS = 7


def rank_main(result: Path, store: str) -> None:
    import torch
    import torch.distributed as dist

    import hetcomm  # noqa: F401

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("hetcomm", init_method=f"file://{store}", rank=rank, world_size=size)
    groups = {"hetcomm": None, "gloo": dist.new_group(backend="gloo")}
    report = {}
    for size_bytes, operations in SIZES.items():
        tensor = torch.zeros(size_bytes // FLOAT32)
        microseconds: dict[str, list[float]] = {name: [] for name in groups}
        for round_number in range(ROUNDS + 1):
            for name, group in groups.items():
                count = operations if name == "hetcomm" else max(5, operations // 10)
                dist.barrier()
                start = time.perf_counter()
                for _ in range(count):
                    dist.all_reduce(tensor, group=group)
                if round_number > 0:  # the first one warms up
                    microseconds[name].append((time.perf_counter() - start) / count * 1e6)
        report[size_bytes] = {name: statistics.median(all_) for name, all_ in microseconds.items()}
    if rank == 0:
        result.write_text(json.dumps(report))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.result:
        return rank_main(arguments.result, arguments.store)

    from hetcomm.demo.machine import describe_machine

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--result", str(result), "--store", folder + "/store"],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(arguments.ranks),
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(arguments.ranks)
        ]
        if any(rank.wait(timeout=600) for rank in ranks):
            raise SystemExit("a rank failed")
        measured = json.loads(result.read_text())
    for size, medians in measured.items():
        print(
            f"{arguments.ranks} ranks, one host, {int(size):>9} B all_reduce: "
            f"hetcomm {medians['hetcomm']:9.1f} us  gloo {medians['gloo']:9.1f} us  "
            f"({medians['gloo'] / medians['hetcomm']:.1f} x)"
        )
    if arguments.output:
        report = {"machine": describe_machine(), "ranks": arguments.ranks, "microseconds": measured}
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
