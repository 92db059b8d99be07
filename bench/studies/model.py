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
    """The places of ranks on hosts, and the links between hosts."""

    ranks: str  # "2+2" for hosts of an emulated cluster, "4" for this host
    rates: tuple[str, ...] = ("unlimited",)  # by host, "1gbit+2gbit"; the last repeats
    order: str = "block"
    vendors: tuple[str, ...] = ("cpu",)  # of the hosts in turn
    copy_rate: str = "unlimited"  # of the copy engines of emulated vendors

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Layout:
        """The inverse of asdict(), from JSON."""
        return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})

    @property
    def hosts(self) -> list[int]:
        """The number of ranks of each host."""
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
                copy_rate=parse_rate(self.copy_rate),
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
    """The circumstances of calls."""

    in_place: bool | None = None  # None for the default
    work: float = 0.0  # seconds of other work on each rank before each call, as in training

    def describe(self) -> str:
        """ "out of place, isolated"; "" for the default, calls back to back."""
        words = {None: "", True: "in place", False: "out of place"}[self.in_place]
        return ", ".join(filter(None, (words, "isolated" if self.work else "")))


@dataclass(frozen=True)
class Target:
    """A bound on the ratio of a comparison."""

    kind: str  # see KINDS
    value: float  # the least ratio of kinds in FASTER, else the greatest
    sizes: tuple[int, ...] = ()  # empty for all
    collectives: tuple[str, ...] = ()  # empty for all
    ours: str = "hetcomm"  # the backend that is compared


@dataclass(frozen=True)
class Run:
    """Jobs on one layout. Each opponent meets hetcomm in a job of its own: MPIs meet the array API,
    "gloo" also hetcomm through torch. Without opponents hetcomm runs alone."""

    layout: Layout
    sizes: tuple[int, ...]
    targets: tuple[Target, ...] = ()
    collectives: tuple[str, ...] = ("all_reduce",)
    opponents: tuple[str, ...] = MPIS
    seconds: float = 0.4  # of timed calls for each backend and size, with the work between calls
    calls: int | None = None  # timed calls, instead of seconds
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
    """The measurements of one job."""

    layout: str
    opponent: str
    rows: list[dict[str, Any]]  # of Row.as_json(), without the samples
    facts: dict[str, Any] = field(default_factory=dict)
    link: dict[str, Any] | None = None  # rates of plain TCP, see link.py; None on one host
    failed: str = ""  # the reason
    mode: str = ""  # by Mode.describe()
    settings: dict[str, str] = field(default_factory=dict)  # variables for this job alone

    @property
    def where(self) -> str:
        return where(self.layout, self.mode)


@dataclass(frozen=True)
class Verdict:
    """A figure of hetcomm beside a peer or a limit."""

    kind: str  # of comparison, see KINDS
    where: str  # the layout and mode
    what: str  # the case, "all_reduce 64 KiB"
    ours: float  # seconds of hetcomm
    name: str  # of the peer or limit
    best: float  # its seconds
    ratio: float  # best / ours for kinds in FASTER, else ours / best
    target: str
    met: bool | None  # None without a target

    @property
    def case(self) -> str:
        return ", ".join(filter(None, (self.where, self.what)))


FASTER = ("mpi", "mpi, mean", "gloo", "slower NIC", "start-up", "codec")
LIMITS = ("bound", "round trips", "copies", "longer part", "empty call")
OTHER = ("bytes", "prediction", "worst prediction", "scratch", "plan time", "message", "predicted")
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
    """The circumstances of this run of study.py."""

    quick: bool = False  # leaves out long measurements
    peers: tuple[str, ...] = MPIS  # the installed ones


@dataclass(frozen=True)
class Study:
    """Runs with one summary. `special` measures beyond the runs, given their outcomes."""

    summary: str
    runs: tuple[Run, ...] = ()
    special: Callable[[Plan, list[Outcome]], Special] | None = None
