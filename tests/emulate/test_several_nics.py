"""Messages use several NICs of a host together, each for its share."""

import pytest
from emulated import RunProgram
from undisturbed import undisturbed

from hetcomm.emulate import Cluster, Host, Nic, Result

MEGABIT = 1_000_000
SLOW, FAST = Nic(100 * MEGABIT, 100 * MEGABIT), Nic(200 * MEGABIT, 200 * MEGABIT)
COUNT = 500_000


def cluster(ranks: str, *nics: Nic) -> Cluster:
    return Cluster(
        tuple(Host(f"host{i}", int(count), nics) for i, count in enumerate(ranks.split("+")))
    )


def shares(result: Result, host: str) -> list[float]:
    """The shares of each NIC in the bytes that a host sent and received."""
    sent = [link.out_bytes + link.in_bytes for link in result.links if link.host == host]
    assert sum(sent) > 4 * COUNT
    return [one / sum(sent) for one in sent]


@pytest.mark.parametrize("ranks", ["1+1", "2+2", "1+2"])
def test_unequal_nics_carry_their_shares(run_program: RunProgram, ranks: str) -> None:
    result, lines = run_program(cluster(ranks, SLOW, FAST), "several_nics.py", COUNT)
    assert result.ok, lines
    assert all("right; tcp over eth1 + tcp over eth0" in line for line in lines), lines
    slow, fast = shares(result, "host0")
    assert 0.25 < slow < 0.42 and fast > 0.55


def test_equal_nics_carry_halves(run_program: RunProgram) -> None:
    def measured() -> list[float]:
        result, lines = run_program(cluster("2+2", SLOW, SLOW), "several_nics.py", COUNT)
        assert result.ok, lines
        return shares(result, "host1")

    # A busy machine may make one connection send a part of its data again.
    undisturbed(measured, lambda found: all(0.45 < share < 0.55 for share in found), times=3)


def test_short_messages_take_the_best_nic(run_program: RunProgram) -> None:
    """Set-up and heartbeats take the other NIC: some kilobytes, and more on a slow machine."""
    arguments = (1000, "ROUNDS=50")
    result, lines = run_program(cluster("1+1", SLOW, FAST), "several_nics.py", *arguments)
    assert result.ok, lines
    slow, fast = (link.out_bytes for link in result.links[:2])
    assert slow < fast / 8 and fast > 400_000


def test_a_nic_to_some_hosts_is_used_for_these_only(run_program: RunProgram) -> None:
    hosts = (
        Host("red0", 1, (SLOW, FAST)),
        Host("blue0", 1, (SLOW, FAST)),
        Host("grey0", 1, (SLOW,)),
    )
    result, lines = run_program(Cluster(hosts), "several_nics.py", COUNT)
    assert result.ok, lines
    both, one = "tcp over eth1 + tcp over eth0", "tcp over eth0"
    paths = {line.split("] ")[0]: line.split("; ")[1:] for line in lines}
    assert paths == {"[0 red0": [one, both], "[1 blue0": [one, both], "[2 grey0": [one]}


@pytest.mark.parametrize("variable", ["HETCOMM_SOCKET_IFNAME", "UCX_NET_DEVICES"])
def test_the_user_may_choose_one_nic(run_program: RunProgram, variable: str) -> None:
    arguments = (COUNT, f"{variable}=eth0")
    result, lines = run_program(cluster("1+1", SLOW, FAST), "several_nics.py", *arguments)
    assert result.ok, lines
    assert all("right; tcp over eth0" in line for line in lines), lines
    assert shares(result, "host0")[0] > 0.99
