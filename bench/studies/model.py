"""The parts of a study: layouts of ranks, runs on them, and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median
from typing import Any

from hetcomm import _core
from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.emulate.cluster import parse_rate

K, M = 1 << 10, 1 << 20
MPIS = ("openmpi", "mpich")


@dataclass(frozen=True)
class Layout:
    """Where ranks are. ranks: "2+2" for hosts of an emulated cluster, "4" for this host. rates: of
    each host's NICs, "1gbit" or "1gbit+2gbit"; the last one also of the hosts that follow.
    vendors: of the hosts in turn, with copy engines of copy_rate where these are emulated."""

    ranks: str
    rates: tuple[str, ...] = ("unlimited",)
    order: str = "block"
    vendors: tuple[str, ...] = ("cpu",)
    copy_rate: str = "unlimited"

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Layout:
        """The inverse of asdict(), from JSON."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})

    @property
    def hosts(self) -> list[int]:
        """The ranks of each."""
        return [int(count) for count in self.ranks.split("+")]

    @property
    def rates_by_host(self) -> list[list[int | None]]:
        """Bits per second of the NICs of each."""
        lacking = len(self.hosts) - len(self.rates)
        texts = [*self.rates, *[self.rates[-1]] * lacking][: len(self.hosts)]
        return [[parse_rate(rate) for rate in text.split("+")] for text in texts]

    def cluster(self) -> Cluster | None:
        """The emulated cluster; None for this host."""
        if len(self.hosts) == 1:
            return None
        hosts = [
            Host(
                chr(ord("a") + index),
                ranks,
                tuple(Nic(rate, rate) for rate in rates),
                vendor,
                parse_rate(self.copy_rate, fastest=10**12),
            )
            for index, (ranks, rates, vendor) in enumerate(
                zip(self.hosts, self.rates_by_host, cycle(self.vendors), strict=False)
            )
        ]
        return Cluster(tuple(hosts), self.order)

    def describe(self) -> str:
        """ "2+2 over 1gbit, interleaved"."""
        if len(self.hosts) == 1:
            return f"{self.ranks} ranks"
        words = f"{self.ranks} over {'/'.join(self.rates)}, {self.order}"
        if self.vendors != ("cpu",):
            words += f", {'/'.join(self.vendors)}, copies {self.copy_rate}"
        return words


@dataclass(frozen=True)
class Mode:
    """How calls are made. in_place: None for the default. work: seconds of other work on each rank
    before each call, as in a training step."""

    in_place: bool | None = None
    work: float = 0.0

    def describe(self) -> str:
        """ "out of place, isolated"; "" for the default, calls back to back."""
        words = {None: "", True: "in place", False: "out of place"}[self.in_place]
        return ", ".join(filter(None, (words, "isolated" if self.work else "")))


@dataclass(frozen=True)
class Target:
    """value: the least or greatest ratio; see verdicts.py for the kinds. sizes, collectives: of the
    cases, empty for all. ours: the backend of our time."""

    kind: str
    value: float
    sizes: tuple[int, ...] = ()
    collectives: tuple[str, ...] = ()
    ours: str = "hetcomm"


@dataclass(frozen=True)
class Run:
    """opponents: each meets hetcomm in a job of its own, MPIs by hetcomm's array API and "gloo"
    also by torch's; none for hetcomm alone. seconds: of timed calls for each backend and size, with
    the work between them; calls: so many instead, where they are long."""

    layout: Layout
    sizes: tuple[int, ...]
    targets: tuple[Target, ...] = ()
    collectives: tuple[str, ...] = ("all_reduce",)
    opponents: tuple[str, ...] = MPIS
    seconds: float = 0.4
    calls: int | None = None
    ours: str = "hetcomm"
    mode: Mode = Mode()

    @property
    def where(self) -> str:
        return where(self.layout.describe(), self.mode.describe())


def what_of(row: Mapping[str, Any]) -> str:
    """ "all_reduce 64 KiB"."""
    return f"{row['collective']} {_core.format_bytes(row['bytes'])}"


def where(layout: str, mode: str) -> str:
    """ "2 ranks, out of place"."""
    return ", ".join(filter(None, (layout, mode)))


@dataclass
class Outcome:
    """What one job has measured. rows: see Row.as_json(), without the samples. link: of a cluster,
    what plain TCP reaches between its first two hosts; see link.py. mode: as Mode describes it.
    settings: the variables that the job got besides those of the study."""

    layout: str
    opponent: str
    rows: list[dict[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] | None = None
    failed: str = ""
    mode: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return where(self.layout, self.mode)


@dataclass(frozen=True)
class Verdict:
    """kind: of comparison, see KINDS. where, what: the layout, and what was measured on it. ours,
    best: seconds, of hetcomm and of what it is compared with. ratio: how many times faster for the
    kinds in FASTER, else ours by best. met: None without a target."""

    kind: str
    where: str
    what: str
    ours: float
    name: str
    best: float
    ratio: float
    target: str
    met: bool | None

    @property
    def case(self) -> str:
        return ", ".join(filter(None, (self.where, self.what)))


FASTER = ("mpi", "mpi, mean", "gloo", "slower NIC", "start-up")
LIMITS = ("bound", "round trips", "copies", "longer part", "empty call")
OTHER = ("bytes", "prediction", "worst prediction", "scratch")
KINDS = (*FASTER, *LIMITS, *OTHER)


# Named seconds, and verdicts.
Special = tuple[dict[str, float], list[Verdict]]


def median_of(outcomes: list[Outcome], layout: Layout, size: int, backend: str) -> float | None:
    """Median seconds of an all_reduce over all its jobs."""
    found = [
        row["median"]
        for outcome in outcomes
        if outcome.where == layout.describe()
        for row in outcome.rows
        if (row["collective"], row["bytes"], row["backend"]) == ("all_reduce", size, backend)
    ]
    return median(found) if found else None


@dataclass(frozen=True)
class Plan:
    """quick: leaves out long measurements. peers: the installed ones."""

    quick: bool = False
    peers: tuple[str, ...] = MPIS


@dataclass(frozen=True)
class Study:
    """special: measures beyond the runs, given their outcomes."""

    summary: str
    runs: tuple[Run, ...] = ()
    special: Callable[[Plan, list[Outcome]], Special] | None = None
