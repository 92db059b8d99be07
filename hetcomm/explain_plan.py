"""The content of `hetcomm explain`: candidates, predicted costs and the chosen plan."""

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from hetcomm import _core
from hetcomm.bench.case import KINDS
from hetcomm.topo_page import MOST_SHOWN, describe_zones


@dataclass(frozen=True)
class Candidate:
    """One algorithm. rejected: the reason, empty if it applies. Times in predicted ns."""

    algorithm: str
    summary: str
    rejected: str
    total: int = 0
    island: int = 0
    staging: int = 0
    bridge: int = 0
    bridge_bytes: int = 0


# Steps that encode or decode.
CODED = ("encode", "decode", "decode_reduce")


@dataclass
class Leg:
    """Steps of one rank with the same action on different elements. start, end, busy: ns."""

    what: str
    moves: str  # "output -> scratch"
    steps: int
    peers: int  # of messages; else 0
    bytes: int
    start: int
    end: int
    busy: int


@dataclass(frozen=True)
class Saving:
    """What a codec changes, for the choice with it and the choice without. bytes: sent by the
    busiest host to others, or by all ranks of the only host between islands. total: predicted ns.
    error_bound: for people."""

    codec: str
    plain_bytes: int
    bytes: int
    plain_total: int
    total: int
    error_bound: str


@dataclass(frozen=True)
class Explanation:
    """What `hetcomm explain` shows of one spec.

    legs, scratch: by requested rank. scratch: bytes of scratch and pinned staging of the plan.
    saving: of the codec, or of the codec that `auto` did not take; else None. unused: why the codec
    encodes nothing; "" if the codec encodes, or none was asked for. coders: the ranks that encode
    or decode, by where they do. replayed: whether the plans of all ranks were replayed. Beyond 32
    ranks some of each kind stand for all, and legs have no start and end.
    """

    topology: _core.Topology
    spec: _core.Spec
    choice: str
    why: str
    codec: str
    saving: Saving | None
    unused: str
    candidates: list[Candidate]
    legs: dict[int, list[Leg]]
    scratch: dict[int, int]
    coders: dict[str, list[int]]
    replayed: bool


def planner_of(topology: _core.Topology, profile: _core.Profile | None = None) -> _core.Planner:
    """The planner of a communicator in this environment. profile: HETCOMM_PROFILE if None."""
    selection = _core.SelectionTable(os.environ.get("HETCOMM_SELECT", ""))
    codec = _core.bridge_codec()
    if _core.deterministic():
        return _core.Planner(topology.without_speeds(), selection, codec=codec)
    speeds = _core.CostParameters(profile or _core.Profile.setting())
    return _core.Planner(topology, selection, speeds, codec)


def explanation(
    topology: _core.Topology,
    spec: _core.Spec,
    ranks: Iterable[int],
    profile: _core.Profile | None = None,
) -> Explanation:
    """Prices every algorithm that applies and folds the chosen plan of `ranks` into legs. profile:
    HETCOMM_PROFILE if None."""
    profile = profile or _core.Profile.setting()
    parameters, planner = _core.CostParameters(profile), planner_of(topology, profile)
    choice = planner.choose(spec)
    candidates = []
    for candidate in choice.candidates:
        algorithm = candidate.algorithm
        if candidate.rejected:
            candidates.append(Candidate(algorithm.name, algorithm.summary, candidate.rejected))
            continue
        cost = planner.cost(spec, algorithm.name)
        numbers = (cost.total, cost.island, cost.staging, cost.bridge, cost.bridge_bytes)
        candidates.append(Candidate(algorithm.name, algorithm.summary, "", *numbers))
    encoding = planner.replays or choice.codec != "none"
    priced = planner.representatives(spec) if encoding else []
    plans = {rank: planner.plan(spec, rank) for rank in sorted({*priced, *ranks})}
    spans = _core.timeline(topology, list(plans.values()), parameters) if planner.replays else None

    def spans_of(rank: int) -> list[tuple[int, int]]:
        if spans is not None:
            return spans[rank]
        return [(0, time) for time in _core.step_times(topology, plans[rank], parameters)]

    legs = {rank: fold(plans[rank], spans_of(rank)) for rank in ranks}
    scratch = {rank: plans[rank].scratch_bytes + plans[rank].staging_bytes for rank in legs}
    encodes = any(step.kind.name == "encode" for plan in plans.values() for step in plan.steps)
    return Explanation(
        topology,
        spec,
        choice.algorithm.name,
        choice.why,
        choice.codec if encodes else "none",
        *_saving(planner, spec),
        candidates,
        legs,
        scratch,
        _coders(topology, list(plans.values())),
        planner.replays,
    )


def _saving(planner: _core.Planner, spec: _core.Spec) -> tuple[Saving | None, str]:
    topology = planner.topology
    asked = planner.codec_of(spec)
    tried = "lossless" if asked == "auto" else asked
    if tried == "none":
        return None, _named_for_hosts(topology, spec)
    both = (spec.with_codec("none"), spec.with_codec(tried) if asked == "auto" else spec)
    try:
        plain, encoded = map(planner.cost, both)
    except _core.InvalidArgumentError as error:  # the dtype may have no such codec
        return None, "" if asked == "auto" else str(error)
    sent = [plain.bridge_bytes, encoded.bridge_bytes]
    if len(topology.hosts) == 1:
        sent = [_bytes_of_messages(planner.plan_all(each)) for each in both]
    if sent[0] == sent[1]:
        why = (
            "all ranks are one island, whose native library moves everything; give hosts islands "
            "of their own by HETCOMM_ISLAND"
            if len(topology.islands) == 1
            else f"no message of 16 KiB or more between {_ends(topology)} can have the codec"
        )
        return None, "" if asked == "auto" else f"codec {tried} encodes nothing: {why}"
    bound = _core.codec_error_bound(tried)
    return Saving(tried, sent[0], sent[1], plain.total, encoded.total, bound), ""


def _ends(topology: _core.Topology) -> str:
    """Between what messages may have a codec."""
    return "hosts" if len(topology.hosts) > 1 else "islands"


def _named_for_hosts(topology: _core.Topology, spec: _core.Spec) -> str:
    """Why a lossy codec encodes nothing that was named for messages between hosts."""
    named = _core.bridge_codec() if spec.codec == "group" else spec.codec
    if len(topology.hosts) > 1 or _core.is_lossless(named):
        return ""
    return (
        f"codec {named} encodes nothing: all ranks are on one host; name a codec of that level, as "
        "in cluster=none,host=int8"
    )


def _bytes_of_messages(plans: list[_core.Plan]) -> int:
    sends = (step for plan in plans for step in plan.steps if step.kind.name == "send")
    return sum(step.sources[0].message_bytes for step in sends)


def _coders(topology: _core.Topology, plans: list[_core.Plan]) -> dict[str, list[int]]:
    """The ranks that encode or decode, by where they do."""
    found: dict[str, list[int]] = {}
    for plan in plans:
        coded = [step for step in plan.steps if step.kind.name in CODED]
        if not coded:
            continue
        info, places = topology.rank(plan.rank), [coded[0].target, *coded[0].sources]
        if info.memory == _core.Memory.host:
            where = "on the host"
        elif any(place.space == _core.Space.staging for place in places):
            why = info.libraries.get("kernels") or "the device runs no kernels"
            where = f"on the host, in staging ({why})"
        else:
            where = "on the device"
        found.setdefault(where, []).append(plan.rank)
    return found


def fold(plan: _core.Plan, spans: list[tuple[int, int]]) -> list[Leg]:
    """Folds steps of one kind, with one peer, between the same buffers into one leg. Messages with
    many peers are one leg, too. Legs are in the order of their first steps."""
    outlines = [_outline(step) for step in plan.steps]
    peers: dict[tuple[str, str], set[int]] = {}
    for step, (what, moves, _) in zip(plan.steps, outlines, strict=True):
        peers.setdefault((what, moves), set()).add(step.peer)
    legs: dict[tuple[str, str], Leg] = {}
    for step, (what, moves, size), (start, end) in zip(plan.steps, outlines, spans, strict=True):
        number = 0
        if step.kind.name in ("send", "recv"):
            number = len(peers[what, moves])
            several = number > MOST_SHOWN
            what += f" {number} ranks" if several else f" rank {step.peer}"
            number = number if several else 1
        leg = legs.setdefault((what, moves), Leg(what, moves, 0, number, 0, start, end, 0))
        leg.steps += 1
        leg.bytes += size
        leg.start, leg.end = min(leg.start, start), max(leg.end, end)
        leg.busy += end - start
    return list(legs.values())


def _outline(step: _core.Step) -> tuple[str, str, int]:
    """Action without the peer, buffers and bytes of a step. Encoded messages have the bytes that
    are expected."""

    def spaces(ranges: Iterable[_core.Range]) -> str:
        return " + ".join(dict.fromkeys(each.space.name for each in ranges))

    def encoded(data: _core.Range) -> str:
        return "" if data.codec == "none" else f" {data.codec}"

    kind = step.kind.name
    if kind == "send":
        sent = step.sources[0]
        return f"send{encoded(sent)} to", sent.space.name, sent.message_bytes
    if kind == "recv":
        received = step.target
        what, moves = f"recv{encoded(received)} from", f"-> {received.space.name}"
        return what, moves, received.message_bytes
    if kind.startswith("island_") and not step.pieces:
        return kind, "no elements of this rank", 0
    if step.pieces:
        moves = (
            f"{spaces(piece.source for piece in step.pieces)} -> "
            f"{spaces(piece.target for piece in step.pieces)}"
        )
        return kind, moves, sum(piece.source.bytes for piece in step.pieces)
    if kind in ("reduce", "decode_reduce"):
        kind += f" {len(step.sources)} sources"
    size = step.target.count * step.target.dtype.size
    if kind == "copy":
        kind, size = kind + encoded(step.target), step.target.bytes
    return kind, f"{spaces(step.sources)} -> {step.target.space.name}", size


def describe(found: Explanation) -> dict[str, Any]:
    """The same facts for programs; times in ns."""
    spec = found.spec
    kind = KINDS[spec.collective.name]
    return {
        "spec": {
            "collective": spec.collective.name,
            "dtype": spec.dtype.name,
            "op": spec.op.name if kind.reduces else None,
            "root": spec.root if kind.rooted else None,
            "count": spec.count,
        },
        "islands": found.topology.islands,
        "hosts": [
            {"ranks": ranks, "bandwidth": found.topology.host_bandwidth(host)}
            for host, ranks in enumerate(found.topology.hosts)
        ],
        "zones": describe_zones(found.topology),
        "choice": {"algorithm": found.choice, "why": found.why, "codec": found.codec},
        "replayed": found.replayed,
        "unused": found.unused,
        "saving": asdict(found.saving) if found.saving else None,
        "coders": [{"where": where, "ranks": ranks} for where, ranks in found.coders.items()],
        "candidates": [asdict(candidate) for candidate in found.candidates],
        "plans": [
            {
                "rank": rank,
                "scratch": found.scratch[rank],
                "legs": [_fields(leg, found.replayed) for leg in legs],
            }
            for rank, legs in found.legs.items()
        ],
    }


def _fields(leg: Leg, replayed: bool) -> dict[str, Any]:
    unknown = {} if replayed else {"start": None, "end": None}
    return asdict(leg) | unknown
