"""From a cluster, a model and a profile to the best layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hetcomm import _core
from hetcomm.emulate.cluster import Cluster
from hetcomm.explain import topology_of
from hetcomm.plan.layout import SCHEDULES
from hetcomm.plan.model import KINDS, Model
from hetcomm.plan.prediction.network import PlannedNetwork
from hetcomm.plan.prediction.runtime import HETCOMM
from hetcomm.plan.profile import Profile
from hetcomm.plan.refuse import not_negative, one_of, positive, refuse, whole
from hetcomm.plan.search.best_first import Found
from hetcomm.plan.search.limits import refuse_memory, upper_bound
from hetcomm.plan.search.nodes import Search
from hetcomm.plan.search.pools import pools_of
from hetcomm.plan.search.search import PricedLayout
from hetcomm.plan.search.settings import SettingsSpace
from hetcomm.plan.search.space import Space
from hetcomm.plan.search.starts import Effort, search_from_starts
from hetcomm.plan.search.terms import Problem, Terms, distinct_levels


@dataclass(frozen=True)
class Limits:
    """What a search may take and vary.

    tensors: degrees; None: those that the profile measured. contexts: degrees of context
    parallelism. micro_batches: samples of a pass. schedules: all by default. codecs: of gradients
    on the bridge. recompute: values of Layout.recompute. every_rank: no rank may be idle.
    tolerance: the search ends when no layout can be faster by more than this share. seconds: of the
    search, at most. top: layouts to find, of unlike shapes.
    """

    tensors: Sequence[int] | None = None
    contexts: Sequence[int] = (1,)
    micro_batches: Sequence[int] = (1, 2, 4, 8, 16)
    schedules: Sequence[str] = SettingsSpace.schedules
    codecs: Sequence[str] = ("auto",)
    recompute: Sequence[bool] = (False, True)
    every_rank: bool = False
    tolerance: float = 0.01
    seconds: float = 60.0
    top: int = 5


@dataclass(frozen=True)
class Proposal:
    """The best layout of a search, and the runners-up of unlike shapes.

    upper_bound: samples per second if each device computed at the best rate of its kind, without
    bubbles, transfers and memory limits. limits: bytes of memory by kind of device.
    """

    cluster: Cluster
    search: Search = field(repr=False)
    found: Found[PricedLayout] = field(repr=False)
    upper_bound: float
    limits: dict[str, float]

    @property
    def layouts(self) -> list[PricedLayout]:
        """Best first."""
        return [priced for _, priced in self.found.best]

    @property
    def best(self) -> PricedLayout:
        return self.layouts[0]

    def samples_per_second(self, priced: PricedLayout) -> float:
        return priced.layout.batch / priced.prediction.seconds

    @property
    def idle(self) -> list[int]:
        """The ranks without a place in the best layout."""
        return sorted(set(range(self.cluster.ranks)) - set(self.best.layout.ranks))


def propose(
    cluster: Cluster,
    model: Model,
    profile: Profile,
    batch: int,
    limits: Limits | None = None,
    links: _core.Profile | None = None,
) -> Proposal:
    """Searches the best layout of a model on a cluster. batch: samples of an optimizer step.

    links: a profile of hetcomm tune for the cluster. Unlimited NICs need one.
    Raises hetcomm.InvalidArgumentError for limits that permit nothing, for NICs without a rate, for
    kinds of devices that the profile lacks, and if no layout fits the memory; the error says by how
    much.
    """
    limits = Limits() if limits is None else limits
    check_limits(limits, batch)
    check_links(cluster, links)
    root = search_of(cluster, model, profile, batch, limits, links)
    effort = Effort(limits.top, limits.tolerance, limits.seconds)
    found = search_from_starts(root, effort)
    if not found.best:
        refuse_memory(root, limits.seconds, found.cut)
    problem = root.terms.problem
    memory = {pool.kind: profile.devices[pool.kind].memory for pool in problem.pools}
    return Proposal(cluster, root, found, upper_bound(root), memory)


def search_of(
    cluster: Cluster,
    model: Model,
    profile: Profile,
    batch: int,
    limits: Limits,
    links: _core.Profile | None,
) -> Search:
    """The search of propose(), before its first step."""
    network = PlannedNetwork(topology_of(cluster), links)
    kinds = [cluster.hosts[place].kind for place in cluster.placement]
    scaled = limits.tensors is not None
    # Ranks that share processors gather weights at the cost of passes, not beside them.
    runtime = replace(HETCOMM, gather_beside=profile.processors is None)
    problem = Problem(model, profile, network, kinds, pools_of(cluster), runtime, scaled)
    terms = Terms(problem)
    tensors = limits.tensors
    if tensors is None:
        tensors = sorted({t for pool in problem.pools for t in terms.degrees(pool.kind)})
    for pool in problem.pools:
        for layer in KINDS:  # the profile names what it lacks
            profile.layer(model, pool.kind, layer, 1, 1)
        profile.step_seconds(pool.kind, 1, 1)
    levels = distinct_levels(problem)
    space = Space(
        tuple(range(len(problem.pools))),
        model.layers,
        batch,
        tensors,
        limits.contexts,
        limits.micro_batches,
        limits.every_rank,
        model.tied,
        max(SettingsSpace.chunks) if "interleaved" in limits.schedules else 1,
        "zero_bubble" in limits.schedules,
        levels,
        limits.codecs,
    )
    settings_space = SettingsSpace(
        limits.schedules,
        recompute=limits.recompute,
        levels=levels,
        codecs=limits.codecs,
    )
    return Search(terms, space, settings_space)


def check_limits(limits: Limits, batch: int) -> None:
    """Raises hetcomm.InvalidArgumentError for limits that no layout can keep."""
    whole("batch", batch, 1)
    whole("limits.top", limits.top, 1)
    positive("limits.seconds", limits.seconds)
    not_negative("limits.tolerance", limits.tolerance)
    for name in ("tensors", "contexts", "micro_batches", "schedules", "codecs", "recompute"):
        values = getattr(limits, name)
        if values is not None and len(values) == 0:
            refuse(f"limits.{name}", "at least one value", values, "name one, or leave it out")
    for name in ("tensors", "contexts", "micro_batches"):
        for value in getattr(limits, name) or ():
            whole(f"limits.{name}", value, 1)
    for schedule in limits.schedules:
        one_of("limits.schedules", schedule, SCHEDULES)
    if all(batch % samples for samples in limits.micro_batches):
        sizes = ", ".join(map(str, limits.micro_batches))
        remedy = "change the batch, or permit another micro-batch"
        refuse("batch", f"a multiple of a micro-batch out of {sizes}", batch, remedy)


def check_links(cluster: Cluster, links: _core.Profile | None) -> None:
    """Raises hetcomm.InvalidArgumentError for NICs without a rate. A cluster file is connected: NIC
    i of each host is on network i."""
    for host in cluster.hosts:
        for number, nic in enumerate(host.nics):
            if nic.slower is None and links is None:
                refuse(
                    f"{host.name} NIC {number}",
                    "a rate",
                    '"unlimited"',
                    "write its rate into the cluster file, or give --links a profile of "
                    "hetcomm tune",
                )
