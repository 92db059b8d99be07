"""The shared-memory island engine beside memcpy and gloo, in one run on this machine.

    python bench/island_engine.py --members 2 --json bench/results/island_engine.json

Every member is a process. For each collective and size the engine and gloo take turns, block by
block, so both meet the same disturbances. The table shows the best and the median block of each.
The floor is one memcpy of the buffer by every member at once. Small buffers have no floor: it would
be the time of the Python call. Sizes are those of whole buffers, in bytes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from hetcomm import _core
from hetcomm.timing import seconds_of

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
SIZES = (8, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20)
BLOCKS = 25


@dataclass
class Row:
    """Seconds per call of member 0, best and median over blocks."""

    kind: str
    bytes: int
    memcpy: float
    engine: float
    engine_median: float
    gloo: float | None
    gloo_median: float | None


class Buffers:
    """Tensors of one kind and size, and the island call over the same memory."""

    def __init__(self, kind: str, size: int, member: int, members: int) -> None:
        self.kind = kind
        count = max(1, size // 4)
        block = max(1, count // members)
        everything = members * block
        self.input = torch.ones({"all_gather": block}.get(kind, everything))
        self.output = torch.ones({"reduce_scatter": block}.get(kind, everything))
        if kind == "all_reduce":
            self.input = self.output = torch.ones(count)
        source, target = self.input.data_ptr(), self.output.data_ptr()
        step = 4 * block
        pieces: list[tuple[int, int, int, int, int]]
        if kind == "all_reduce":
            pieces = [(-1, -1, target, target, count)]
        elif kind == "reduce_scatter":
            pieces = [(-1, m, source + m * step, target, block) for m in range(members)]
        elif kind == "all_gather":
            pieces = [(m, -1, source, target + m * step, block) for m in range(members)]
        else:
            pieces = [
                (m, n, source + n * step, target + m * step, block)
                for m in range(members)
                for n in range(members)
            ]
        self.call = _core.IslandCall(
            getattr(_core.StepKind, f"island_{kind}"),
            _core.Dtype.float32,
            _core.ReduceOp.max,
            0,
            pieces,
        )

    def gloo(self) -> None:
        if self.kind == "all_reduce":
            dist.all_reduce(self.output, op=dist.ReduceOp.MAX)
        elif self.kind == "reduce_scatter":
            dist.reduce_scatter_tensor(self.output, self.input, op=dist.ReduceOp.MAX)
        elif self.kind == "all_gather":
            dist.all_gather_into_tensor(self.output, self.input)
        else:
            dist.all_to_all_single(self.output, self.input)


def measure(island: _core.ShmIsland, buffers: Buffers, size: int, gloo: bool) -> Row:
    """Times blocks of calls. The calls of a block depend on the size only."""
    calls = max(1, min(200, (1 << 18) // (size + 1000)))
    gloo_calls = max(1, calls // 20)
    source, target = np.ones(max(1, size), np.uint8), np.ones(max(1, size), np.uint8)
    engine_blocks, gloo_blocks, copies = [], [], []
    for _ in range(BLOCKS):
        engine_blocks.append(island.repeat(0, buffers.call, calls) / calls)
        copies.append(seconds_of(lambda: np.copyto(target, source)))
        if gloo:
            gloo_blocks.append(seconds_of(buffers.gloo, gloo_calls) / gloo_calls)
    return Row(
        kind=buffers.kind,
        bytes=size,
        memcpy=min(copies),
        engine=min(engine_blocks),
        engine_median=statistics.median(engine_blocks),
        gloo=min(gloo_blocks) if gloo else None,
        gloo_median=statistics.median(gloo_blocks) if gloo else None,
    )


def run_member(
    names: list[Connection],
    member: int,
    members: int,
    sizes: list[int],
    gloo: bool,
    store: str,
    out: Connection,
) -> None:
    """names: pipes by which member 0 sends the segment's name to other members."""
    torch.set_num_threads(1)
    if member == 0:
        name = _core.create_shm_segment(members, 4, 0)
        for other in names:
            other.send(name)
    else:
        name = names[0].recv()
    if gloo:
        dist.init_process_group("gloo", f"file://{store}", rank=member, world_size=members)
    island = _core.ShmIsland(name, member, members)
    rows = [
        measure(island, Buffers(kind, size, member, members), size, gloo)
        for kind in KINDS
        for size in sizes
    ]
    if gloo:
        dist.destroy_process_group()
    if member == 0:
        out.send((island.describe(), rows))


def print_table(description: str, rows: list[Row]) -> None:
    print(f"{description}; microseconds, best / median of {BLOCKS} blocks")
    print(f"{'collective':15}{'bytes':>10}{'memcpy':>10}{'engine':>20}{'/memcpy':>9}"
          f"{'gloo':>22}{'gloo/engine':>13}")  # fmt: skip
    for row in rows:
        ratio = f"{row.engine / row.memcpy:.1f}" if row.bytes >= 128 << 10 else "-"
        line = (
            f"{row.kind:15}{row.bytes:>10}{row.memcpy * 1e6:>10.1f}"
            f"{row.engine * 1e6:>10.2f} /{row.engine_median * 1e6:>8.2f}"
            f"{ratio:>9}"
        )
        if row.gloo is not None and row.gloo_median is not None:
            line += (
                f"{row.gloo * 1e6:>11.1f} /{row.gloo_median * 1e6:>9.1f}"
                f"{row.gloo / row.engine:>12.1f}x"
            )
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--without-gloo", action="store_true")
    parser.add_argument("--json", type=Path, help="also write the rows there")
    options = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    names = [context.Pipe(duplex=False) for _ in range(options.members - 1)]
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=run_member,
                args=([names[member - 1][0]] if member else [told for _, told in names], member,
                      options.members, options.sizes, not options.without_gloo,
                      f"{folder}/store", sender),
            )
            for member in range(options.members)
        ]  # fmt: skip
        for process in processes:
            process.start()
        sender.close()
        try:
            description, rows = receiver.recv()
        except EOFError:
            raise SystemExit("a member failed; its error is above") from None
        for process in processes:
            process.join()
    print_table(description, rows)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "engine": description,
            "members": options.members,
            "cores": len(os.sched_getaffinity(0)),
            "processor": platform.processor() or platform.machine(),
            "load": os.getloadavg()[0],
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
