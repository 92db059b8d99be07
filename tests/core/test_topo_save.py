"""`hetcomm topo --save`: the cluster file of a job."""

from pathlib import Path

import machines
import pytest

import hetcomm
from hetcomm import _core, topo_save
from hetcomm.emulate import ClusterError, Nic, load
from hetcomm.explain import topology_of


def nic(bandwidth: int, known: bool) -> _core.Nic:
    return _core.Nic(
        name="eth0",
        interface="eth0",
        fabric=_core.Fabric.ethernet,
        bandwidth=bandwidth,
        bandwidth_known=known,
    )


def rank(host: str, **facts: object) -> _core.RankInfo:
    nics = [nic(125_000_000, True)]
    return _core.RankInfo(**{"host": host, "host_name": host, "nics": nics, **facts})


@pytest.mark.parametrize(
    "name", ["three-islands", "two-nics", "two-islands-interleaved", "two-sites"]
)
def test_a_described_cluster_is_found_again(name: str, tmp_path: Path) -> None:
    described = load(Path(__file__).parents[2] / f"examples/clusters/{name}.toml")
    topo_save.save(topology_of(described), tmp_path / "job.toml")
    saved = load(tmp_path / "job.toml")
    assert [(host.name, host.ranks, host.vendor) for host in saved.hosts] == [
        (host.name, host.ranks, host.vendor) for host in described.hosts
    ]
    assert [sorted(nic.slower or 0 for nic in host.nics) for host in saved.hosts] == [
        sorted(nic.slower or 0 for nic in host.nics) for host in described.hosts
    ]
    assert saved.placement == described.placement
    assert saved.zones == described.zones
    assert [host.zone for host in saved.hosts] == [host.zone for host in described.hosts]


def test_devices_and_their_nics_are_written(tmp_path: Path) -> None:
    ranks = machines.dgx_h100(tmp_path / "1", 1).ranks(2, device="NVIDIA H100 0000:43:00.0")
    topo_save.save(_core.Topology(ranks), tmp_path / "job.toml")
    (host,) = load(tmp_path / "job.toml").hosts
    assert (host.vendor, host.kind, host.ranks) == ("nvidia", "NVIDIA H100", 2)
    assert {nic.fabric for nic in host.nics} >= {"infiniband"}
    assert max(nic.slower or 0 for nic in host.nics) == 400_000_000_000


def test_names_that_no_file_permits_are_changed(tmp_path: Path) -> None:
    infos = [rank(str(host), host_name=name) for host, name in enumerate(("a.b", "A-B", "..."))]
    topology = _core.Topology(infos)
    topo_save.save(topology, tmp_path / "job.toml")
    assert [host.name for host in load(tmp_path / "job.toml").hosts] == ["a-b", "A-B-1", "host"]


def test_assumed_rates_and_unreachable_nics_are_named(tmp_path: Path) -> None:
    nics = [nic(1_250_000_000, False)]
    topo_save.save(_core.Topology([rank("a", nics=nics)]), tmp_path / "job.toml")
    assert "# a eth0: 10gbit is assumed" in (tmp_path / "job.toml").read_text()
    infos = [rank("a"), rank("b")]
    for number, info in enumerate(infos, 1):
        (port,) = info.nics
        port.address, port.subnet, info.rails = f"10.0.0.{number}", "10.0.0.0/24", True
        info.nics = [port]
    apart = _core.Topology(infos, [("10.0.0.0/24", "10.0.0.1", "")])
    topo_save.save(apart, tmp_path / "apart.toml")
    assert "10.0.0.1 does not reach any rank over" in (tmp_path / "apart.toml").read_text()
    assert load(tmp_path / "job.toml").hosts[0].nics == (Nic(10**10, 10**10, numa=-1),)


def test_unlike_devices_of_a_host_are_refused(tmp_path: Path) -> None:
    topology = _core.Topology([rank("a"), rank("a", vendor="amd", device="AMD MI300X 0000:01")])
    with pytest.raises(hetcomm.InvalidArgumentError, match="AMD MI300X, cpu; give the ranks"):
        topo_save.save(topology, tmp_path / "job.toml")
    with pytest.raises(hetcomm.InvalidArgumentError, match="a file that can be written"):
        topo_save.save(_core.Topology([rank("a")]), tmp_path)
    with pytest.raises(ClusterError, match="1 to 16 NICs"):
        topo_save.cluster_of(_core.Topology([rank("a", nics=[])]))
