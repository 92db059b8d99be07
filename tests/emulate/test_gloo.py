"""A real torch job on an emulated cluster, in both rank orders."""

import pytest
from emulated import RunProgram, two_hosts

from hetcomm.emulate import Nic

pytestmark = pytest.mark.needs("torch")


@pytest.mark.parametrize("order", ["block", "interleaved"])
def test_gloo_all_reduce_is_correct(run_program: RunProgram, order: str) -> None:
    nic = Nic(1_000_000_000, 1_000_000_000)
    result, lines = run_program(two_hosts((2, 2), nic, order), "gloo.py", timeout=120)
    assert result.ok, lines
    assert sum(line.endswith("reduced") for line in lines) == 4
    assert result.links[0].out_bytes >= 800_000  # the bridge carried at least one copy
