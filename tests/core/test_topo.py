"""`hetcomm topo`: gathering over a store, the page and the JSON."""

import io
import json
import re
from pathlib import Path

import machines
import pytest
from job_command import JOB, start
from ports import free_port
from rich.console import Console

from hetcomm import _core, topo, topo_page
from hetcomm._core import Fabric, Nic, RankInfo, Topology

GIGABIT = 125_000_000


def rank(host: str, vendor: str, *fabrics: str, gigabits: int = 100) -> RankInfo:
    nics = [
        Nic(
            name=f"{fabric}0",
            interface="eth0",
            fabric=getattr(Fabric, fabric),
            bandwidth=gigabits * GIGABIT,
            bandwidth_known=fabric != "ethernet",
            numa=1,
            address="10.0.0.1",
        )
        for fabric in fabrics
    ]
    return RankInfo(host=host, host_name=f"node-{host}", vendor=vendor, cores=8, nics=nics)


def page(topology: Topology, explanations: list[list[str]], width: int = 160) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(topo.render(topology, explanations))
    return output.getvalue()


MIXED = [
    rank("a", "nvidia", "infiniband", "ethernet"),
    rank("a", "nvidia", "infiniband", "ethernet"),
    rank("b", "amd", "roce", "ethernet", gigabits=50),
    rank("a", "cpu", "infiniband", "ethernet"),
]


def test_the_page_shows_islands_hosts_ranks_nics_links_and_reasons() -> None:
    text = page(Topology(MIXED), [["docker[0]: left out, it is down"], ["roce0: taken"]])
    assert "4 ranks, 3 islands, 2 hosts" in text
    assert "island 0: nvidia, ranks 0-1" in text
    assert "island 1: amd, rank 2" in text
    assert "host 0: node-a, 100 Gbit/s to other hosts" in text
    assert "ranks 0-1: 8 cores, uplink 33.33 Gbit/s each" in text
    assert "infiniband0 (eth0): infiniband, 100 Gbit/s, NUMA node 1, 10.0.0.1" in text
    assert "ethernet0 (eth0): ethernet, 50 Gbit/s (assumed), NUMA node 1, 10.0.0.1" in text
    assert "docker[0]: left out, it is down" in text


def test_links_between_islands_are_found() -> None:
    links = topo_page.links_between_islands(Topology(MIXED))
    assert [(link.islands, link.fabric) for link in links] == [
        ((0, 1), "ethernet"),
        ((0, 2), "shm"),
        ((1, 2), "ethernet"),
    ]
    assert links[0].bandwidth == 50 * GIGABIT
    assert links[1].bandwidth is None
    assert links[2].bandwidth == 100 * GIGABIT // 3


def test_links_of_one_kind_share_a_row() -> None:
    text = page(Topology([rank(str(host), "cpu", "roce") for host in range(12)]), [[]] * 12)
    assert "0 - 8 and 58 more" in text
    assert text.count("at no end") == 1


def test_nics_used_together_are_shown() -> None:
    def host(number: int) -> RankInfo:
        info = rank(str(number), "cpu", "ethernet", "ethernet")
        first, second = info.nics
        first.name, first.address, first.subnet = "eth0", f"10.0.0.{number}", "10.0.0.0/24"
        second.name, second.address, second.subnet = "eth1", f"10.0.1.{number}", "10.0.1.0/24"
        first.bandwidth_known = second.bandwidth_known = info.rails = True
        info.nics = [first, second]
        return info

    topology = Topology([host(1), host(2)])
    assert re.search(r"0 - 1 +ethernet, 2 NICs together +200 Gbit/s", page(topology, [[], []]))
    (link,) = topo.describe(topology, [[], []])["links"]
    assert link["nics"] == [["eth0", "eth1"], ["eth0", "eth1"]]


@pytest.mark.parametrize("width", [80, 120])
def test_no_terminal_width_cuts_a_word_or_a_row(width: int) -> None:
    topology = Topology([*MIXED, *(rank(str(host), "cpu", "roce") for host in range(9))])
    reasons = [["docker0: left out, it is down", "mlx5_0: " + "taken because " * 9]] * 11
    wide, narrow = page(topology, reasons, 400), page(topology, reasons, width)
    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= width
    plain = [re.sub("[│├└─━]+", " ", text).split() for text in (wide, narrow)]
    assert sorted(plain[0]) == sorted(plain[1])
    for kind in ("100 Gbit/s", "50 Gbit/s", "memory"):
        assert re.search(rf"{kind} +at no end", narrow)


def test_json_holds_the_same_facts() -> None:
    topology = Topology(MIXED)
    facts = json.loads(json.dumps(topo.describe(topology, [["why a"], ["why b"]])))
    assert facts["islands"] == topology.islands
    assert int(facts["fingerprint"], 16) == topology.fingerprint
    assert [host["explanations"] for host in facts["hosts"]] == [["why a"], ["why b"]]
    assert facts["ranks"][2]["nics"][0]["fabric"] == "roce"
    assert facts["links"][1] == {
        "islands": [0, 2],
        "fabric": "shm",
        "bandwidth": None,
        "staged": [False, False],
        "nics": [[], []],
    }
    assert facts["networks"][0] == {
        "island": 0,
        "fabric": "shm",
        "why": "one host: its members share memory",
        "members": [{"devices": [], "gid": -1, "interface": "eth0"}] * 2,
    }


def test_native_islands_show_engine_network_and_staging(tmp_path: Path) -> None:
    hosts = [machines.dgx_h100(tmp_path / str(number), number) for number in (1, 2)]
    ranks = hosts[0].ranks(2) + hosts[1].ranks(2, direct={Fabric.shm, Fabric.infiniband})
    ranks += machines.mi300x(tmp_path / "3", 3).ranks(1, device="emulated AMD GPU 0", kernels=True)
    topology = Topology(ranks)
    text = page(topology, [[], [], []])
    assert "island 0: nvidia, ranks 0-3" in text
    assert "engine: NCCL 2.28.3, on device memory, staged in host memory" in text
    assert "network: infiniband, all of its 2 hosts are on InfiniBand subnet fe80:" in text
    assert "uses mlx5_0, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_9, mlx5_10, mlx5_11, connects" in text
    assert "through eno3" in text
    assert "rank 1: GPU 0000:43:00.0, nearest NIC mlx5_3" in text
    assert "island 1: amd (emulated), rank 4" in text
    assert "bridge reduces and encodes on the device" in text
    assert "some on device memory, sent directly over shm, infiniband" in text
    assert "GID 3, network 192.168.0.0/24" in text
    assert "at both ends" in text
    facts = json.loads(json.dumps(topo.describe(topology, [[], [], []])))
    assert facts["links"][0]["staged"] == [True, True]
    assert facts["networks"][0]["members"][3]["devices"][0] == "mlx5_3"
    assert [member["memory"] for member in facts["ranks"]] == ["device"] * 5
    assert [member["direct"] for member in facts["ranks"]] == [
        *[[]] * 2,
        *[["shm", "infiniband"]] * 2,
        [],
    ]
    assert [member["emulated"] for member in facts["ranks"]] == [False] * 4 + [True]


def test_many_islands_and_hosts_of_a_kind_share_a_branch() -> None:
    def rank(host: int, vendor: str, cores: int) -> RankInfo:
        nic = Nic(name="eth0", fabric=Fabric.ethernet, bandwidth=125_000_000,
                  address=f"198.18.0.{host}", subnet="198.18.0.0/24")  # fmt: skip
        memory = _core.Memory.host if vendor == "cpu" else _core.Memory.device
        return RankInfo(host=str(host), host_name=f"h{host}", machine=f"m{host}", vendor=vendor,
                        cores=cores, memory=memory, nics=[nic], zone=f"r{host // 4}")  # fmt: skip

    cpus = [rank(host, "cpu", 1 if host < 10 else 2) for host in range(16)]
    gpus = [rank(host, "nvidia", 1 if host < 30 else 3) for host in range(20, 40)]
    text = page(Topology(cpus + gpus), [[]] * 36, 400)
    assert "alike: islands 1-9" in text and "alike: islands 11-15" in text
    assert "alike: hosts 17-25" in text and "alike: hosts 27-35" in text
    assert sum("of host" in line or "to other hosts" in line for line in text.splitlines()) == 4
    text = page(Topology(cpus), [[]] * 16, 400)
    assert "alike" not in text and "island 15" in text
    unlike = [rank(host, "cpu", 1 + host) for host in range(40)]
    text = page(Topology(unlike), [[]] * 40, 400)
    assert "island 15" in text and "24 more islands" in text and "island 16" not in text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "rank 0"),
        ([0, 1, 2, 5], "ranks 0-2, 5"),
        ([1, 3], "ranks 1, 3"),
        (
            list(range(0, 40, 2)),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 4 more runs",
        ),
    ],
)
def test_consecutive_ranks_are_shown_as_a_range(ranks: list[int], text: str) -> None:
    assert topo_page.format_ranks(ranks) == text


def test_a_lone_process_shows_this_machine() -> None:
    cluster = topo.gather({}, 1)
    assert cluster is not None
    assert cluster.topology.ranks == [_core.probe_rank()]
    assert cluster.explanations == [_core.explain_nics()]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"MASTER_PORT": None, "RANK": None}, "expected RANK"),
        ({"RANK": "-1"}, 'RANK: expected a whole number, got "-1"'),
        ({"RANK": "2"}, r"RANK below WORLD_SIZE, and fewer than 2\^31 ranks; got 2 and 2"),
        ({"MASTER_PORT": "70000"}, "1 to 65535, got 70000"),
    ],
)
def test_a_broken_environment_is_rejected(change: dict[str, str | None], expected: str) -> None:
    variables = JOB | {"MASTER_PORT": "29400"} | change
    environment = {name: text for name, text in variables.items() if text is not None}
    with pytest.raises(_core.InvalidArgumentError, match=expected):
        topo.gather(environment, 1)


@pytest.fixture
def port() -> str:
    return str(free_port())


def test_rank_0_prints_the_cluster(port: str) -> None:
    first = start("topo", port, 0, "--json", HETCOMM_HOST_ID="a")
    second = start("topo", port, 1, "--json", HETCOMM_HOST_ID="b", HETCOMM_VENDOR="amd")
    output, errors = first.communicate(timeout=100)
    assert first.returncode == 0, errors
    assert second.communicate(timeout=100)[0] == ""
    facts = json.loads(output)
    assert [host["identity"] for host in facts["hosts"]] == ["a", "b"]
    assert [member["vendor"] for member in facts["ranks"]] == ["cpu", "amd"]
    assert all(host["explanations"] for host in facts["hosts"])


@pytest.mark.slow
def test_taken_paths_are_shown(port: str) -> None:
    settings = {"HETCOMM_SOCKET_IFNAME": "lo"}
    first = start("topo", port, 0, "--json", "--paths", HETCOMM_HOST_ID="a", **settings)
    second = start("topo", port, 1, "--paths", HETCOMM_HOST_ID="b", **settings)
    output, errors = first.communicate(timeout=100)
    assert first.returncode == 0, errors
    assert second.communicate(timeout=100)[0] == ""
    assert json.loads(output)["paths"] == [["", "tcp over lo"], ["tcp over lo", ""]]


def test_paths_of_one_kind_share_a_row() -> None:
    ranks = [rank(str(host), "cpu", "ethernet") for host in range(3)]
    paths = [["", "rc over a", "tcp over b"], ["rc over a", "", "tcp over b"], ["x", "y", ""]]
    output = io.StringIO()
    Console(file=output, width=160).print(topo.render(Topology(ranks), [[]] * 3, paths))
    text = output.getvalue()
    assert re.search("rc over a +│ 0 - 1, 1 - 0", text)
    assert re.search("tcp over b +│ 0 - 2, 1 - 2", text)
    assert "Paths taken" in text
    assert "Paths taken" not in page(Topology(ranks), [[]] * 3)


@pytest.mark.slow
def test_rank_0_reports_a_failed_probe(port: str) -> None:
    first, second = start("topo", port, 0), start("topo", port, 1, HETCOMM_SOCKET_IFNAME="nowhere9")
    assert (
        "rank 1 could not probe its machine: HETCOMM_SOCKET_IFNAME"
        in first.communicate(timeout=100)[1]
    )
    assert "nowhere9" in second.communicate(timeout=100)[1]
    assert first.returncode == second.returncode == 2


def test_missing_ranks_are_named(port: str) -> None:
    with pytest.raises(_core.TimeoutError, match=r"facts of 3 ranks, none came from \[1, 2\]"):
        topo.gather(JOB | {"MASTER_PORT": port, "WORLD_SIZE": "3"}, 0.5)


def test_a_missing_store_is_named(port: str) -> None:
    with pytest.raises(_core.TransportError, match=f"found no store at 127.0.0.1:{port}"):
        topo.gather(JOB | {"MASTER_PORT": port, "RANK": "1"}, 0.5)
