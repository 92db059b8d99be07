"""How hostile the emulated vendors are in a run of the tests (emulated/settings.h), and a command:

    python tests/running/hostile.py --seeds 20 [--queues 1 2 8] [PATHS]

runs the tests that use devices with each number of hardware queues over so many seeds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "HETCOMM_EMULATED_HOSTILE"
QUEUES = (1, 2, 8)  # the fewest, few, and as many as CUDA has unless told otherwise
TESTS = Path(__file__).resolve().parents[1]
SUITE = (
    "core/test_device.py", "core/test_direct_streams.py", "core/test_emulated_graphs.py",
    "core/test_hostile_streams.py", "core/test_hostile_ccl.py", "core/test_vendors.py",
    "core/test_ccl.py",
    "arrays/test_arrays.py::test_device_arrays_are_accepted",
    "arrays/test_arrays.py::test_streams_and_memory_of_cupy_are_honoured",
    "torch/test_streams.py", "torch/test_graphs.py", "torch/test_mixed_vendors.py",
    "torch/test_partition_devices.py", "faults/test_vendor_libraries.py",
)  # fmt: skip


def mixture(seed: int, queues: int | None = None) -> str:
    """All that is hostile, with seeded delays, and a number of queues by the seed."""
    queues = queues or random.Random(seed).choice(QUEUES)
    return f"queues:{queues},sync,gates,poison,order,lazy,late,handles,ends,delays:{seed}"


def without(*names: str) -> dict[str, str]:
    """The variable as it is, without these parts."""
    parts = os.environ.get(VARIABLE, "").split(",")
    return {VARIABLE: ",".join(part for part in parts if part.partition(":")[0] not in names)}


def for_threads_at_a_time() -> dict[str, str]:
    """The environment of a job whose threads use a group each: each stream has its own queue, the
    device performs calls of several communicators at a time, and no call waits for the device. See
    docs/devices.md, what is not mended."""
    return without("queues", "sync", "gates", "order")


def main() -> int:
    arguments = argparse.ArgumentParser(description="Tests of devices on hostile runtimes.")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--first", type=int, default=1, help="the first seed")
    arguments.add_argument("--queues", type=int, nargs="+", default=QUEUES)
    arguments.add_argument("--workers", default="2")
    arguments.add_argument("paths", nargs="*", default=[str(TESTS / path) for path in SUITE])
    given = arguments.parse_args()
    failed = []
    for queues in given.queues:
        for seed in range(given.first, given.first + given.seeds):
            environment = {**os.environ, VARIABLE: mixture(seed, queues)}
            began = time.monotonic()
            command = [sys.executable, "-P", "-m", "pytest", "-q", "-n", given.workers]
            done = subprocess.run(
                [*command, *given.paths],
                env=environment,
                cwd=TESTS.parent,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            outcome = "passed" if done.returncode == 0 else "FAILED"
            took = time.monotonic() - began
            print(f"{environment[VARIABLE]}: {outcome} in {took:.0f} s", flush=True)
            if done.returncode != 0:
                failed.append(environment[VARIABLE])
                print(done.stdout, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
