"""Layouts beside the planner's choice."""

from __future__ import annotations

from dataclasses import replace

from hetcomm.emulate import Cluster
from hetcomm.plan import Layout, Replica, Stage
from plan_checks.cases import SLOWER, Job

PLAIN = {"weights": "rank", "gradients": "rank", "optimizer_states": "rank"}
DIVIDED = {"weights": "rank", "gradients": "cluster", "optimizer_states": "cluster"}


def of(
    groups: list[list[int]], counts: list[int], batch: int, micro: int, **rest: object
) -> Layout:
    """groups: the ranks of each stage; counts: its layers."""
    stages, first = [], 0
    for ranks, count in zip(groups, counts, strict=True):
        stages.append(Stage(((first, first + count),), tuple(Replica((r,)) for r in ranks)))
        first += count
    return Layout(tuple(stages), batch, micro, codec="none", **rest)  # type: ignore[arg-type]


def counts_of(layers: int, rates: list[float]) -> list[int]:
    """Layers in proportion to the stages' rates, at least one each."""
    found = [1] * len(rates)
    for _ in range(layers - len(rates)):
        least = min(range(len(rates)), key=lambda s: (found[s] + 1) / rates[s])
        found[least] += 1
    return found


def shares_of(total: int, rates: list[float]) -> tuple[int, ...]:
    """Micro-batches in proportion to the replicas' rates, at least one each."""
    return tuple(counts_of(total, rates))


def variants(
    cluster: Cluster, job: Job, batch: int, chosen: Layout, most: int
) -> dict[str, Layout]:
    """Layouts of unlike kinds, by name."""
    hosts: list[list[int]] = [[] for _ in cluster.hosts]
    for rank, place in enumerate(cluster.placement):
        hosts[place].append(rank)
    rate = [1 / SLOWER[cluster.hosts[place].kind] for place in cluster.placement]
    ranks, layers = list(range(cluster.ranks)), job.model.layers
    found: dict[str, Layout] = {}
    one = [[*ranks]]
    micro = 2 if (batch // len(ranks)) % 2 == 0 else 1
    found["data parallel"] = of(one, [layers], batch, micro, **PLAIN)
    found["data parallel, overlapped"] = of(
        one, [layers], batch, micro, **DIVIDED, overlap_optimizer=True
    )
    found["data parallel, divided"] = of(one, [layers], batch, micro, **DIVIDED)
    found["data parallel, shares"] = of(
        one, [layers], batch, 1, **DIVIDED, overlap_optimizer=True, shares=shares_of(batch, rate)
    )
    sizes = {len(each) for each in hosts}
    if len(sizes) == 1 and len(hosts) > 1:  # Holmes: a stage for each island
        rates = [sum(rate[r] for r in each) for each in hosts]
        found["pipeline over hosts"] = of(
            hosts, counts_of(layers, rates), batch, 1, **DIVIDED, overlap_optimizer=True
        )
        found["pipeline over hosts, equal layers"] = of(
            hosts, counts_of(layers, [1.0] * len(hosts)), batch, 1, **PLAIN
        )
        inside = [list(each) for each in zip(*hosts, strict=True)]
        if len(inside) > 1:
            found["pipeline inside hosts"] = of(
                inside, counts_of(layers, [1.0] * len(inside)), batch, 1, **DIVIDED,
                overlap_optimizer=True,
            )  # fmt: skip
    if len(ranks) <= layers:
        lines = [[r] for r in ranks]
        found["one pipeline"] = of(lines, counts_of(layers, rate), batch, 1, **PLAIN)
    if len(ranks) % 2 == 0:
        half = len(ranks) // 2
        groups = [ranks[:half], ranks[half:]]
        rates = [sum(rate[r] for r in each) for each in groups]
        found["two stages"] = of(
            groups, counts_of(layers, rates), batch, 1, **DIVIDED, overlap_optimizer=True
        )
        found["two stages, gpipe"] = of(
            groups, counts_of(layers, rates), batch, 2, **DIVIDED, overlap_optimizer=True,
            schedule="gpipe",
        )  # fmt: skip
    found["chosen, plain"] = replace(chosen, **PLAIN, overlap_optimizer=False)
    if job.few:
        found = {name: found[name] for name in ("data parallel, shares",)}
    return dict(list(found.items())[:most])
