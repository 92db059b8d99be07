"""Topology from ranks' facts, their text form, and the fingerprint."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hetcomm import _core
from hetcomm._core import Fabric, InvalidArgumentError, Memory, Nic, RankInfo, Topology


def nic(name: str = "eth0", fabric: Fabric = Fabric.ethernet, bandwidth: int = 1000) -> Nic:
    return Nic(name=name, interface=name, fabric=fabric, bandwidth=bandwidth)


def rank(host: str, vendor: str = "cpu", *nics: Nic) -> RankInfo:
    return RankInfo(host=host, host_name=host, vendor=vendor, nics=list(nics) or [nic()])


nics = st.builds(
    Nic,
    name=st.text(),
    interface=st.text(),
    fabric=st.sampled_from(list(Fabric.__members__.values())),
    bandwidth=st.integers(0, 10**15),
    bandwidth_known=st.booleans(),
    numa=st.integers(-1, 64),
    address=st.text(),
    subnet=st.text(),
    gid=st.integers(-1, 255),
)


def with_direct(info: RankInfo, direct: set[Fabric]) -> RankInfo:
    info.direct = direct if info.memory == Memory.device else set()
    return info


plain_infos = st.builds(
    RankInfo,
    host=st.text(min_size=1),
    host_name=st.text(),
    vendor=st.text(min_size=1),
    cores=st.integers(1, 2**31 - 1),
    processors=st.lists(st.integers(0, 300), unique=True).map(sorted),
    memory=st.sampled_from(list(Memory.__members__.values())),
    kernels=st.booleans(),
    device=st.text(),
    ccl=st.sampled_from(["", "NCCL \t2.28"]),  # one island needs one value
    float8=st.booleans(),
    rails=st.booleans(),
    island=st.text(),
    nics=st.lists(nics, max_size=3),
    warnings=st.lists(st.text(), max_size=2),
    libraries=st.dictionaries(st.text(), st.text(), max_size=3),
)
infos = st.builds(
    with_direct,
    plain_infos,
    st.sets(st.sampled_from([Fabric.shm, Fabric.infiniband, Fabric.roce])),
)
small_infos = st.builds(rank, st.sampled_from("abc"), st.sampled_from(["cpu", "nvidia", "amd"]))


@given(infos)
def test_facts_survive_serialisation(info: RankInfo) -> None:
    text = _core.serialize(info)
    assert _core.parse_rank_info(text) == info
    assert _core.serialize(_core.parse_rank_info(text)) == text


def test_separators_and_control_characters_are_escaped() -> None:
    info = rank("a\nvendor\tamd\n\\n\0\r\x7f", "cpu")
    text = _core.serialize(info)
    assert len(text.splitlines()) == 17  # heading, fifteen facts, one NIC
    assert _core.parse_rank_info(text).host == info.host


HEAD = "hetcomm rank 8\n"
FACTS = HEAD + "host\ta\nhost_name\ta\nmachine\tm\nvendor\tcpu\ncores\t1\nprocessors\t0\n"
FACTS += "memory\thost\ndirect_bytes\t0\nkernels\t0\ndevice\t\n"
FACTS += "ccl\t\nfloat8\t0\nrails\t0\nisland\t\nzone\t\n"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 0, "hetcomm rank 8"),
        ("hetcomm rank 7\n", 1, "hetcomm rank 8"),
        (HEAD + "host\ta\n", 2, "ccl"),
        (HEAD + "cores\tmany\n", 2, "an integer"),
        (HEAD + "cores\t99999999999\n", 2, "an integer"),
        (HEAD + "cores\t1 \n", 2, "an integer"),
        (HEAD + "processors\t3-1\n", 2, "ascending ranges"),
        (HEAD + "processors\t1,1\n", 2, "ascending ranges"),
        (HEAD + "processors\t0-9999999\n", 2, "ascending ranges"),
        (HEAD + "processors\t0,\n", 2, "ascending ranges"),
        (HEAD + "host\ta\nhost\tb\n", 3, "once"),
        (HEAD + "host\n", 2, "1 fields"),
        (HEAD + "host\ta\\q1\n", 2, "two hexadecimal digits"),
        (HEAD + "host\ta\\1", 2, "two hexadecimal digits"),
        (HEAD + "memory\tpaper\n", 2, "a kind of memory"),
        (HEAD + "kernels\t2\n", 2, "0 or 1"),
        (FACTS + "speed\t1\n", 17, "nic, warning or library"),
        (FACTS + "\n", 17, "nic, warning or library"),
        (FACTS + "direct\tpigeon\n", 17, "a fabric"),
        (FACTS + "direct\tshm\ndirect\tshm\n", 18, "each fabric once"),
        (FACTS + "nic\teth0\n", 17, "9 fields"),
        (FACTS + "nic\te\te\ttokenring\t1\t1\t0\t\t\t-1\n", 17, "a fabric"),
        (FACTS + "nic\te\te\troce\t1\t2\t0\t\t\t-1\n", 17, "0 or 1"),
        (FACTS + "library\tucx\t1\nlibrary\tucx\t2\n", 18, "each library once"),
    ],
)
def test_parse_errors_name_the_line(text: str, line: int, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"line {line}: expected .*{expected}"):
        _core.parse_rank_info(text)


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        _core.parse_rank_info(text)


@given(st.data())
def test_damaged_text_is_parsed_or_rejected(data: st.DataObject) -> None:
    text = _core.serialize(data.draw(infos))
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text(max_size=2)) + text[at + 1 :]
    try:
        info = _core.parse_rank_info(damaged)
    except InvalidArgumentError:
        return
    assert _core.parse_rank_info(_core.serialize(info)) == info


@given(st.lists(small_infos, min_size=1, max_size=12))
def test_groups_partition_the_ranks(ranks: list[RankInfo]) -> None:
    topology = Topology(ranks)
    everyone = list(range(len(ranks)))
    assert len(topology) == len(ranks)
    assert topology.ranks == ranks
    for groups in (topology.islands, topology.hosts):
        assert sorted(chain.from_iterable(groups)) == everyone
        assert all(group == sorted(group) for group in groups)
        assert groups == sorted(groups)
    for index, island in enumerate(topology.islands):
        for place, member in enumerate(island):
            assert topology.island_of(member) == index
            assert topology.index_in_island(member) == place
    for a in everyone:
        assert a in topology.hosts[topology.host_of(a)]
        for b in everyone:
            same_host = ranks[a].host == ranks[b].host
            assert topology.same_host(a, b) == same_host
            same_island = same_host and ranks[a].vendor == ranks[b].vendor
            assert (topology.island_of(a) == topology.island_of(b)) == same_island


def test_ranks_bound_to_own_processors_pool_them() -> None:
    def bound(*processors: int) -> RankInfo:
        info = rank("a", "cpu")
        info.processors, info.cores = list(processors), max(1, len(processors))
        return info

    assert _core.Topology([bound(0), bound(1), bound(1, 2)]).processors(0) == 3
    assert _core.Topology([bound(5), bound(5)]).processors(0) == 1
    assert _core.Topology([bound(), bound()]).processors(0) == 1


def test_ranks_may_come_in_any_order() -> None:
    topology = Topology([rank("b", "amd"), rank("a"), rank("b"), rank("a"), rank("b", "amd")])
    assert topology.islands == [[0, 4], [1, 3], [2]]
    assert topology.hosts == [[0, 2, 4], [1, 3]]


def test_uplink_is_the_share_of_the_hosts_best_nic() -> None:
    fast, slow = nic("eth0", bandwidth=900), nic("eth1", bandwidth=100)
    topology = Topology([rank("a", "cpu", fast, slow)] * 3 + [rank("b", "cpu", slow)])
    assert [topology.host_bandwidth(host) for host in (0, 1)] == [900, 100]
    assert [topology.uplink(r) for r in range(4)] == [300, 300, 300, 100]


def test_bandwidths_of_different_nics_add_up() -> None:
    first, second = nic("eth0", bandwidth=700), nic("eth1", bandwidth=100)
    topology = Topology([rank("a", "cpu", first), rank("a", "cpu", second)])
    assert topology.host_bandwidth(0) == 800
    assert topology.uplink(0) == topology.uplink(1) == 400


def test_a_host_without_nics_has_no_uplink() -> None:
    topology = Topology([RankInfo(host="a"), RankInfo(host="a")])
    assert topology.host_bandwidth(0) == topology.uplink(1) == 0


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (["infiniband", "roce", "ethernet"], ["roce", "infiniband"], "infiniband"),
        (["infiniband", "roce"], ["ethernet", "roce"], "roce"),
        (["infiniband"], ["roce"], "ethernet"),
        (["infiniband"], ["ethernet"], "ethernet"),
        (["ethernet"], ["ethernet"], "ethernet"),
    ],
)
def test_fabric_between_hosts_is_the_best_common_one(
    mine: list[str], theirs: list[str], expected: str
) -> None:
    def with_fabrics(host: str, names: list[str]) -> RankInfo:
        return rank(host, "cpu", *(nic(name, getattr(Fabric, name)) for name in names))

    topology = Topology([with_fabrics("a", mine), with_fabrics("b", theirs), rank("a")])
    assert topology.fabric_between(0, 1).name == expected
    assert topology.fabric_between(1, 0).name == expected
    assert topology.fabric_between(0, 2) == Fabric.shm


def on_device(host: str, vendor: str, direct: str, *nics: Nic, island: str = "") -> RankInfo:
    info = rank(host, vendor, *nics)
    info.memory, info.island = Memory.device, island
    info.direct = {Fabric.__members__[name] for name in direct.split()}
    return info


@pytest.mark.parametrize(
    ("direct", "expected"),
    [
        ("", [True] * 6),
        ("shm", [True, False, True, True, True, True]),
        ("infiniband", [True, True, True, True, False, True]),
        ("roce", [True] * 6),
        ("shm infiniband roce", [True, False, True, True, False, True]),
    ],
)
def test_device_messages_are_staged_without_direct_fabric(
    direct: str, expected: list[bool]
) -> None:
    both = [nic("mlx5_0", Fabric.infiniband), nic()]
    peers = [
        rank("a"),
        on_device("a", "nvidia", "shm", island="alike"),
        on_device("a", "nvidia", "infiniband roce", island="staged inside a host"),
        on_device("a", "amd", "shm infiniband roce"),
        on_device("b", "amd", "", *both),
        rank("c", "cpu", nic()),
    ]
    topology = Topology([on_device("a", "nvidia", direct, *both), *peers])
    assert topology.native(0)
    assert [topology.staged(0, peer) for peer in range(1, 7)] == expected
    stages = topology.stages_between_islands
    assert stages(0) and stages(5) and not stages(6)
    assert not topology.staged(1, 0) and not topology.staged(6, 0), "host memory is where it is"
    assert topology.staged(5, 0), "each end decides for itself between hosts"


def test_short_messages_inside_a_host_are_staged() -> None:
    """The greater least size of both ends counts. Between hosts every message is direct."""
    nics = [nic("mlx5_0", Fabric.infiniband)]
    ranks = [
        on_device(host, "nvidia", "shm infiniband", *nics, island=str(number))
        for number, host in enumerate("aab")
    ]
    for info, least in zip(ranks, (100, 2000, 3000), strict=True):
        info.direct_bytes = least
    topology = Topology(ranks)
    for rank_, peer in ((0, 1), (1, 0)):
        assert not topology.staged(rank_, peer)
        assert [topology.staged(rank_, peer, bytes_) for bytes_ in (0, 1999, 2000)] == [
            True, True, False,
        ]  # fmt: skip
    assert not topology.staged(0, 2, 1) and not topology.staged(2, 0, 1)
    assert topology.stages_between_islands(0) and not topology.stages_between_islands(2)


def test_direct_ends_stage_nothing() -> None:
    nics = [nic("mlx5_0", Fabric.infiniband)]
    ranks = [on_device(host, "nvidia", "infiniband", *nics, island=host) for host in "ab"]
    assert not any(map(Topology(ranks).stages_between_islands, (0, 1)))


@pytest.mark.parametrize("fabric", ["ethernet", "pcie"])
def test_impossible_direct_fabrics_are_rejected(fabric: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"facts of rank 1.*device memory over {fabric}"):
        Topology([rank("a"), on_device("a", "nvidia", fabric)])
    info = rank("a")
    info.direct = {Fabric.shm}
    with pytest.raises(InvalidArgumentError, match="host memory over shm"):
        Topology([info])


def can_be(*ranks: RankInfo) -> bool:
    """Whether the ranks of every label have one vendor."""
    labels = {(info.island, info.vendor) for info in ranks if info.island}
    return len(labels) == len({label for label, _ in labels})


@given(st.lists(infos, min_size=1, max_size=3).filter(lambda ranks: can_be(*ranks)))
def test_fingerprint_is_fnv_1a_of_the_text(ranks: list[RankInfo]) -> None:
    value = 0xCBF29CE484222325
    for byte in b"".join(_core.serialize(info).encode() + b"\0" for info in ranks):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    assert Topology(ranks).fingerprint == value


@given(infos, infos)
def test_fingerprint_depends_on_facts_and_order(a: RankInfo, b: RankInfo) -> None:
    assume(can_be(a, b))
    assert (Topology([a, b]).fingerprint == Topology([b, a]).fingerprint) == (a == b)
    assert Topology([a]).fingerprint != Topology([a, a]).fingerprint


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": ""}, "identity of its host"),
        ({"vendor": ""}, "vendor"),
        ({"cores": 0}, "at least one core, got 0"),
        ({"nics": [nic(bandwidth=-1)]}, "NIC eth0, got -1"),
        ({"nics": [nic(bandwidth=10**15 + 1)]}, "NIC eth0, got 1000000000000001"),
    ],
)
def test_impossible_facts_are_rejected(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"rank 1: expected .*{expected}"):
        Topology([rank("a"), RankInfo(**({"host": "a"} | fields))])


def test_an_empty_list_of_ranks_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one rank"):
        Topology([])


def test_an_unknown_fabric_lists_the_known_ones() -> None:
    for name, value in Fabric.__members__.items():
        assert _core.fabric_from_name(name) == value
    with pytest.raises(InvalidArgumentError, match=r'infiniband, roce, ethernet.*got "token"'):
        _core.fabric_from_name("token")
    with pytest.raises(InvalidArgumentError, match="known fabric for NIC eth0, got number 99"):
        Topology([rank("a", "cpu", nic(fabric=Fabric(99)))])


@pytest.mark.parametrize("method", ["rank", "island_of", "index_in_island", "host_of", "uplink"])
@pytest.mark.parametrize("outside", [-1, 1])
def test_ranks_outside_the_job_are_rejected(method: str, outside: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"got {outside}"):
        getattr(Topology([rank("a")]), method)(outside)
