"""With HETCOMM_DETERMINISTIC a plan depends on the places of ranks, not on any speed."""

import random

import pytest
from generated import BANDWIDTHS, COLLECTIVES, describe, random_spec, random_topology, with_devices

from hetcomm._core import CostParameters, Plan, Planner, Spec, Topology

SEED = 20261122
TOPOLOGIES = 150


def at_other_speeds(rng: random.Random, topology: Topology) -> Topology:
    """The same layout as another run may find it: other link rates, fewer processors, hosts on
    other machines."""
    infos = topology.ranks
    speeds = {info.host: rng.choice(BANDWIDTHS) for info in infos}
    machines = {info.host: rng.choice(("", "m", "n")) for info in infos}
    for info in infos:
        nics = info.nics
        nics[0].bandwidth = speeds[info.host]
        info.nics, info.cores = nics, rng.choice((1, 3, 8, 128))
        info.machine, info.zone = machines[info.host], info.zone.replace("@2gbit", "@7gbit")
    found = Topology(infos)
    assert found.islands == topology.islands
    return found


def steps_of(plans: list[Plan]) -> list[tuple[str, list]]:
    return [(plan.algorithm, plan.steps) for plan in plans]


def plans(topology: Topology, spec: Spec) -> list[tuple[str, list]]:
    return steps_of(Planner(topology).plan_all(spec))


def estimated(topology: Topology, spec: Spec) -> str:
    """The choice without speeds by a price that is not replayed."""
    parameters = CostParameters()
    parameters.replayed_ranks = 0
    return Planner(topology.without_speeds(), parameters=parameters).choose(spec).algorithm.name


@pytest.mark.parametrize("kind", ["host", "device"])
def test_plans_without_speeds_depend_on_the_layout_alone(kind: str) -> None:
    differing = 0
    for number in range(TOPOLOGIES):
        seed = f"{SEED}/{kind}/{number}"
        rng = random.Random(seed)
        one = random_topology(rng, most_ranks=16)
        if kind == "device":
            one = with_devices(rng, one)
        other = at_other_speeds(rng, one)
        for collective in COLLECTIVES:
            spec = random_spec(rng, collective, len(one))
            differing += plans(one, spec) != plans(other, spec)
            same = plans(one.without_speeds(), spec) == plans(other.without_speeds(), spec)
            same = same and estimated(one, spec) == estimated(other, spec)
            assert same, f"seed {seed}, {spec}:\n{describe(one)}\n{describe(other)}"
    assert differing > TOPOLOGIES / 4, "speeds changed hardly any plan: the test shows nothing"


def test_only_speeds_are_left_out() -> None:
    topology = with_devices(random.Random(3), random_topology(random.Random(3)))
    alike = topology.without_speeds()
    assert alike.islands == topology.islands
    assert alike.hosts == topology.hosts
    size = len(topology)
    assert {info.cores for info in alike.ranks} == {size}
    assert {alike.uplink(rank) for rank in range(size)} == {0}
