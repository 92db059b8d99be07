"""Hosts with NICs that other hosts cannot reach: container bridges, storage networks, and private
networks that have one name on all hosts."""

import pytest
from emulated import RunProgram, two_hosts

from hetcomm.emulate import Nic

GIGABIT = 1_000_000_000
FASTER = 25_000  # Mbit/s, as the facts say


@pytest.mark.parametrize("megabits", [1000, FASTER])
@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param({"red0": "198.18.200.1/24"}, id="on one host"),
        pytest.param({"blue0": "198.18.200.1/24"}, id="on the other host"),
        pytest.param({"red0": "198.18.200.1/24", "blue0": "198.18.201.1/24"}, id="two networks"),
        pytest.param({"red0": "198.18.200.1/24", "blue0": "198.18.200.1/24"}, id="one address"),
        pytest.param({"red0": "198.18.200.1/24", "blue0": "198.18.200.2/24"}, id="one network"),
    ],
)
def test_a_nic_that_other_hosts_cannot_reach_is_not_used(
    run_program: RunProgram, addresses: dict[str, str], megabits: int
) -> None:
    cluster = two_hosts(nic=Nic(GIGABIT, GIGABIT))
    given = [f"{host}={address}" for host, address in addresses.items()]
    result, lines = run_program(cluster, "private_nics.py", megabits, *given)
    assert result.ok, lines
    assert sum(line.endswith(" right") for line in lines) == 2, lines
    networks = {address.rpartition(".")[0] for address in addresses.values()}
    tried = len(set(addresses.values())) == 2 and (len(networks) == 1 or megabits == FASTER)
    assert tried == any("aaa0" in line and "does not reach" in line for line in lines), lines
