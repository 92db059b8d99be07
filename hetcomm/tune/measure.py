"""The measurements of `hetcomm tune`, made by all ranks.

All islands are measured at once: they share nothing, except the processors of emulated hosts. As a
program, `python -m hetcomm.tune.measure FOLDER`, it is a rank started by bench/launch.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from hetcomm import _core
from hetcomm.bench.case import case_of
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.hetcomm_backend import HetcommBackend
from hetcomm.bench.measure import measure
from hetcomm.bench.memory import check_memory
from hetcomm.bench.rank import Tell, main
from hetcomm.bench.settings import Settings
from hetcomm.communicator import Communicator
from hetcomm.timing import seconds_of
from hetcomm.tune.links import (
    MOST_ROUNDS,
    measure_links,
    rounds_of,
    sub_channel,
    with_long_warmup,
)
from hetcomm.tune.profile import Measured

COLLECTIVES = tuple(each.name for each in _core.profiled_collectives())
COPIED, COPIES, CALLS = 16 << 20, 5, 2000


def run(settings: Settings, control: ControlChannel, tell: Tell) -> None:
    """Calls `tell` with each "case" as it begins, and at the end with the "profile"."""
    os.environ.pop("HETCOMM_PROFILE", None)  # an earlier profile must not choose plans here
    settings = replace(settings, sizes=sizes_for(settings.sizes, control.size))
    check_memory(control, settings.cases(control.size))
    topology = _topology(control)
    measured = Measured(topology)
    islands = any(len(island) > 1 for island in topology.islands)
    rounds = rounds_of(len(topology.hosts))[:MOST_ROUNDS]
    total = len(COLLECTIVES) * len(settings.sizes) * islands + len(rounds) + 1
    done = 0

    def announce(what: str) -> None:
        nonlocal done
        tell({"case": what, "number": done, "of": total})
        done += 1

    announce("memory")
    measured.memory(control.run_on_all(_copy_bandwidth), control.run_on_all(_step_seconds))
    if islands:
        _islands(settings, control, measured, announce)
    for number, pairs in enumerate(rounds):
        announce(f"links, round {number + 1}")
        measure_links(control, measured, pairs, f"round/{number}", settings.sizes, settings.effort)
    (text, *_) = control.run_on_all(lambda: measured.text() if control.rank == 0 else None)
    if control.rank == 0:
        tell({"profile": text})
    control.leave()


def sizes_for(sizes: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Sizes of at least a block per rank. A curve needs two that differ by as much."""
    smallest = 4 * ranks
    found = tuple(sorted({max(size, smallest) for size in sizes}))
    if found[-1] >= found[0] + smallest:
        return found
    raise _core.InvalidArgumentError(
        f"--sizes: expected two sizes of at least {smallest} bytes for {ranks} ranks, at least "
        f"{smallest} bytes apart; got {', '.join(map(str, sizes))}; add a larger one"
    )


def _topology(control: ControlChannel) -> _core.Topology:
    store, timeout = control.part("topology"), control.timeout
    with Communicator(store, control.rank, control.size, timeout=timeout, name="tune") as world:
        if any(rank.memory != _core.Memory.host for rank in world.topology.ranks):
            raise _core.InvalidArgumentError(
                "expected ranks in host memory, got ranks on devices; tune does not measure native "
                "libraries: unset HETCOMM_VENDOR"
            )
        return world.topology


def _islands(
    settings: Settings, control: ControlChannel, measured: Measured, announce: Callable[[str], None]
) -> None:
    topology = measured.topology
    mine = topology.islands[topology.island_of(control.rank)]
    part = sub_channel(control, f"island/{mine[0]}", mine) if len(mine) > 1 else None
    backend: HetcommBackend | None = None

    def open_island() -> None:
        nonlocal backend
        if part is not None:
            backend = HetcommBackend("hetcomm", "", part, "")

    def take(name: str, size: int) -> tuple[int, float] | None:
        if part is None or backend is None:
            return None
        case = case_of(name, size, part.size)
        (row,) = measure(part, [backend], case, with_long_warmup(settings.effort, size))
        return row.case.bytes, row.median

    control.run_on_all(open_island)
    for name in settings.collectives:
        for size in settings.sizes:
            announce(f"{name}, {_core.format_bytes(size)}")
            found = control.run_on_all(partial(take, name, size))
            measured.collective(name, found)
    if backend is not None:
        backend.close()


def _copy_bandwidth() -> float:
    """Bytes per second read and written by a copy, while all other ranks copy too."""
    source, target = np.ones(COPIED, np.uint8), np.zeros(COPIED, np.uint8)
    seconds = (seconds_of(lambda: np.copyto(target, source)) for _ in range(COPIES))
    return 2 * COPIED / median(seconds)


def _step_seconds() -> float:
    """Seconds of a call with a plan of one small copy."""
    with Communicator(_core.LocalStore(), 0, 1, name="alone") as alone:
        source, target = np.ones(2, np.float32), np.zeros(2, np.float32)
        return seconds_of(lambda: alone.all_reduce(source, target), CALLS) / CALLS


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), run))
