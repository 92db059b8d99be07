"""Hosts with two NICs on networks of equal names, of which one does not join the hosts, or
fails during a job."""

import json
from itertools import permutations

import pytest
from emulated import RunProgram

from hetcomm.emulate import Cluster, Host, Nic

MEGABIT = 1_000_000
SLOW, FAST = Nic(100 * MEGABIT, 100 * MEGABIT), Nic(200 * MEGABIT, 200 * MEGABIT)


def cluster(ranks: str) -> Cluster:
    counts = enumerate(map(int, ranks.split("+")))
    return Cluster(tuple(Host(f"host{i}", count, (FAST, SLOW)) for i, count in counts))


def said(lines: list[str], what: str) -> list[str]:
    """The values of each rank's lines with this prefix, by rank."""
    return [line.split("] ")[1] for line in sorted(lines) if line.split("] ")[1].startswith(what)]


@pytest.mark.parametrize("ranks", ["1+1", "2+2"])
@pytest.mark.parametrize(
    ("how", "why"), [("unanswered", "no answer within 1.5 s"), ("refused", "No route to host")]
)
def test_a_network_without_route_is_left_out(
    run_program: RunProgram, ranks: str, how: str, why: str
) -> None:
    """A message over that network would exceed the time of the test."""
    result, lines = run_program(cluster(ranks), "broken_rails.py", how, "host1", "before")
    assert result.ok, lines
    right = said(lines, "right; ")
    assert len(right) == len(result.hosts), lines
    assert set(right) == {"right; host1: 1; tcp over eth0", "right; host0: 1; tcp over eth0"}
    assert set(said(lines, "bandwidths")) == {said(lines, "bandwidths")[0]}
    assert said(lines, "bandwidths")[0].startswith("bandwidths 25000000 25000000 ")
    told = [line for line in lines if "hetcomm warning" in line and "of life" not in line]
    assert told == [
        f'[0 host0] hetcomm warning rank 0: group "world": eth1 (198.18.1.1) of host host0 does '
        "not reach eth1 (198.18.1.2) of host host1, though both list the network 198.18.1.0/24 "
        f"({why}); messages between them take other NICs; mend the network, or name those to use "
        "in HETCOMM_SOCKET_IFNAME"
    ]


def test_hosts_joined_by_the_network_still_use_it(run_program: RunProgram) -> None:
    result, lines = run_program(
        cluster("1+1+1"), "broken_rails.py", "unanswered", "host1", "before"
    )
    assert result.ok, lines
    both, one = "tcp over eth0 + tcp over eth1", "tcp over eth0"
    assert said(lines, "right") == [
        f"right; host1: 1; host2: 2; {one}; {both}",
        f"right; host0: 1; host2: 2; {one}; {both}",
        f"right; host0: 2; host1: 2; {both}",
    ]
    assert len({line.split()[-1] for line in said(lines, "bandwidths")}) == 1
    assert said(lines, "bandwidths")[0].startswith("bandwidths" + " 37500000" * 3)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "messages"])
@pytest.mark.parametrize(
    ("how", "ranks"),
    [("down", "1+1"), ("unanswered", "1+1"), ("down", "2+2"), ("unanswered", "2+2")],
)
def test_a_job_goes_on_without_a_nic(
    run_program: RunProgram, how: str, ranks: str, operation: str
) -> None:
    """Every result is right, also of the operation in whose middle the NIC fails."""
    result, lines = run_program(
        cluster(ranks), "failing_rail.py", how, "host1", operation, timeout=120
    )
    assert result.ok, lines
    assert said(lines, "right") == ["right; tcp over eth0"] * len(result.hosts), lines
    assert len(set(said(lines, "bandwidths"))) == 1, lines
    assert said(lines, "bandwidths")[0].startswith("bandwidths 25000000 25000000 ")
    assert_one_warning(lines, "0.2 Gbit/s left of 0.3 Gbit/s")


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "messages"])
@pytest.mark.parametrize(("how", "whom"), [("down", "everybody"), ("unanswered", "host1")])
def test_three_hosts_go_on_without_a_nic(
    run_program: RunProgram, how: str, whom: str, operation: str
) -> None:
    """The hosts whose NICs still reach each other use both."""
    result, lines = run_program(
        cluster("1+1+1"), "failing_rail.py", how, whom, operation, timeout=120
    )
    assert result.ok, lines
    both, one = "tcp over eth0 + tcp over eth1", "tcp over eth0"
    first = f"right; {one}" if whom == "everybody" else f"right; {one}; {both}"
    third = f"right; {one}; {both}" if whom == "everybody" else f"right; {both}"
    assert said(lines, "right") == [first, f"right; {one}; {both}", third], lines
    assert len({line.split()[-1] for line in said(lines, "bandwidths")}) == 1, lines


def assert_one_warning(lines: list[str], left: str) -> None:
    """One line of Python's warnings, and one of the logger."""
    ends = [f"eth1 (198.18.1.{1 + host}) of host host{host}" for host in range(2)]
    told = [line for line in lines if "any more" in line]
    assert len([line for line in told if "PerformanceWarning: " in line]) == 1, lines
    assert len(told) == 2, lines
    for line in told:
        assert line.startswith("[0 host0] "), lines
        assert any(f"{a} does not reach {b} any more: " in line for a, b in permutations(ends))
        assert f"messages between them take other NICs, with {left}; " in line, lines


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "messages"])
@pytest.mark.parametrize(
    ("how", "ranks"), [("down", "1+1"), ("unanswered", "1+1"), ("unanswered", "2+2")]
)
def test_a_job_goes_on_without_its_fastest_nic(
    run_program: RunProgram, how: str, ranks: str, operation: str
) -> None:
    """Short messages and news take the other NIC then."""
    counts = enumerate(map(int, ranks.split("+")))
    order = Cluster(tuple(Host(f"host{i}", count, (SLOW, FAST)) for i, count in counts))
    result, lines = run_program(order, "failing_rail.py", how, "host1", operation, timeout=120)
    assert result.ok, lines
    assert said(lines, "right") == ["right; tcp over eth0"] * len(result.hosts), lines
    assert len(set(said(lines, "bandwidths"))) == 1, lines
    assert said(lines, "bandwidths")[0].startswith("bandwidths 12500000 12500000 ")
    assert_one_warning(lines, "0.1 Gbit/s left of 0.3 Gbit/s")


def test_the_failure_of_the_last_nic_is_reported(run_program: RunProgram) -> None:
    """Every rank ends with an error, long before the operation's timeout."""
    alone = Cluster(tuple(Host(f"host{i}", 1, (SLOW, FAST)) for i in range(2)))
    result, lines = run_program(alone, "broken_rails.py", "down", "host1", "twice", timeout=120)
    assert result.ok, lines
    failed = said(lines, "failed:")
    assert len(failed) == len(result.hosts), lines
    for line in failed:
        assert "any more" in line or "is unreachable" in line, lines


def test_hosts_of_different_nics_share_one(run_program: RunProgram) -> None:
    """The links of one process to the others divide messages in different ways, over one NIC."""
    pairs = [(FAST, SLOW), (FAST, SLOW), (SLOW, SLOW)]
    unlike = Cluster(tuple(Host(f"host{i}", 1, nics) for i, nics in enumerate(pairs)))
    result, lines = run_program(unlike, "short_calls.py", timeout=60)
    assert result.ok, lines
    assert said(lines, "right") == ["right"] * 3


def test_topo_shows_networks_without_route(run_program: RunProgram) -> None:
    result, lines = run_program(cluster("1+1"), "broken_rails.py", "refused", "host1", "topo")
    assert result.ok, lines
    first = [line.removeprefix("[0 host0] ") for line in lines if line.startswith("[0 ")]
    page = json.loads("\n".join(line for line in first if "hetcomm warning" not in line))
    addresses = ["198.18.1.1", "198.18.1.2"]
    assert page["unjoined"] == [
        ["198.18.1.0/24", *addresses],
        ["198.18.1.0/24", *reversed(addresses)],
    ]
    assert page["links"][0]["nics"] == [["eth0"], ["eth0"]]
