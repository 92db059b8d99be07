"""The limit of memory: an all_reduce beside copies of as many bytes by every rank at once."""

from __future__ import annotations

import multiprocessing
import statistics
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import numpy as np

from hetcomm import _core
from hetcomm.timing import seconds_of
from studies.model import K, Layout, M, Outcome, Plan, Special, Verdict, median_of

BOUND, SECONDS, TURNS = 60.0, 0.02, 7
SIZES = (64 * K, M, 16 * M, 64 * M)


def copies(barrier: Barrier, sizes: tuple[int, ...], answer: Connection) -> None:
    """Sends the median seconds of a copy, by size; all processes copy at the same time."""
    found = []
    for size in sizes:
        source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        calls = max(int(SECONDS * 1e10 / size), 3)
        turns = []
        for _ in range(TURNS):
            barrier.wait(BOUND)
            turns.append(seconds_of(partial(np.copyto, target, source), calls) / calls)
        found.append(statistics.median(turns))
    answer.send(found)


def seconds_of_copies(processes: int, sizes: tuple[int, ...]) -> dict[int, float]:
    """Seconds of a copy by size, of the slowest process."""
    context = multiprocessing.get_context("spawn")
    barrier, ends, started = context.Barrier(processes), [], []
    try:
        for _ in range(processes):
            end, theirs = context.Pipe(duplex=False)
            started.append(context.Process(target=copies, args=(barrier, sizes, theirs)))
            started[-1].start()
            ends.append(end)
            theirs.close()
        for end in ends:
            if not end.poll(BOUND):
                raise RuntimeError(f"copies of {processes} processes took more than {BOUND:g} s")
        answers = [end.recv() for end in ends]
    finally:
        for process in started:
            process.terminate()
            process.join()
    return {size: max(each[index] for each in answers) for index, size in enumerate(sizes)}


def study(plan: Plan, outcomes: list[Outcome]) -> Special:
    verdicts = []
    for ranks in ("2", "4"):
        copied = seconds_of_copies(int(ranks), SIZES[:2] if plan.quick else SIZES)
        for size, seconds in copied.items():
            ours = median_of(outcomes, Layout(ranks), size, "hetcomm")
            if ours is not None:
                what = f"all_reduce {_core.format_bytes(size)}"
                name = f"{ranks} copies at once"
                ratio = ours / seconds
                verdicts.append(
                    Verdict("copies", f"{ranks} ranks", what, ours, name, seconds, ratio, "-", None)
                )
    return {}, verdicts
