"""A path that becomes slower than the cost model predicts is told."""

import re

from emulated import RunProgram, two_hosts

from hetcomm.emulate import Nic

GIGABIT = 1_000_000_000


def test_a_slow_path_is_named(run_program: RunProgram) -> None:
    cluster = two_hosts(nic=Nic(GIGABIT, GIGABIT))
    result, lines = run_program(cluster, "slow_path.py", GIGABIT // 10)
    assert result.ok, lines
    assert re.search(
        r"\[0 red0\] warned: .*"
        r"all_reduce of 512 KiB takes \S+ ms at best of \d+ calls, expected \S+ ms; the slowest "
        r"path is from rank \d on \S+ to rank \d on \S+, \S+ MiB/s at best of \d+ messages",
        "\n".join(lines),
    ), lines
