"""Checks that the buffers of all ranks fit into their hosts, before any is made."""

from __future__ import annotations

from collections.abc import Iterable

from hetcomm import _core
from hetcomm.bench.case import Case
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.values import ELEMENTS


def check_memory(control: ControlChannel, cases: Iterable[Case]) -> None:
    """Raises InvalidArgumentError if the ranks of a host need more than its available memory."""
    most = max((needed(case, control.rank) for case in cases), default=0)
    facts = control.gather([_core.probe_rank().host, most, _core.available_memory()])
    for host in {fact[0] for fact in facts}:
        theirs = [fact for fact in facts if fact[0] == host]
        wanted, there = sum(fact[1] for fact in theirs), min(fact[2] for fact in theirs)
        if wanted > there:
            raise _core.InvalidArgumentError(
                f"--sizes: {len(theirs)} ranks of a host need {_core.format_bytes(wanted)}, but "
                f"{_core.format_bytes(there)} are available there; choose smaller sizes"
            )


def needed(case: Case, rank: int) -> int:
    """Bytes of a rank: its buffers, and a buffer's size for the library's own memory."""
    given, got = case.blocks(rank)
    blocks = max(given, got) if case.in_place else given + got
    return blocks * case.count * ELEMENTS[case.dtype].size + case.bytes
