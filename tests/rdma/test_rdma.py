"""hetcomm's links over RDMA verbs, without an RDMA card: soft-RoCE in a virtual machine.

Two hosts have two ranks and a RoCE device each. The wire between them may delay or lose packets. Or
four hosts are in pairs on two RoCE networks that only Ethernet joins. `make test-rdma` alone runs
these tests: they download a kernel and take minutes.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import machine
import packages
import pytest
from guest.scenarios import SCENARIOS, Scenario
from rich.console import Console

from hetcomm import topo

NAME = attrgetter("name")
SECONDS = 1800.0  # of the machine's life; far above the usual time

pytestmark = pytest.mark.timeout(SECONDS + 600)  # making the image takes time, too

Job = dict[str, Any]


def those(condition: Callable[[Scenario], object] = bool) -> list[Scenario]:
    """The scenarios of a test."""
    return [one for one in SCENARIOS.values() if condition(one)]


CHOSEN = those()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Job]:
    """The findings of the ranks of every chosen scenario, all from one machine."""
    image = packages.image(download=True)
    folder = tmp_path_factory.mktemp("machine")
    program = [sys.executable, str(packages.GUEST / "ranks.py")]
    outcome = machine.run(
        image, [*program, *(scenario.name for scenario in CHOSEN)], folder, seconds=SECONDS
    )  # fmt: skip
    assert outcome.status == 0, f"{outcome.output}\n{outcome.console[-3000:]}"
    return {
        scenario.name: json.loads((folder / f"{scenario.name}.json").read_text())
        for scenario in CHOSEN
    }


@pytest.fixture(params=CHOSEN, ids=NAME)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return request.param


@pytest.fixture
def ranks(jobs: dict[str, Job], scenario: Scenario) -> list[dict[str, Any]]:
    """The findings of each rank. Fails if a rank did not finish."""
    found = []
    for rank, result in enumerate(jobs[scenario.name]["ranks"]):
        assert "found" in result, f"rank {rank}: {result['error']}\n{result['log']}"
        found.append(result["found"] | {"log": result["log"]})
    return found


def test_every_collective_matches_numpy(ranks: list[dict[str, Any]]) -> None:
    """The ranks compare results. The test only checks that all ranks finished."""
    assert all(rank["seconds"]["collectives"] > 0 for rank in ranks)


def test_the_library_drives_rdma(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        path = rank["ucx"].split("(")[1].rstrip(")")
        assert path.startswith("/usr/lib/"), rank["ucx"]
        assert "it drives the RDMA devices here, unlike the libucx wheel" in rank["log"]


def test_links_are_over_verbs(scenario: Scenario, ranks: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(ranks):
        for peer, path in enumerate(found["paths"]):
            if scenario.hosts[rank] == scenario.hosts[peer]:
                continue  # messages inside a host take the transport that UCX prefers
            case = f"{rank} to {peer}: {path}"
            if scenario.over_rdma(rank, peer):
                assert path.startswith("rc") and f" over {scenario.device(rank)}" in path, case
                assert "tcp" not in path, case
            else:
                assert path == f"tcp over en{scenario.number(rank)}", case


@pytest.mark.parametrize("scenario", those(lambda one: one.elements), indirect=True, ids=NAME)
def test_bytes_cross_the_wire_as_roce(scenario: Scenario, ranks: list[dict[str, Any]]) -> None:
    """Each host's share of an all_reduce crosses once: one buffer in either direction. The message
    to the host on the same network crosses as RoCE. Messages to other hosts go over TCP."""
    before, after = ranks[0]["traffic"]
    payload = 4 * scenario.elements
    for device in after:
        sent = {key: after[device][key] - before[device][key] for key in after[device]}
        if device == "lo":
            over_tcp = payload * scenario.pairs_apart
            assert over_tcp <= sent["bytes"] < 1.1 * over_tcp + payload // 20, f"TCP: {sent}"
        elif int(device[3:]) >= 2 and not scenario.two_networks:
            assert sent["bytes"] == 0, f"{device}: {sent}"
        else:
            assert payload < sent["bytes"], f"{device}: {sent}"
            assert sent["bytes"] < 1.2 * payload or "loss" in scenario.netem, f"{device}: {sent}"
            assert sent["packets"] > payload // 4096, f"{device}: {sent}"


def test_the_wire_carried_and_dropped_packets(jobs: dict[str, Job], scenario: Scenario) -> None:
    wires = jobs[scenario.name]["wires"]
    assert bool(wires) == bool(scenario.netem)
    if "loss" in scenario.netem:
        assert sum(wire["drops"] for wire in wires) > 0, wires  # of about a thousand packets
    if "delay" in scenario.netem:
        assert all(wire["packets"] > 100 for wire in wires), wires


def test_topo_shows_the_islands(scenario: Scenario, ranks: list[dict[str, Any]]) -> None:
    found = topo.assemble(ranks)
    islands: dict[str, list[int]] = {}
    for rank, host in enumerate(scenario.vendors or scenario.hosts):
        islands.setdefault(host, []).append(rank)
    assert found.topology.islands == list(islands.values())
    output = io.StringIO()
    page = topo.render(found.topology, found.explanations, found.paths)
    Console(file=output, width=160).print(page)
    text = output.getvalue()
    for rank in range(len(ranks)):
        device = scenario.device(rank)
        assert f"{device} (vr{device[3:]}): roce" in text
        if scenario.two_networks:
            peers = [p for p in range(len(ranks)) if not scenario.over_rdma(rank, p)]
            pairs = ", ".join(f"{rank} - {peer}" for peer in peers)
            assert re.search(rf"tcp over en{scenario.number(rank)} +│ {pairs}", text)
    if scenario.vendors:
        for network in (0, 1):
            wanted = f"roce, all of its 2 hosts have RoCE v2 on 198.18.{network}.0/24"
            assert f"network: {wanted}" in text
        (link,) = topo.describe(found.topology, found.explanations)["links"]
        assert (link["islands"], link["fabric"]) == ([0, 1], "ethernet")


@pytest.mark.parametrize("scenario", those(lambda one: one.vendors), indirect=True, ids=NAME)
def test_the_native_libraries_take_the_network_of_their_island(
    scenario: Scenario, ranks: list[dict[str, Any]]
) -> None:
    for rank, found in enumerate(ranks):
        assert f"2 ranks, network IB [0]{scenario.device(rank)}:1/RoCE; ucx" in found["log"]
        assert "expected it to use" not in found["log"]
