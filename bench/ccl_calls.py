"""Host time of a native collective, with blocking and non-blocking communicators, in one run.

    python bench/ccl_calls.py                     # on the emulated vendor
    python bench/ccl_calls.py --vendor nvidia     # on the installed NCCL and GPU

Times from start() until the call is in the stream, and until it is done. Members are threads of one
process with a device each. The emulated vendor moves bytes over sockets, so the rest of the time is
not hetcomm's. Variants take turns in separate processes, because libraries read the environment
once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading

from hetcomm import _core
from hetcomm.emulate import vendors

VARIANTS = {"non-blocking": "0", "blocking": "1"}


def measure(vendor: str, members: int, calls: int, floats: int) -> list[float]:
    """Microseconds of member 0 until the call is in the stream, and until it is done."""
    unique_id = _core.make_ccl_id(vendor)
    found: list[tuple[float, float]] = [(0.0, 0.0)] * members

    def body(member: int) -> None:
        island = _core.CclIsland(vendor, member, unique_id, member, members)
        memory = _core.Device.open(vendor, member).allocate(4 * floats)
        call = _core.IslandCall(
            _core.StepKind.island_all_reduce, _core.Dtype.float32, _core.ReduceOp.sum, 0,
            [(-1, -1, memory, memory, floats)],
        )  # fmt: skip
        island.repeat(call, calls // 10 + 1)
        found[member] = island.repeat(call, calls)
        island.close()

    threads = [threading.Thread(target=body, args=(member,)) for member in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [1e6 * seconds / calls for seconds in found[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vendor", default="emulated")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--floats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    vendor = "nvidia" if options.vendor == "emulated" else options.vendor
    if options.inner:
        print(json.dumps(measure(vendor, options.members, options.calls, options.floats)))
        return
    environment = dict(os.environ)
    if options.vendor == "emulated":
        environment |= vendors.library_environment("nvidia")
    rows: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    for _ in range(options.rounds):
        for name, value in VARIANTS.items():
            done = subprocess.run(
                [sys.executable, __file__, "--inner", *sys.argv[1:]],
                env=environment | {"HETCOMM_CCL": f"blocking={value}"},
                check=True, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
            rows[name].append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{'':>14}  in the stream  done   (us, median and least of {options.rounds} processes)")
    for name, found in rows.items():
        columns = list(zip(*found, strict=True))
        text = "  ".join(f"{statistics.median(c):7.2f} {min(c):7.2f}" for c in columns)
        print(f"{name:>14}  {text}")


if __name__ == "__main__":
    main()
