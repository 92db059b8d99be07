"""A rank sees its own host and its NICs, and no other host's memory or sockets."""

import json
from dataclasses import replace
from typing import Any

from emulated import RunProgram, two_hosts

from hetcomm.emulate import Cluster, Host, Nic


def test_hosts_share_neither_memory_nor_sockets(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(ranks=(2, 1)), "isolation.py", 1)
    assert result.ok, lines
    assert sorted(lines) == [
        "[0 red0] socket True file True host red0",
        "[1 red0] socket True file True host red0",
        "[2 blue0] socket False file False host blue0",
    ]


def _facts(
    run_program: RunProgram, cluster: Cluster, **options: object
) -> dict[int, dict[str, Any]]:
    result, lines = run_program(cluster, "facts.py", **options)
    assert result.ok, lines
    return {
        int(line.split(maxsplit=1)[0][1:]): json.loads(line.split("] ", 1)[1]) for line in lines
    }


def test_ranks_get_their_environment(run_program: RunProgram) -> None:
    red, blue = two_hosts(ranks=(2, 1)).hosts
    cluster = Cluster((replace(red, device="A100"), blue), order="interleaved")
    facts = _facts(run_program, cluster, env={"KEPT": "yes", "RANK": "7"}, port=4321)
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "HETCOMM_EMULATED_HOST")
    names += ("HETCOMM_EMULATED_KIND",)
    told = [tuple(facts[rank]["environment"][name] for name in names) for rank in range(3)]
    assert told == [
        ("0", "0", "2", "0", "red0", "A100"),
        ("1", "0", "1", "1", "blue0", "cpu"),
        ("2", "1", "2", "0", "red0", "A100"),
    ]
    for fact in facts.values():
        common = fact["environment"]
        assert common["WORLD_SIZE"] == "3"
        assert common["MASTER_ADDR"] == "198.18.0.1"
        assert common["MASTER_PORT"] == "4321"
        assert common["OMP_NUM_THREADS"] == "1"
        assert common["GLOO_SOCKET_IFNAME"] == "eth0"
        assert common["KEPT"] == "yes"


def test_master_address_is_rank_zeros_host(run_program: RunProgram) -> None:
    facts = _facts(run_program, Cluster(two_hosts().hosts, order=("blue0", "red0")))
    assert {fact["environment"]["MASTER_ADDR"] for fact in facts.values()} == {"198.18.0.2"}


def test_ranks_see_their_nics(run_program: RunProgram) -> None:
    host = Host(
        "red0",
        1,
        (
            Nic(2_000_000_000, 1_000_000_000),
            Nic(2_500_000_000, 2_500_000_000, "roce", numa=1),
            Nic(None, None, "infiniband", numa=-1),
        ),
        vendor="amd",
    )
    fact = _facts(run_program, Cluster((host,)))[0]
    assert fact["environment"]["HETCOMM_VENDOR"] == "amd"
    files = fact["files"]
    assert [files[f"class/net/eth{n}/speed"] for n in range(3)] == ["1000", "2500", "10000"]
    assert [files[f"class/net/eth{n}/type"] for n in range(3)] == ["1", "1", "32"]
    assert [files[f"class/net/eth{n}/device/numa_node"] for n in range(3)] == ["0", "1", "-1"]
    assert files["class/net/eth0/operstate"] == "up"
    assert files["class/net/eth2/address"] == "02:00:00:00:02:01"
    rdma = {name for name in files if name.startswith("class/infiniband/")}
    assert {name.split("/")[2] for name in rdma} == {"rdma_eth1", "rdma_eth2"}
    ports = "class/infiniband/rdma_eth{}/ports/1/{}"
    assert files[ports.format(1, "link_layer")] == "Ethernet"
    assert files[ports.format(2, "link_layer")] == "InfiniBand"
    assert files[ports.format(1, "state")] == "4: ACTIVE"
    assert files[ports.format(1, "rate")] == "2.5 Gb/sec (1X SDR)"
    assert files["class/infiniband/rdma_eth1/device/numa_node"] == "1"
    gids = {ports.format(1, f"gids/{i}"): ports.format(1, f"gid_attrs/types/{i}") for i in range(4)}
    own = [name for name, kind in gids.items() if files[kind] == "RoCE v2"]
    assert files[own[-1]] == "0000:0000:0000:0000:0000:ffff:c612:0101"  # 198.18.1.1
