"""Rates of the CPU reduction kernels beside a copy and numpy.add of the same bytes.

    python bench/reduce_kernels.py --output bench/results/reduce_kernels.json

Each figure is (sources + 1) x size bytes over the best time of many calls; the copy moves 2 x size
and numpy.add 3 x size. The reference runs right before each kernel, so that ratios hold on a busy
machine. One process per instruction set.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hetcomm import _core
from hetcomm.timing import seconds_of

DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "int8": np.int8,
    "int32": np.int32,
    "int64": np.int64,
    "boolean": np.bool_,
}
SIZES = {"256 KiB": 1 << 18, "4 MiB": 1 << 22, "64 MiB": 1 << 26}
SOURCES = (2, 3, 4, 8)


def best_rate(moved: int, seconds: float, call: Callable[..., object], *arguments: object) -> float:
    """Bytes per second of the fastest call within `seconds`, three calls at least."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        taken.append(seconds_of(partial(call, *arguments)))
    return moved / min(taken)


def measure(seconds: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for dtype, storage in DTYPES.items():
        for size_name, size in SIZES.items():
            count = size // np.dtype(storage).itemsize
            sources: list[np.ndarray] = [np.ones(count, storage) for _ in range(max(SOURCES))]
            target: np.ndarray = np.empty(count, storage)
            for used in SOURCES:
                copy = best_rate(2 * size, seconds, np.copyto, target, sources[0])
                add = best_rate(3 * size, seconds, np.add, sources[0], sources[1], target)
                operation = (_core.Dtype.__members__[dtype], _core.ReduceOp.sum)
                moved = (used + 1) * size
                rate = best_rate(moved, seconds, _core.reduce, *operation, target, sources[:used])
                rows.append(
                    {
                        "instruction_set": _core.instruction_set(),
                        "dtype": dtype,
                        "size": size_name,
                        "sources": used,
                        "bytes_per_second": rate,
                        "copy_bytes_per_second": copy,
                        "numpy_add_bytes_per_second": add,
                        "ratio_to_copy": rate / copy,
                        "ratio_to_numpy_add": rate / add,
                    }
                )
    return rows


def measure_in(instruction_set: str, seconds: float) -> list[dict[str, object]]:
    """The rows of one instruction set, from a separate process; none if unsupported."""
    result = subprocess.run(
        [sys.executable, "-P", __file__, "--inside", "--seconds", str(seconds)],
        env={**os.environ, "HETCOMM_ISA": instruction_set},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if result.returncode != 0:
        print(f"{instruction_set}: left out: {result.stderr.strip().splitlines()[-1]}")
        return []
    rows: list[dict[str, object]] = json.loads(result.stdout)
    return rows


def print_table(rows: list[dict[str, object]]) -> None:
    print(f"{'set':9}{'dtype':10}{'size':>8}{'sources':>9}{'GB/s':>8}{'/ copy':>8}{'/ add':>8}")
    for row in rows:
        rate = float(str(row["bytes_per_second"])) / 1e9
        print(
            f"{row['instruction_set']:9}{row['dtype']:10}{row['size']:>8}{row['sources']:>9}"
            f"{rate:8.1f}{row['ratio_to_copy']:8.2f}{row['ratio_to_numpy_add']:8.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.05, help="for each figure")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--sets", nargs="+", default=["baseline", "avx2", "avx512"])
    parser.add_argument("--inside", action="store_true", help="measure this process, print JSON")
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(measure(arguments.seconds)))
        return
    rows = [row for name in arguments.sets for row in measure_in(name, arguments.seconds)]
    print_table(rows)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        report = {"machine": platform.processor() or platform.machine(), "rows": rows}
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
