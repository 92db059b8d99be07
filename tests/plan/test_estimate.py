"""Plans of more ranks than are replayed: their estimated prices, against a replay."""

import random
from collections.abc import Callable
from statistics import median

import pytest
from generated import COLLECTIVES, GBIT, IN_PLACE, devices, topology_of
from test_profile import text_of as profile_text

from hetcomm import _core
from hetcomm._core import CostParameters, Planner, Spec, Topology

REPLAYED = CostParameters().replayed_ranks
SIZES = [1 << power for power in (3, 10, 14, 17, 20, 22, 24, 26)]  # bytes


def hosts(rng: random.Random) -> Topology:
    """3 to 24 hosts, equal or unlike, with 33 to 130 ranks before some are left out."""
    while True:
        number, size = rng.randint(3, 24), rng.choice((2, 4, 8))
        rate = rng.choice((1, 10, 25, 100)) * GBIT
        kind = rng.choice(("equal", "rates", "sizes", "vendors"))
        fabric = rng.choice(("ethernet", "roce", "infiniband"))
        if not REPLAYED < number * size <= 130:
            continue
        if kind == "vendors":
            first = rng.randint(1, number - 1)
            places = [
                f"h{host}/{'nvidia' if host < first else 'amd'}"
                for host in range(number)
                for _ in range(size)
            ]
            return devices(places, rate, fabric, kernels=True)
        sizes = [rng.choice((size, size // 2)) if kind == "sizes" else size for _ in range(number)]
        unlike = (rate, rate, rate // 2, rate // 10) if kind == "rates" else (rate,)
        rates = [rng.choice(unlike) for _ in sizes]
        cores = rng.choice((size // 2, size, 64))
        return topology_of(sizes, rates, rng.choice(("block", "interleaved")), cores, fabric)


def spec_of(rng: random.Random, collective: _core.Collective, size: int) -> Spec:
    count = rng.choice(SIZES) // 4
    whole = collective.name in IN_PLACE
    return Spec(collective, count=count if whole else max(1, count // size))


def prices(topology: Topology, spec: Spec, replayed_ranks: int) -> tuple[str, dict[str, int]]:
    """The chosen algorithm, and the predicted ns of all that apply."""
    parameters = CostParameters()
    parameters.replayed_ranks = replayed_ranks
    choice = Planner(topology, parameters=parameters).choose(spec)
    totals = {c.algorithm.name: c.cost.total for c in choice.candidates if not c.rejected}
    return choice.algorithm.name, totals


def test_estimated_choices_are_near_the_best() -> None:
    rng = random.Random(20261130)
    ratios, regrets = [], []
    for _ in range(80):
        topology = hosts(rng)
        for collective in COLLECTIVES:
            spec = spec_of(rng, collective, len(topology))
            chosen, estimated = prices(topology, spec, 0)
            _, replayed = prices(topology, spec, len(topology))
            assert estimated.keys() == replayed.keys()
            ratios += [estimated[name] / replayed[name] for name in replayed]
            regrets.append((replayed[chosen] / min(replayed.values()), str(spec), chosen))
    regrets.sort(reverse=True)
    assert 0.98 < median(ratios) < 1.02
    assert min(ratios) > 0.45 and max(ratios) < 2.2
    assert regrets[len(regrets) // 50][0] < 1.05, regrets[:20]
    assert regrets[0][0] < 1.35, regrets[:5]


def one_slow_rate() -> Topology:
    return topology_of([1] * 40, [(100 - host) * GBIT for host in range(39)] + [GBIT])


def one_without_rdma() -> Topology:
    infos = topology_of([4] * 12, 25 * GBIT, fabric="infiniband").ranks
    for info in infos[20:24]:
        nics = info.nics
        for nic in nics:
            nic.fabric = _core.Fabric.ethernet
        info.nics = nics
    return Topology(infos)


def some_staged() -> Topology:
    places = [f"h{host}/{'amd' if host < 6 else 'nvidia'}" for host in range(12) for _ in range(4)]
    return devices(places, 25 * GBIT, "roce", direct=[place for place in places if "amd" in place])


@pytest.mark.parametrize("make", [one_slow_rate, one_without_rdma, some_staged])
def test_an_unlike_host_counts(make: Callable[[], Topology]) -> None:
    topology = make()
    for collective in COLLECTIVES:
        for size in (8, 1 << 12, 1 << 16, 1 << 22):
            spec = Spec(collective, count=max(1, size // 4 // len(topology)))
            if collective.name in IN_PLACE:
                spec = Spec(collective, count=size // 4)
            chosen, estimated = prices(topology, spec, 0)
            _, replayed = prices(topology, spec, len(topology))
            assert replayed[chosen] < 2 * min(replayed.values()), (spec, estimated, replayed)


def test_a_measured_rate_counts() -> None:
    """All hosts report one rate, and the profile has a slow one among them."""
    topology = topology_of([4] * 12)
    rates = [GBIT // 20 if host == 5 else GBIT for host in range(12)]
    hosts = [
        f"host name=h{host} ranks=4 cores=64 nics=ethernet:{GBIT} bandwidth={rate}"
        for host, rate in enumerate(rates)
    ]
    spec = Spec(_core.Collective.all_reduce, count=1 << 20)
    parameters = CostParameters(_core.Profile(profile_text(hosts=hosts)))
    candidates = []
    for parameters.replayed_ranks in (0, len(topology)):
        candidates.append(Planner(topology, parameters=parameters).choose(spec).candidates)
    for estimated, priced in zip(*candidates, strict=True):
        if not priced.rejected:
            assert 0.5 < estimated.cost.total / priced.cost.total < 2


@pytest.mark.parametrize("replayed", [0, 64])
def test_a_bandwidth_of_zero_is_refused(replayed: int) -> None:
    parameters = CostParameters()
    parameters.replayed_ranks = replayed
    parameters.memory_bandwidth = 0
    with pytest.raises(_core.InvalidArgumentError, match="expected bandwidths above 0"):
        Planner(topology_of([8] * 8), parameters=parameters).choose(
            Spec(_core.Collective.all_reduce, count=16)
        )


def test_few_ranks_are_replayed() -> None:
    topology = topology_of([4] * (REPLAYED // 4))
    spec = Spec(_core.Collective.all_reduce, count=1 << 20)
    _, totals = prices(topology, spec, REPLAYED)
    planner = Planner(topology)
    for name, total in totals.items():
        assert total == _core.predict(topology, planner.plan_all(spec, name)).total


@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda collective: collective.name)
def test_a_rank_of_1024_has_few_steps(collective: _core.Collective) -> None:
    """A message or three with each other island in each direction, and little else."""
    topology = topology_of([8] * 128, 25 * GBIT)
    whole = collective.name in IN_PLACE
    for size in (8, 1 << 16, 1 << 20, 1 << 26):
        spec = Spec(collective, count=size // 4 if whole else max(1, size // 4096))
        plan = Planner(topology).plan(spec, 1)
        most = 2 * 1016 if collective.name == "all_to_all" else 6 * 127
        messages = [step for step in plan.steps if step.kind.name in ("send", "recv")]
        assert len(messages) <= most, (size, plan.algorithm)
        assert len(plan.steps) <= most + 8, (size, plan.algorithm)


@pytest.mark.parametrize("rates", [(100,), (100, 50)], ids=str)
@pytest.mark.parametrize("hosts", [4, 8])
@pytest.mark.parametrize("collective", COLLECTIVES, ids=str)
def test_native_islands_on_several_hosts_are_estimated_like_replays(
    collective: _core.Collective, hosts: int, rates: tuple[int, ...]
) -> None:
    places = [f"{host}/{'nvidia' if host < hosts // 2 else 'amd'}" for host in range(hosts)]
    infos = devices([place for place in places for _ in range(4)], fabric="roce").ranks
    for rank, info in enumerate(infos):
        nics = info.nics
        nics[0].bandwidth = rates[rank // 4 % len(rates)] * GBIT
        info.nics = nics
    topology = Topology(infos)
    count = 0 if collective.name == "barrier" else 4 << 20
    if collective.name not in IN_PLACE:
        count //= len(topology)
    costs = []
    for replayed in (10**6, 0):
        parameters = CostParameters()
        parameters.replayed_ranks = replayed
        costs.append(Planner(topology, parameters=parameters).cost(Spec(collective, count=count)))
    assert 0.7 < costs[1].total / costs[0].total < 1.3
    assert costs[1].bridge_bytes == pytest.approx(costs[0].bridge_bytes, rel=0.01)
