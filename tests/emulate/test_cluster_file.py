"""Cluster files: parsed values, and the error for every other text."""

from collections import Counter
from dataclasses import fields, replace
from ipaddress import ip_address, ip_network
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hetcomm.emulate
from hetcomm.emulate import Cluster, ClusterError, Host, Nic, Zone, load
from hetcomm.emulate.cluster import (
    FABRICS,
    FASTEST,
    SLOWEST,
    format_rate,
    parse_order,
    parse_rate,
)
from hetcomm.emulate.cluster_text import text as text_of
from hetcomm.emulate.job import Job
from hetcomm.emulate.network import FASTEST_SHAPED, hardware_address, note
from hetcomm.emulate.vendors import environment, library

EXAMPLES = Path(__file__).parents[2] / "examples/clusters"
NIC = '[[host.nic]]\nrate = "1gbit"\n'
HOST = f'[[host]]\nname = "red0"\nranks = 2\n{NIC}'
HOST2 = HOST.replace("red0", "b")
ZONED = HOST.replace("ranks", "zone = 'a'\nranks")
ZONED_UPLINK = "[[zone]]\nname = 'a'\nuplink = '1gbit'\n"


def test_the_page_names_every_key_and_every_variable() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for one in (Host, Nic, Zone):
        for key in fields(one):
            assert f" {key.name} = " in page or f"`{key.name}`" in page or key.name == "nics", key
    cluster = Cluster((Host("red0", 1, (Nic(),), zone="z"),))
    for variable in Job(cluster, ("true",), {}, 1, None, 15.0, None).environment_of(0):
        assert f"`{variable}`" in page, variable


def test_a_full_file_loads(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        'order = ["blue0", "red0", "blue0"]\n[network]\nmtu = 1500\ncongestion = "reno"\n'
        '[[host]]\nname = "red0"\nranks = 1\nvendor = "amd"\n'
        '[[host.nic]]\nrate_out = "250mbit"\nrate_in = "1.5gbit"\nfabric = "roce"\nnuma = 1\n'
        '[[host]]\nname = "blue0"\nranks = 2\n[[host.nic]]\nrate = "unlimited"\n'
    )
    cluster = load(file)
    assert (cluster.mtu, cluster.congestion) == (1500, "reno")
    assert cluster.placement == (1, 0, 1)
    assert cluster.hosts[0] == Host("red0", 1, (Nic(250_000_000, 1_500_000_000, "roce", 1),), "amd")
    assert cluster.hosts[1].nics == (Nic(None, None),)


def test_zones_load(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        '[[zone]]\nname = "paris"\nuplink = "1gbit"\n'
        '[[zone]]\nname = "paris/r1"\nuplink = "2.5gbit"\n'
        + HOST.replace("ranks", 'zone = "paris/r1"\nranks')
        + HOST2.replace("ranks", 'zone = "oslo/r1"\nranks')
    )
    cluster = load(file)
    assert cluster.zones == (Zone("paris", 10**9), Zone("paris/r1", 2_500_000_000))
    assert [cluster.zone_label(host) for host in (0, 1)] == ["paris@1gbit/r1@2.5gbit", "oslo/r1"]
    outer = {"HETCOMM_ZONE": "elsewhere"}
    for hosts, zone in (
        (cluster.hosts, "paris@1gbit/r1@2.5gbit"),
        ((Host("a", 1, (Nic(),)),), None),
    ):
        described = replace(cluster, hosts=hosts, zones=cluster.zones if zone else ())
        job = Job(described, ("true",), outer, 1, None, 15.0, None)
        assert job.environment_of(0).get("HETCOMM_ZONE") == zone


def test_hosts_with_gpus_load(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    gpu = 'vendor = "nvidia"\ncopy_rate = "100gbit"\ncopy_latency = 20\nfault = "hang:3@1"\n'
    gpu += 'direct = true\ndevice = "A100"\n'
    file.write_text(HOST.replace("ranks = 2\n", f"ranks = 2\n{gpu}"))
    host = load(file).hosts[0]
    assert (host.vendor, host.copy_rate, host.copy_latency) == ("nvidia", 100_000_000_000, 20)
    assert host.kind == "A100"
    assert environment(host, 1) == {
        "HETCOMM_CUDA_LIBRARY": str(library("nvidia")),
        "HETCOMM_NCCL_LIBRARY": str(library("nvidia")),
        "HETCOMM_DEVICE": "1",
        "HETCOMM_EMULATED_DEVICES": "8",
        "HETCOMM_EMULATED_NETWORKS": "Socket",
        "HETCOMM_EMULATED_COPY_RATE": "12500000000",
        "HETCOMM_EMULATED_LATENCY": "20",
        "HETCOMM_EMULATED_FAULT": "hang:3@1",
        "HETCOMM_EMULATED_DIRECT": "1",
    }
    roce = environment(Host("red0", 9, (Nic(fabric="roce"),), "amd"), 8)
    assert roce["HETCOMM_RCCL_LIBRARY"] == roce["HETCOMM_HIP_LIBRARY"] == str(library("amd"))
    assert roce["HETCOMM_EMULATED_NETWORKS"] == "IB,Socket"
    assert roce["HETCOMM_EMULATED_DEVICES"] == "9"
    assert environment(Host("red0", 1, (Nic(),), "tpu"), 0) == {}


def test_a_table_with_a_count_is_so_many_hosts(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(HOST.replace("red0", "red").replace("ranks", "count = 300\nranks") + HOST2)
    cluster = load(file)
    port = Nic(1_000_000_000, 1_000_000_000)
    assert cluster.hosts == (
        *(Host(f"red{i}", 2, (port,)) for i in range(300)),
        Host("b", 2, (port,)),
    )
    file.write_text(text_of(cluster))
    assert load(file) == cluster


@pytest.mark.parametrize(
    ("hosts", "nics", "prefix"), [(254, 16, 24), (255, 16, 19), (300, 3, 17), (9000, 1, 15)]
)
def test_every_nic_has_an_address_in_the_network_of_its_index(
    hosts: int, nics: int, prefix: int
) -> None:
    few, many = (Nic(),), (Nic(),) * nics
    cluster = Cluster(
        tuple(Host(f"h{i}", 1, many if i == 7 else few) for i in range(hosts)),
    )
    assert cluster.prefix == prefix
    networks = [ip_network(cluster.subnet(index)) for index in range(nics)]
    assert all(network.subnet_of(ip_network("198.18.0.0/15")) for network in networks)
    assert not any(a.overlaps(b) for a, b in combinations(networks, 2))
    for index, network in enumerate(networks):
        addresses = [ip_address(cluster.address(host, index)) for host in range(hosts)]
        assert addresses[0] == network.network_address + 1
        assert len(set(addresses)) == hosts
        assert addresses[-1] in network and addresses[-1] != network.broadcast_address
    numbers = {hardware_address(host, nic) for host in range(hosts) for nic in range(nics)}
    assert len(numbers) == hosts * nics
    assert all(len(number) == 17 for number in numbers)


def test_more_hosts_than_addresses_are_rejected() -> None:
    hosts = tuple(Host(f"h{i}", 1, (Nic(),) * 9) for i in range(8191))
    with pytest.raises(ClusterError, match="1 to 8190 hosts, got 8191"):
        Cluster(hosts)


def test_more_ranks_than_a_group_has_are_rejected() -> None:
    hosts = tuple(Host(f"h{i}", 8192, (Nic(),)) for i in range(17))
    with pytest.raises(ClusterError, match="at most 131072 ranks on all hosts, got 139264"):
        Cluster(hosts)


def test_more_hosts_than_a_switch_has_ports_do_not_start() -> None:
    hosts = tuple(Host(f"h{i}", 1, (Nic(),)) for i in range(1024))
    with pytest.raises(ClusterError, match="up to 1023 hosts of one run, got 1024"):
        hetcomm.emulate.run(Cluster(hosts), ["true"])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    assert load(path).ranks >= 4


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ("", "host", "[]"),
        ("host = 3\n", "host", "3"),
        (f"ordr = 1\n{HOST}", "ordr", "ordr"),
        (f"order = 1\n{HOST}", "order", "1"),
        (f'order = "spiral"\n{HOST}', "order", "spiral"),
        (f'order = "random:x"\n{HOST}', "order", "random:x"),
        (f'order = ["red0"]\n{HOST}', "order", "1"),
        (f'order = ["red0", "blue0"]\n{HOST}', "order", "blue0"),
        (f"[network]\nmtu = 100\n{HOST}", "network.mtu", "100"),
        (f"[network]\ncongestion = 'a b'\n{HOST}", "network.congestion", "a b"),
        (f"[network]\ndelay = 1\n{HOST}", "network.delay", "delay"),
        (f"network = 1\n{HOST}", "network", "1"),
        (HOST + "[host.gpu]\n", "host[0].gpu", "gpu"),
        (HOST.replace("2", "0"), "host[0].ranks", "0"),
        (HOST.replace("2", "true"), "host[0].ranks", "True"),
        (HOST.replace("ranks", "count = 0\nranks"), "host[0].count", "0"),
        (HOST.replace("ranks", "count = 200000\nranks"), "host[0].count", "200000"),
        (HOST.replace("ranks", "count = '8'\nranks"), "host[0].count", "8"),
        (HOST.replace("ranks = 2\n", ""), "host[0].ranks", "nothing"),
        (HOST.replace("red0", "red 0"), "host[0].name", "red 0"),
        (HOST + HOST, "host[1].name", "red0"),
        (HOST.replace(NIC, ""), "host[0].nic", "[]"),
        (HOST.replace("1gbit", "1 gbit"), "host[0].nic[0].rate", "1 gbit"),
        (HOST.replace('"1gbit"', "1000"), "host[0].nic[0].rate", "1000"),
        (HOST.replace("1gbit", "1001gbit"), "host[0].nic[0].rate", "1001gbit"),
        (HOST.replace("1gbit", "1kbit"), "host[0].nic[0].rate", "1kbit"),
        (HOST + 'rate_in = "1gbit"\n', "host[0].nic[0].rate", "rate_in"),
        (HOST.replace("rate =", "rate_out ="), "host[0].nic[0].rate", "rate_out"),
        (HOST.replace("rate =", "speed ="), "host[0].nic[0].speed", "speed"),
        (HOST + 'fabric = "token-ring"\n', "host[0].nic[0].fabric", "token-ring"),
        (HOST + "numa = -2\n", "host[0].nic[0].numa", "-2"),
        (HOST.replace(NIC, f'copy_rate = "1gbit"\n{NIC}'), "host[0].copy_rate", "cpu"),
        (HOST.replace(NIC, f'vendor = "tpu"\nfault = "hang:1"\n{NIC}'), "host[0].fault", "tpu"),
        (HOST.replace(NIC, f'vendor = "amd"\ncopy_rate = 8\n{NIC}'), "host[0].copy_rate", "8"),
        (
            HOST.replace(NIC, f'vendor = "amd"\ncopy_latency = -1\n{NIC}'),
            "host[0].copy_latency",
            "-1",
        ),
        (HOST.replace(NIC, f"direct = true\n{NIC}"), "host[0].direct", "cpu"),
        (HOST.replace(NIC, f'device = " "\n{NIC}'), "host[0].device", " "),
        (HOST.replace(NIC, f'vendor = "amd"\ndirect = 1\n{NIC}'), "host[0].direct", "1"),
        (HOST.replace("ranks", "zone = 'a//b'\nranks"), "host[0].zone", "a//b"),
        (HOST.replace("ranks", "zone = 'a/b/c/d/e'\nranks"), "host[0].zone", "a/b/c/d/e"),
        (HOST.replace("ranks", "zone = 'a'\nranks") + HOST2, "host[1].zone", "''"),
        (f"{HOST}[[zone]]\nname = 'a'\nuplink = '1gbit'\n", "zone[0].name", "a"),
        (f"{ZONED}{ZONED_UPLINK}{ZONED_UPLINK}", "zone[1].name", "a"),
        (f"{ZONED}{ZONED_UPLINK.replace('1gbit', '1')}", "zone[0].uplink", "1"),
        (f"{ZONED}{ZONED_UPLINK}rate = 1\n", "zone[0].rate", "rate"),
        ("[[host", "syntax", "]]"),
    ],
)
def test_bad_files_are_rejected(tmp_path: Path, text: str, key: str, got: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(ClusterError) as caught:
        load(file)
    error = caught.value
    assert error.key == key
    assert got in error.got
    assert error.remedy
    assert str(file) in str(error)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="No such file"):
        load(tmp_path / "none.toml")


@given(st.integers(SLOWEST, FASTEST // 1000).map(lambda rate: rate * 1000))
def test_rates_survive_formatting(rate: int) -> None:
    read = parse_rate(format_rate(rate))
    assert read is not None
    assert abs(read - rate) <= rate * 1e-5  # formatting shows six digits


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=6)
ORDERS = st.one_of(
    st.sampled_from(["block", "interleaved"]), st.integers(0, 99).map(lambda seed: f"random:{seed}")
)


@given(SIZES, ORDERS)
def test_every_order_gives_each_host_its_ranks(sizes: list[int], order: str) -> None:
    hosts = tuple(Host(f"h{i}", size, (Nic(),)) for i, size in enumerate(sizes))
    cluster = Cluster(hosts, order=order)
    assert Counter(cluster.placement) == dict(enumerate(sizes))
    assert cluster == Cluster(hosts, order=order)
    by_name = tuple(hosts[place].name for place in cluster.placement)
    assert Cluster(hosts, order=by_name).placement == cluster.placement


def test_named_orders_place_ranks() -> None:
    hosts = tuple(Host(name, size, (Nic(),)) for name, size in (("a", 1), ("b", 3), ("c", 2)))
    assert Cluster(hosts).placement == (0, 1, 1, 1, 2, 2)
    assert Cluster(hosts, order="interleaved").placement == (0, 1, 2, 1, 2, 1)
    assert Cluster(hosts, order=parse_order("c,b,a, b,b,c")).placement == (2, 1, 0, 1, 1, 2)


RATES = st.none() | st.sampled_from([1_000_000, 2_500_000_000, 200_000_000_000])
NICS = st.builds(Nic, RATES, RATES, st.sampled_from(FABRICS), st.integers(-1, 3))
GPUS = st.builds(
    Host,
    st.just("name"),
    st.integers(1, 8),
    st.lists(NICS, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["nvidia", "amd"]),
    st.none() | st.just('A "100"'),
    RATES,
    st.integers(0, 9),
    st.none() | st.just("hang:3@1"),
    st.booleans(),
)


@given(st.lists(GPUS, min_size=1, max_size=4), ORDERS, st.none() | st.just("bbr"))
def test_the_text_of_a_cluster_loads_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, hosts: list[Host], order: str, control: str | None
) -> None:
    named = tuple(replace(host, name=f"h{i}") for i, host in enumerate(hosts))
    in_zones = tuple(replace(host, zone=f"z{i % 2}/r") for i, host in enumerate(named))
    cluster = Cluster(in_zones, order, 1500, control, (Zone("z0/r", 10**9), Zone("z0", None)))
    file = tmp_path_factory.getbasetemp() / "cluster.toml"
    for each in (cluster, Cluster(named, tuple(named[i].name for i in cluster.placement))):
        file.write_text(text_of(each))
        assert load(file) == each


def test_nics_beyond_the_kernels_rates_are_named() -> None:
    slow, fast = Nic(FASTEST_SHAPED, FASTEST_SHAPED), Nic(FASTEST_SHAPED + 1, None)
    assert note(Cluster((Host("a", 1, (slow, Nic())),))) is None
    zoned = Cluster(
        (Host("a", 1, (Nic(), Nic()), zone="z"),), zones=(Zone("z", FASTEST_SHAPED * 2),)
    )
    assert note(zoned) is None
    faster = replace(zoned, zones=(Zone("z", FASTEST_SHAPED * 2 + 2),))
    assert "the uplink of z" in (note(faster) or "")
    told = note(Cluster((Host("a", 1, (slow,)), Host("b", 1, (slow, fast)))))
    assert told is not None and "as fast as the machine: b eth1" in told
