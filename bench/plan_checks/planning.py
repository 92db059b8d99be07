"""Predictions of a cluster's collectives and layouts, and the planner's choice."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from hetcomm.emulate import Cluster
from hetcomm.explain import topology_of
from hetcomm.plan import Device, Limits, PlannedNetwork, Profile, Row, propose
from hetcomm.plan.profile import HostWork
from hetcomm.plan.search.search import predicted
from plan_checks.cases import CLUSTERS, JOBS, Job
from plan_checks.layouts import variants

SCHEDULES = ("1f1b", "gpipe", "interleaved")
# No layer is faster than its operations at these rates; memory limits nothing.
DEVICE = Device(1e15, 1e14, 1e12)
COLLECTIVE_BYTES = (1 << 18, 1 << 20, 4 << 20)


def profile_of(job: Job, every: list[Any], name: str) -> Profile:
    """By the medians of all ranks with a kind of device. every: kind, measured layers by job, and
    the host's work of each rank."""
    rows, optimizer, works = [], {}, {}
    kinds = dict.fromkeys(kind for kind, *_ in every)
    for kind in kinds:
        own = [measured[name] for each, measured, _ in every if each == kind]
        parts = [work for each, _, work in every if each == kind]
        works[kind] = HostWork(
            **{what: statistics.median(work[what] for work in parts) for what in parts[0]}
        )
        for layer in own[0][0]:
            for lines in zip(*(times[layer] for times, _ in own), strict=True):
                forward, backward = (statistics.median(row[i] for row in lines) for i in (1, 2))
                rows.append(Row(kind, layer, int(lines[0][0]), 1, forward, backward))
        optimizer[kind, 1] = statistics.median(seconds for _, seconds in own)
    return Profile(job.model, dict.fromkeys(kinds, DEVICE), tuple(rows), optimizer, host_work=works)


def limits_of(spec: dict[str, Any]) -> Limits:
    return Limits(
        micro_batches=(1, 2, 4), schedules=SCHEDULES, codecs=("none",), recompute=(False,),
        every_rank=True, tolerance=0.002, seconds=spec["search"], top=3,
    )  # fmt: skip


def planned(spec: dict[str, Any], every: list[Any]) -> dict[str, Any]:
    """What to run, with predictions: collectives, and layouts of each model."""
    cluster = CLUSTERS[spec["cluster"]]
    network = PlannedNetwork(topology_of(cluster))
    everyone = list(range(cluster.ranks))
    ends = sorted({first(cluster, place) for place in range(len(cluster.hosts))})
    groups = [everyone, ends] if len(ends) < len(everyone) else [everyone]
    collectives = [
        {"name": name, "bytes": size, "ranks": ranks,
         "predicted": network.collective(name, [ranks], size)}
        for name in ("all_reduce", "all_gather", "reduce_scatter")
        for size in COLLECTIVE_BYTES[: spec["sizes"]]
        for ranks in groups
    ]  # fmt: skip
    steps = []
    for name in spec["jobs"]:
        job = JOBS[name]
        profile = profile_of(job, every, name)
        batch = job.samples * cluster.ranks
        start = time.process_time()
        proposal = propose(cluster, job.model, profile, batch, limits_of(spec))
        took = time.process_time() - start
        bound = batch / proposal.upper_bound
        chosen = proposal.best.layout
        found = {"chosen": chosen}
        for other, layout in variants(cluster, job, batch, chosen, spec["variants"]).items():
            if layout not in found.values():
                found[other] = layout
        for title, layout in found.items():
            of = predicted(proposal.search.terms.problem, layout)
            steps.append(
                {"job": name, "name": title, "layout": json.loads(layout.text()),
                 "predicted": of.seconds, "bound": bound, "search": took,
                 "gap": proposal.found.gap,
                 "parts": [[s, r, each] for (s, r), each in of.parts.items()]}
            )  # fmt: skip
    return {"cluster": spec["cluster"], "collectives": collectives, "steps": steps}


def first(cluster: Cluster, place: int) -> int:
    """The first rank of a host."""
    return cluster.placement.index(place)
