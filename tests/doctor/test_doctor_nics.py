"""NICs across hosts, by their facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctored import GIGABIT, cluster, member, nic, texts

from hetcomm._core import Fabric
from hetcomm.doctor import nics
from hetcomm.doctor.cluster import Member


def host(rank: int, mtu: int = 9000, state: str = "up", **fields: Any) -> Member:
    interfaces = {"eth0": {"mtu": mtu, "state": state, "device": True}}
    facts = {"interfaces": interfaces, "unasked": ["eth0: taken, ethernet"], "warnings": []}
    return member(rank, "abcd"[rank], nic(rank + 1, **fields), nics=facts)


def test_like_nics_are_well() -> None:
    assert nics.check(cluster(*map(host, range(3)))) == []


def test_an_unlike_mtu_is_an_error_with_the_command() -> None:
    (text,) = texts(nics.check(cluster(host(0), host(1), host(2, mtu=1500))))
    assert text.startswith("error [2] MTU on network 198.18.0.0/24: 1500 (node-c eth0)")
    assert "| 9000, as on node-a eth0, node-b eth0 | ip link set eth0 mtu 9000" in text


def test_of_two_hosts_the_larger_mtu_and_rate_are_wanted() -> None:
    found = texts(nics.check(cluster(host(0, mtu=1500), host(1))))
    assert found[0].startswith("error [0] MTU on network 198.18.0.0/24: 1500 (node-a eth0) | 9000")
    found = texts(nics.check(cluster(host(0), host(1, bandwidth=10 * GIGABIT))))
    assert "[0] rate on network 198.18.0.0/24: 1 Gbit/s (node-a eth0) | 10 Gbit/s" in found[0]


def test_an_unlike_rate_is_a_warning_unless_it_is_assumed() -> None:
    slow = {"bandwidth": GIGABIT // 10}
    (text,) = texts(nics.check(cluster(host(0), host(1), host(2, **slow))))
    assert text.startswith("warning [2] rate on network 198.18.0.0/24: 0.1 Gbit/s (node-c eth0)")
    assumed = host(2, **slow, bandwidth_known=False)
    assert nics.check(cluster(host(0), host(1), assumed)) == []


def test_an_unlike_kind_is_a_warning() -> None:
    found = texts(nics.check(cluster(host(0), host(1), host(2, fabric=Fabric.roce, gid=3))))
    assert any(text.startswith("warning [2] kind on network 198.18.0.0/24: roce") for text in found)
    assert any("no usable roce | roce, as on node-c" in text for text in found)


def test_an_unlike_gid_index_is_a_note() -> None:
    roce = [host(rank, fabric=Fabric.roce, gid=3) for rank in range(2)]
    (text,) = texts(nics.check(cluster(*roce, host(2, fabric=Fabric.roce, gid=5))))
    assert text.startswith("note [2] GID index on network 198.18.0.0/24: 5 (node-c eth0) | 3")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (("up", "down"), "warning [1] the link of eth0 is down | up, as on other hosts"),
        (("down", "down"), "note [0] the link of eth0 is down"),
    ],
)
def test_a_link_down_is_a_warning_if_another_host_has_it_up(
    states: tuple[str, str], expected: str
) -> None:
    ranks = [host(rank, state=state) for rank, state in enumerate(states)]
    assert any(text.startswith(expected) for text in texts(nics.check(cluster(*ranks))))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("eth0: taken, ethernet, 10 Gbit/s", ""),
        ("eth0: taken, ethernet; a tunnel, but nothing better can be used", "a tunnel"),
        ("eth0: left out, a container bridge, and there is a better one", "a container bridge"),
        ("eth01: left out, a tunnel", ""),
    ],
)
def test_interfaces_that_lead_to_no_other_host(line: str, why: str) -> None:
    assert nics.poor("eth0", [line]) == why
    ranks = [host(0), host(1)]
    ranks[1].facts["nics"]["unasked"] = [line]
    found = texts(nics.check(cluster(*ranks)))
    assert [f"hetcomm uses eth0: {why}" in text for text in found] == ([True] if why else [])
    assert nics.check(cluster(ranks[1])) == []  # alone it does no harm


def test_a_roce_port_that_lacks_a_setting_comes_with_its_remedy() -> None:
    lacking = host(0)
    lacking.facts["nics"]["warnings"] = ["RoCE port mlx5_0 is not used: no v2; switch the port"]
    (text,) = texts(nics.check(cluster(lacking)))
    assert text.startswith("warning [0] RoCE port mlx5_0 is not used: no v2 |")
    assert text.endswith("| switch the port")


def test_a_rank_that_cannot_probe_is_an_error() -> None:
    broken = replace(host(0), info=None, error="HETCOMM_SOCKET_IFNAME: expected names")
    (text,) = texts(nics.check(cluster(broken, host(1))))
    assert text.startswith("error [0] HETCOMM_SOCKET_IFNAME: expected names")


def test_interfaces_are_read_from_sysfs(tmp_path: Path) -> None:
    (tmp_path / "eth0" / "device").mkdir(parents=True)
    (tmp_path / "eth0" / "mtu").write_text("9000\n")
    (tmp_path / "eth0" / "operstate").write_text("down\n")
    (tmp_path / "bonding_masters").write_text("")
    assert nics.interfaces(tmp_path) == {"eth0": {"mtu": 9000, "state": "down", "device": True}}
    assert nics.interfaces(tmp_path / "missing") == {}


def test_this_machine_has_interfaces() -> None:
    facts = nics.facts()
    assert facts["unasked"] and isinstance(facts["interfaces"], dict)
