"""Zones of an emulated cluster share an uplink, and collectives send little over it."""

import io
import json
import sys

import pytest
from emulated import RunProgram
from undisturbed import undisturbed

from hetcomm.emulate import Cluster, Host, Nic, Zone, run

MEGABIT = 1_000_000
COUNT = 60_000
UPLINK = 60 * MEGABIT
FAST = Nic(400 * MEGABIT, 400 * MEGABIT)
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


def cluster(*zones: str, order: str = "block", ranks: int = 1, uplinks: int = 1) -> Cluster:
    hosts = tuple(Host(f"h{i}", ranks, (FAST,), zone=zone) for i, zone in enumerate(zones))
    names = sorted({zone.partition("/")[0] for zone in zones})[:uplinks]
    return Cluster(hosts, order, zones=tuple(Zone(name, UPLINK) for name in names))


def nested(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (f"{name}:0-inf=hierarchical_nested" for name in COLLECTIVES)
    monkeypatch.setenv("HETCOMM_SELECT", ";".join(rows))


@pytest.mark.parametrize(
    ("zones", "order", "ranks"),
    [
        (("a", "a", "b", "b"), "interleaved", 2),
        (("a", "b", "a", "a", "b"), "random:3", 1),
        (("x/r0", "x/r1", "y/r0", "x/r1", "y/r0", "x/r0"), "random:5", 1),
    ],
)
def test_nested_collectives_are_right(
    run_program: RunProgram,
    monkeypatch: pytest.MonkeyPatch,
    zones: tuple[str, ...],
    order: str,
    ranks: int,
) -> None:
    nested(monkeypatch)
    described = cluster(*zones, order=order, ranks=ranks, uplinks=2)
    result, lines = run_program(described, "zones.py", COUNT // 10)
    assert result.ok, lines
    assert sum("right" in line for line in lines) == described.ranks


def test_the_uplink_carries_each_element_once(
    run_program: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of N elements with two of four ranks in each zone: N for all_reduce, half of N each for
    reduce_scatter and all_gather, N for one of two broadcasts and for one of two reductions."""
    nested(monkeypatch)
    result, lines = run_program(cluster("a", "a", "b", "b", uplinks=2), "zones.py", COUNT)
    assert result.ok, lines
    elements = 4 * COUNT
    for link in (one for one in result.links if one.host.startswith("zone ")):
        for size in (link.out_bytes, link.in_bytes):
            assert 4 * 4 * elements < size < 1.15 * 4 * 4 * elements, link


def test_hosts_of_a_zone_share_its_uplink(run_program: RunProgram) -> None:
    """Two hosts of a send to two hosts of b, at the rate of one uplink in all."""

    def rate() -> float:
        described = cluster("a", "a", "b", "b")
        result, lines = run_program(described, "across.py", 2 * COUNT, 8)
        assert result.ok, lines
        return max(float(line.split()[-1]) for line in lines if "seconds" in line)

    wire = 2 * (2 * COUNT) * 4 * 8 / UPLINK
    undisturbed(rate, lambda seconds: 0.97 * wire < seconds < 1.4 * wire, times=3)


def test_topo_shows_zones() -> None:
    described = cluster("paris/r1", "paris/r2", "oslo/r1", uplinks=2)
    command = [sys.executable, "-m", "hetcomm", "topo", "--json"]
    output = io.StringIO()
    assert run(described, command, timeout=60, stdout=output).ok, output.getvalue()
    lines = output.getvalue().splitlines()
    text = "\n".join(line.partition("] ")[2] for line in lines if line.startswith("[0 "))
    zones = json.loads(text)["zones"]
    assert [(zone["name"], zone["uplink"], zone["hosts"]) for zone in zones] == [
        ("paris", UPLINK // 8, [0, 1]),
        ("oslo", UPLINK // 8, [2]),
        ("paris/r1", None, [0]),
        ("paris/r2", None, [1]),
        ("oslo/r1", None, [2]),
    ]
