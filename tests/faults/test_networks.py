"""RDMA networks that do not reach all ranks: a fallback works, and rank 0 warns with the reason.

The machines are recorded: their RoCE ports carry addresses of this machine's loopback.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from job import Job
from silence import without_silence
from sysfs_trees import Sysfs, roce_gids

HOST = socket.gethostname()
natives = pytest.mark.needs("emulated vendors")


def machine(
    folder: Path, number: int, network: int = 1, gid: bool = True, ports: int = 1
) -> dict[str, str]:
    """The settings of a rank on a host with RoCE ports on the network 127.<network>.0.0/16."""
    address = f"127.{network}.0.{number}"
    tree = Sysfs(folder / f"host-{network}-{number}")
    tree.interface("lo", kind=772, flags="0x9")
    for port in range(ports):
        gids = roce_gids("lo", address if gid else "")
        rate = "100 Gb/sec (4X EDR)" if port else "400 Gb/sec (4X NDR)"
        tree.port(f"mlx5_{port}", "lo", layer="Ethernet", gids=gids, rate=rate)
    (tree.root / "addresses").write_text(f"lo {address}/16\n")
    return {
        "HETCOMM_SYSFS_ROOT": str(tree.root),
        "HETCOMM_SOCKET_IFNAME": "",
        "HETCOMM_EMULATED_NETWORKS": "IB,Socket",
    }


def warnings(job: Job) -> list[list[str]]:
    """The warnings of each rank."""
    return [
        [
            line
            for line in without_silence(rank.log.read_text()).splitlines()
            if "hetcomm warning" in line
        ]
        for rank in job.ranks
    ]


def everyone(folder: Path, hosts: str, **facts: Any) -> dict[int, dict[str, str]]:
    return {r: machine(folder, ord(host) - 96, **facts) for r, host in enumerate(hosts)}


# This leaves no part of the ordinary transport that reaches another host.
NO_NETWORK = {"UCX_TLS": "posix,self"}


def test_hosts_on_two_roce_networks_meet_over_tcp(tmp_path: Path) -> None:
    settings = {r: machine(tmp_path, r + 1, network=r + 1) | NO_NETWORK for r in range(3)}
    with Job(tmp_path, "abc", settings=settings) as job:
        assert job.do("all_reduce", 100_000) == [6.0] * 3
        assert job.do("all_reduce", 3) == [6.0] * 3
        assert {path for paths in job.do("paths") for path in paths} <= {
            "",
            "not connected yet",
            "tcp over lo",
        }
        job.do("use", "second")
        assert job.do("all_reduce", 3) == [6.0] * 3
        assert warnings(job) == [[]] * 3
        for rank in job.ranks:
            rank.exits_cleanly()


def test_messages_on_one_roce_network_need_rdma(tmp_path: Path) -> None:
    settings = {r: machine(tmp_path, r + 1) | NO_NETWORK for r in range(2)}
    with Job(tmp_path, "ab", settings=settings) as job:
        job.tell("all_reduce", 3)
        for rank in job.ranks:
            assert "cannot connect" in rank.error()["text"]


@natives
def test_no_warning_without_a_loss(tmp_path: Path) -> None:
    with Job(tmp_path, "aabb", vendors="nnnn", settings=everyone(tmp_path, "aabb")) as job:
        assert job.do("all_reduce", 100) == [10.0] * 4
        ((fabric, why),) = job[0].do("networks")
        assert (fabric, why) == ("roce", "all of its 2 hosts have RoCE v2 on 127.1.0.0/16")
        assert warnings(job) == [[]] * 4


NO_GID = (
    "RoCE port mlx5_0 is not used for RoCE: none of its GIDs carries 127.1.0.2 of lo; assign the "
    "address to lo again, with the RDMA driver loaded"
)


@natives
@pytest.mark.parametrize("label", ["", "x"], ids=["two islands", "one island"])
def test_a_host_without_a_usable_gid_uses_tcp(tmp_path: Path, label: str) -> None:
    settings = everyone(tmp_path, "aa") | {r: machine(tmp_path, 2, gid=False) for r in (2, 3)}
    for rank in settings.values():
        rank["HETCOMM_ISLAND"] = label
    with Job(tmp_path, "aabb", vendors="nnnn", settings=settings) as job:
        assert job.do("all_reduce", 100) == [10.0] * 4
        first, *others = warnings(job)
        assert others == [[]] * 3
        port = (
            f'hetcomm warning rank 0: group "first": ranks 2, 3 on host {HOST}: {NO_GID}; '
            "the ranks use ethernet on lo"
        )
        if not label:
            assert first == [port]
            assert len(job[0].do("networks")) == 2
            return
        reason = f"not roce: rank 2 on {HOST} has none; {NO_GID}"
        assert first == [
            port,
            'hetcomm warning rank 0: group "first": island 0 of nvidia (ranks 0, 1, 2, 3) uses '
            f"sockets on lo, {reason}",
        ]
        ((fabric, why),) = job[0].do("networks")
        assert fabric == "ethernet" and why.endswith(reason)
        job.do("use", "second")  # no more than this
        assert [len(lines) for lines in warnings(job)] == [2, 0, 0, 0]


@natives
def test_an_island_across_infiniband_networks_is_one_of_sockets(tmp_path: Path) -> None:
    settings = {}
    for rank, subnet in enumerate(("fe80:0000:0000:0000", "fec0:0000:0000:0001")):
        settings[rank] = machine(tmp_path, rank + 1) | {"HETCOMM_ISLAND": "x"}
        tree = Sysfs(Path(settings[rank]["HETCOMM_SYSFS_ROOT"]))
        gids = {"0": (f"{subnet}:0001:0002:0003:{rank:04x}", "IB", "")}
        tree.port("mlx5_0", "lo", gids=gids)
        for attributes in ("1", "2", "3"):
            (tree.root / "class/infiniband/mlx5_0/ports/1/gids" / attributes).unlink()
    with Job(tmp_path, "ab", vendors="nn", settings=settings) as job:
        assert job.do("all_reduce", 100) == [3.0] * 2
        assert warnings(job) == [
            [
                'hetcomm warning rank 0: group "first": island 0 of nvidia (ranks 0, 1) uses '
                f"sockets on lo, not infiniband: rank 0 on {HOST} is on fe80:0000:0000:0000, "
                f"rank 1 on {HOST} on fec0:0000:0000:0001"
            ],
            [],
        ]


@natives
def test_a_library_on_an_unexpected_port_is_a_warning(tmp_path: Path) -> None:
    settings = {r: machine(tmp_path, r + 1, ports=2) for r in range(3)}
    settings[1]["NCCL_IB_HCA"] = "=mlx5_1"  # the user's setting wins, and costs speed
    with Job(tmp_path, "abc", vendors="nnn", settings=settings) as job:
        assert job.do("all_reduce", 100) == [6.0] * 3
        first, second, third = warnings(job)
        assert first == third == []
        kept, line = second
        assert "NCCL_IB_HCA==mlx5_1 is set and stays; the facts of all ranks suggest" in kept
        assert "expected it to use mlx5_0; it took network IB [0]mlx5_1:1/RoCE" in line
        assert "hetcomm warning rank 1: NCCL 2.28.3" in line
