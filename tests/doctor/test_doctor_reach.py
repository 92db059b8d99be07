"""Connections between hosts: their links, the findings, and real ones over the loopback."""

from __future__ import annotations

import socket
import threading
from dataclasses import asdict, replace
from typing import Any

import pytest
from doctored import GIGABIT, cluster, member, nic, texts
from undisturbed import undisturbed

from hetcomm._core import Fabric
from hetcomm.doctor import clock, reach, wire
from hetcomm.doctor.cluster import JobFacts, Link

REACH = {"reach": {"ports": ["32768", "60999"]}}


def two(link: dict[str, Any], *more: dict[str, Any], **fields: Any) -> JobFacts:
    """Two hosts with two NICs, and links from the first to the second."""
    ranks = [
        member(rank, "ab"[rank], nic(rank + 1, **fields), nic(rank + 1, "eth1"), **REACH)
        for rank in range(2)
    ]
    base = Link(0, 1, "eth0", "eth0", "198.18.0.1", "198.18.0.2", 40000)
    return cluster(*ranks, links=[replace(base, **each) for each in (link, *more)])


def test_hosts_are_linked_by_their_common_networks() -> None:
    ranks = [member(rank, "ab"[rank], nic(rank + 1), nic(rank + 1, "eth1")) for rank in range(2)]
    links = reach.links_of([[ranks[0]], [ranks[1]]], [1000, 2000])
    assert [(x.source, x.target, x.own, x.from_address, x.to_address, x.port) for x in links] == [
        (0, 1, "eth0", "198.18.0.1", "198.18.0.2", 2000),
        (0, 1, "eth1", "198.18.1.1", "198.18.1.2", 2000),
        (1, 0, "eth0", "198.18.0.2", "198.18.0.1", 1000),
        (1, 0, "eth1", "198.18.1.2", "198.18.1.1", 1000),
    ]


def test_hosts_of_other_networks_are_linked_by_the_addresses_of_set_up() -> None:
    far = [[member(0, "a", nic(1))], [member(1, "b", nic(2, "eth1"))]]
    links = reach.links_of(far, [1000, 2000])
    assert [(link.from_address, link.to_address) for link in links] == [
        ("198.18.0.1", "198.18.1.2"),
        ("198.18.1.2", "198.18.0.1"),
    ]


def test_fast_connections_are_well() -> None:
    assert reach.check(two({"rate": 0.9 * GIGABIT})) == []


def test_a_pair_that_nothing_joins_is_an_error_with_ports() -> None:
    (text,) = texts(reach.check(two({"why": "connection refused"})))
    assert text.startswith("error [0, 1] node-a eth0 198.18.0.1 does not reach node-b eth0 ")
    assert "198.18.0.2 port 40000: connection refused" in text
    assert "iptables -I INPUT -p tcp -s 198.18.0.1 --dport 32768:60999 -j ACCEPT on node-b" in text


def test_a_missing_route_is_named() -> None:
    (text,) = texts(reach.check(two({"why": "no route to host"})))
    assert "on node-a: ip route get 198.18.0.2" in text


def test_a_broken_nic_beside_another_is_a_warning() -> None:
    broken = {"own": "eth1", "other": "eth1", "why": "no answer within 1.5 s"}
    (text,) = texts(reach.check(two({"rate": GIGABIT}, broken)))
    assert text.startswith("warning [0, 1] node-a eth1")


@pytest.mark.parametrize(
    ("reference", "severity", "words"),
    [
        (10.0 * GIGABIT, "warning", "0.4 Gbit/s measured | 1 Gbit/s, the nominal rate"),
        (None, "warning", "ethtool eth0"),
        (0.5 * GIGABIT, "note", "the processors bound the measurement"),
    ],
)
def test_a_slow_link_is_a_warning_unless_processors_bound_it(
    reference: float | None, severity: str, words: str
) -> None:
    (text,) = texts(reach.check(two({"rate": 0.4 * GIGABIT, "reference": reference})))
    assert text.startswith(f"{severity} [0, 1] from node-a eth0 to node-b eth0")
    assert words in text


def test_a_connection_that_loses_large_packets_is_an_error() -> None:
    (text,) = texts(reach.check(two({"rate": 0.0})))
    assert text.startswith("error [0, 1] from node-a eth0 to node-b eth0: the connection forms")
    assert "ping -M do -s SIZE 198.18.0.2" in text
    sender, receiver = socket.socketpair()
    with sender, receiver:
        receiver.settimeout(0.05)
        assert wire.receive_rate(receiver) == 0.0
        sender.sendall(b"x")
        assert wire.receive_rate(receiver) is None


def test_an_unmeasured_rate_is_a_note() -> None:
    (text,) = texts(reach.check(two({"rate": None})))
    assert text.startswith("note [0, 1] the rate from node-a eth0 to node-b eth0 was not measured")


def test_a_rate_that_no_round_measures_is_no_finding_of_its_link() -> None:
    links = [Link(a, b, "eth0", "eth0", "198.18.0.1", "198.18.0.2", 1) for a, b in PAIRS]
    found = reach.planned(links, [[(1, 2)], [(0, 1)]])
    assert [(x.source, x.target) for x in found if not x.planned] == [(0, 2), (2, 0)]
    assert reach.check(two({"rate": None, "planned": False})) == []


@pytest.mark.parametrize(
    "fields", [{"bandwidth_known": False}, {"fabric": Fabric.infiniband, "subnet": "fe80"}]
)
def test_rates_without_a_nominal_one_are_a_note(fields: dict[str, Any]) -> None:
    (text,) = texts(reach.check(two({"rate": 1.0 * GIGABIT}, {"rate": 2.0 * GIGABIT}, **fields)))
    assert text.startswith("note [] rates of eth0 were not judged")
    assert "measured 1 Gbit/s to 2 Gbit/s" in text


def test_many_like_findings_are_condensed() -> None:
    slow = [{"rate": 0.1 * GIGABIT}] * (reach.SHOWN + 3)
    found = texts(reach.check(two(slow[0], *slow[1:])))
    assert len(found) == reach.SHOWN + 1
    assert found[-1].startswith("warning [0, 1] 3 more findings like these between hosts")


def test_what_was_not_tried_is_a_note() -> None:
    (text,) = texts(reach.check(cluster(member(0), alone=True)))
    assert text.startswith("note [] connections between hosts were not tried")
    (text,) = texts(reach.check(cluster(member(0), unmeasured="no results came from ranks [3]")))
    assert text.startswith("note [] no results came from ranks [3]")


@pytest.mark.parametrize(
    ("offset", "words"),
    [(0.5, ""), (-3.0, "3.000 s behind node-a, within 2 ms"), (7.0, "7.000 s ahead of node-a")],
)
def test_clocks_far_apart_are_a_warning(offset: float, words: str) -> None:
    back = {"source": 1, "target": 0, "offset": -offset - 0.5, "error": 0.5}
    found = texts(clock.check(two({"offset": offset, "error": 0.002}, back)))
    assert [words in text for text in found] == ([True] if words else [])


def test_a_clock_without_a_connection_is_a_note() -> None:
    (text,) = texts(clock.check(two({"why": "connection refused"})))
    assert text.startswith("note [1] the clock was not compared: no connection with node-a")


def test_the_time_for_rates_is_bounded() -> None:
    for hosts in (2, 16, 200):
        every = [[(0, 1)]] * (hosts - 1)
        rounds, slot = wire.plan_rates(every, 2)
        assert wire.SHORTEST <= slot <= wire.LONGEST
        assert 0 < len(rounds) * 2 * slot <= wire.RATES + 0.01
        assert rounds == every[: len(rounds)]
    assert wire.plan_rates([], 0)[0] == []


PAIRS = [(a, b) for a in range(3) for b in range(3) if a != b]


def test_hosts_connect_compare_clocks_and_measure() -> None:
    # A busy machine may keep a thread from its processor for the whole time of a rate.
    results = undisturbed(spoken, is_complete, times=5)
    for number, (a, _) in enumerate(PAIRS):
        out = results[a]["out"][number]
        assert abs(out["offset"]) <= out["error"] + 1e-3
    assert results[0]["out"][len(PAIRS)]["why"] == "connection refused"


def is_complete(results: dict[int, dict[str, Any]]) -> bool:
    """Whether all hosts have connected, and have measured all rates."""
    return sorted(results) == [0, 1, 2] and all(
        results[a]["out"][number]["why"] == ""
        and (results[b]["in"].get(number) or 0) > 0
        and (results[b]["reference"] or 0) > 0
        for number, (a, b) in enumerate(PAIRS)
    )


def spoken() -> dict[int, dict[str, Any]]:
    """The results of three hosts. Another link leads to a closed port."""
    listeners = [wire.listen() for _ in range(3)]
    closed = socket.create_server(("127.0.0.1", 0))
    dead = closed.getsockname()[1]
    closed.close()
    ports = [listener.getsockname()[1] for listener in listeners]
    links = [asdict(Link(a, b, "lo", "lo", "127.0.0.1", "127.0.0.1", ports[b])) for a, b in PAIRS]
    links.append(asdict(Link(0, 1, "lo", "lo", "127.0.0.1", "127.0.0.1", dead)))
    token, results = wire.new_token(), dict[int, dict[str, Any]]()
    rounds = [[(1, 2)], [(0, 2)], [(0, 1)]]

    connected, done = threading.Barrier(3), threading.Barrier(3)

    def speak(host: int) -> None:
        speaker = wire.Speaker(listeners[host], token, host, links)
        out = speaker.connect()
        connected.wait(30)
        rates, reference = speaker.measure(rounds, 0.05)
        results[host] = {"out": out, "in": rates, "reference": reference}
        done.wait(30)
        speaker.close()

    threads = [threading.Thread(target=speak, args=(host,)) for host in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_a_stranger_gets_no_answer() -> None:
    listener = wire.listen()
    port = listener.getsockname()[1]
    speaker = wire.Speaker(listener, wire.new_token(), 0, [])
    thread = threading.Thread(target=speaker._serve, daemon=True)
    thread.start()
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        stranger.sendall(wire.HELLO.pack(bytes(16), 0))
        assert stranger.recv(1) == b""
    listener.close()
