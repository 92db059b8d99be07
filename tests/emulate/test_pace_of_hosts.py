"""Warnings of slow paths and of late ranks, with one clock and with a clock for each host."""

import re

import pytest
from emulated import RunProgram, two_hosts

from hetcomm.emulate import Nic

GIGABIT = 1_000_000_000
OTHER_CLOCK = pytest.param(
    ("other_clock.py",), marks=pytest.mark.needs("time namespaces"), id="two clocks"
)
clocks = pytest.mark.parametrize("clocks", [pytest.param((), id="one clock"), OTHER_CLOCK])


@clocks
@pytest.mark.parametrize("calls", ["aligned", "endless"])
@pytest.mark.parametrize("slow", [(0, 1), (0,), (1,)])
def test_a_slow_path_is_named(
    run_program: RunProgram, slow: tuple[int, ...], calls: str, clocks: tuple[str, ...]
) -> None:
    """Where one direction is slow, its sender ends early and its receiver begins late. Neither is
    to blame."""
    cluster = two_hosts(nic=Nic(GIGABIT, GIGABIT))
    result, lines = run_program(cluster, *clocks, "slow_path.py", GIGABIT // 10, calls, *slow)
    assert result.ok, lines
    sender = slow[0] if len(slow) == 1 else r"\d"
    assert re.search(
        r"\[0 red0\] warned: group \"\S+\": "
        r"all_gather of 512 KiB takes \S+ ms at best of \d+ calls, expected \S+ ms; the slowest "
        rf"path is from rank {sender} on \S+ to rank \d on \S+, \S+ MiB/s at best of \d+ messages",
        "\n".join(lines),
    ), lines
    assert not any("comes last" in line for line in lines), lines


@clocks
@pytest.mark.parametrize("late", [0, 1])
def test_a_late_rank_is_named(run_program: RunProgram, late: int, clocks: tuple[str, ...]) -> None:
    result, lines = run_program(two_hosts(), *clocks, "late_rank.py", late)
    assert result.ok, lines
    assert re.search(rf"\[0 red0\] warned: rank {late} on \S+ of group", "\n".join(lines)), lines
