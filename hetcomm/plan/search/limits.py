"""What no layout exceeds, and what a job lacks that fits nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from hetcomm import _core
from hetcomm.plan.search.nodes import Search
from hetcomm.plan.search.search import lacking, search
from hetcomm.plan.search.shapes import Part
from hetcomm.plan.search.terms import Terms

# Memory is tried with these factors, until a layout fits.
FACTORS = (1.1, 1.25, 1.5, 2, 3, 5, 8, 16, 64, 1024)


def upper_bound(root: Search) -> float:
    """Samples per second of all devices together, each at the best rate of its kind.

    A device's rate is that of a homogeneous cluster without bubbles, transfers, reductions and
    memory limits: the best over tensor degrees and micro-batches of all layers' time.
    """
    terms, total, model = root.terms, 0.0, root.terms.problem.model
    for index, pool in enumerate(terms.problem.pools):
        rates = [0.0]
        for samples in root.space.micro_batches:
            for tensor in root.space.tensors:
                if terms.block_seconds(index, tensor, 1, samples) is not None:
                    part = Part(index, tensor, 1, 1)
                    seconds = sum(
                        count * terms.rank_seconds(part, samples, kind)
                        for kind, count in model.count(0, model.layers).items()
                    )
                    rates.append(1 / seconds)
        total += max(rates) * pool.ranks
    ranks = sum(pool.ranks for pool in terms.problem.pools)
    return total / terms.problem.profile.crowding(ranks)


def refuse_memory(root: Search, seconds: float, cut: bool) -> NoReturn:
    """Raises hetcomm.InvalidArgumentError: what is missing, and what would help.

    seconds: the limit of the search; cut: whether the search ended there.
    """
    found = (
        f"found no layout that fits the memory within {seconds:g} s"
        if cut
        else ("no layout fits the memory")
    )
    problem = root.terms.problem
    for factor in FACTORS:
        devices = {
            name: replace(device, memory=device.memory * factor)
            for name, device in problem.profile.devices.items()
        }
        terms = Terms(replace(problem, profile=replace(problem.profile, devices=devices)))
        larger = replace(root, terms=terms)
        best = search(larger, top=1, tolerance=0.99, seconds=max(1.0, seconds / 4)).best
        if best:
            layout = best[0][1].layout
            over = lacking(problem, layout)
            rank = max(over, key=lambda each: over[each])
            kind = problem.devices[rank]
            needed = problem.profile.devices[kind].memory + over[rank]
            raise _core.InvalidArgumentError(
                f"plan: {found}. A frugal one needs {needed / 1e9:.1f} GB on rank {rank} ({kind}, "
                f"stage {layout.place(rank)[0]}), {over[rank] / 1e9:.1f} GB more than the device "
                f"has; {_remedy(root, factor, cut)}"
            )
    raise _core.InvalidArgumentError(
        "plan: expected a layout that the batch, the degrees and the ranks permit, found none with "
        "any memory; permit more tensor degrees, micro-batches, schedules or idle ranks"
        + ("; or search longer with --seconds" if cut else "")
    )


def _remedy(root: Search, factor: float, cut: bool) -> str:
    """What the search may not vary, then what it cannot."""
    permitted, space = root.settings_space, root.space
    remedies = ["search longer with --seconds"] if cut else []
    if True not in permitted.recompute:
        remedies.append("permit recompute")
    if "cluster" not in permitted.levels:
        remedies.append('permit the partition level "cluster"')
    if min(space.micro_batches) > 1:
        remedies.append("permit micro-batches of 1")
    more = f"about {factor:g} times as many devices, or devices with as much more memory"
    return "; ".join([*remedies, f"otherwise take {more}"])
