"""Gathers the facts of all ranks, and lets hosts connect with each other.

Every rank publishes its facts in the store. Rank 0 reads the facts, and publishes the links to try.
The first rank of each host tries its links and publishes the results.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from json import dumps, loads
from typing import Any

from hetcomm import _core, topo
from hetcomm.bounded_call import StoreTimeoutError
from hetcomm.doctor import limits, nics, reach, settings, versions, wire
from hetcomm.doctor.cluster import JobFacts, Link, Member, hosts_of
from hetcomm.rendezvous import Job, PrefixStore, job_of, open_store, seconds
from hetcomm.tune.links import rounds_of

PATIENCE = 10.0  # seconds that ranks wait longer than rank 0, which reports the missing ones


def gather(environment: Mapping[str, str], timeout: float) -> JobFacts | None:
    """The cluster of the job that `environment` describes; None on every rank but 0.

    timeout: seconds that rank 0 waits for other ranks. A rank that does not come is in `missing`.
    Raises InvalidArgumentError for a broken environment, and TimeoutError or TransportError on a
    rank that does not meet rank 0.
    """
    job = job_of(environment)
    if job is None:
        return JobFacts(1, [Member.of_report(0, report())], alone=True)
    begin = time.monotonic()
    store = PrefixStore(open_store(job, environment, timeout), "doctor/")
    listener = wire.listen()
    mine = report() | {"port": listener.getsockname()[1]}
    store.set(f"facts/{job.rank}", dumps(mine).encode())
    if job.rank != 0:
        try:
            plan = loads(store.get("plan", seconds(timeout + PATIENCE)))
        except StoreTimeoutError:
            raise
        except TimeoutError as error:
            raise _core.TimeoutError(
                f"rank 0 did not answer within {timeout + PATIENCE:g} s; see the output of rank 0, "
                "and give all ranks the same --timeout"
            ) from error
        speak(store, job.rank, plan, listener)
        return None
    reports, missing = topo.collect(store, "facts/", range(job.size), begin + timeout)
    waited = time.monotonic() - begin
    members = [Member.of_report(rank, reports[rank]) for rank in sorted(reports)]
    cluster = JobFacts(job.size, members, missing, seconds=waited)
    return _connect(store, job, cluster, reports, listener)


def report() -> dict[str, Any]:
    """The facts that this rank publishes."""
    facts = error = ""
    try:
        facts = topo.report()["facts"]
    except _core.Error as raised:
        error = str(raised)
    info = _core.parse_rank_info(facts) if facts else None
    checks: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    facts_of: dict[str, Callable[[], dict[str, Any]]] = {
        versions.NAME: lambda: versions.facts(info),
        nics.NAME: nics.facts,
        limits.NAME: limits.facts,
        settings.NAME: settings.facts,
        reach.NAME: reach.facts,
    }
    for name, find in facts_of.items():
        try:
            checks[name] = find()
        except (_core.Error, OSError, ValueError) as raised:
            failed[name] = str(raised)
    return {
        "host": _core.host_identity(),
        "host_name": info.host_name if info else socket.gethostname(),
        "facts": facts,
        "error": error,
        "checks": checks,
        "failed": failed,
    }


def _connect(
    store: PrefixStore,
    job: Job,
    cluster: JobFacts,
    reports: dict[int, dict[str, Any]],
    listener: socket.socket,
) -> JobFacts:
    """Publishes the plan, takes part in it, and reads the results."""
    hosts = hosts_of(cluster.members)
    speakers = [members[0].rank for members in hosts]
    links = reach.links_of(hosts, [reports[rank]["port"] for rank in speakers])
    pairs = Counter(frozenset((link.source, link.target)) for link in links)
    most = max(pairs.values(), default=0)
    every = rounds_of(len(hosts)) if len(hosts) > 1 else []
    rounds, slot = wire.plan_rates(every, most)
    links = reach.planned(links, rounds)
    plan = {
        "token": wire.new_token(),
        "speakers": speakers,
        "links": [asdict(link) for link in links],
        "rounds": rounds,
        "slot": slot,
    }
    store.set("plan", dumps(plan).encode())
    end = time.monotonic() + wire.BOUND + 2.0
    speak(store, job.rank, plan, listener)
    results, silent = topo.collect(store, "links/", speakers if len(hosts) > 1 else [], end)
    reasons = []
    if len(rounds) < len(every):
        reasons.append(f"rates were measured in {len(rounds)} of {len(every)} rounds of pairs")
    if silent:
        reasons.append(f"no results of connections came from ranks {silent}")
    unprobed = [members[0].rank for members in hosts if not any(each.info for each in members)]
    if unprobed and len(hosts) > 1:
        reasons.append(f"hosts of ranks {unprobed} took no part: their NICs are unknown")
    measured = [_with_results(i, link, speakers, results) for i, link in enumerate(links)]
    return replace(cluster, links=measured, unmeasured="; ".join(reasons))


def speak(store: PrefixStore, rank: int, plan: dict[str, Any], listener: socket.socket) -> None:
    """Tries the links of this host, if this rank speaks for the host of several."""
    speakers = plan["speakers"]
    if rank not in speakers or len(speakers) < 2:
        listener.close()
        return
    host = speakers.index(rank)
    speaker = wire.Speaker(listener, plan["token"], host, plan["links"])
    try:
        results = speaker.connect()
        store.set(f"connected/{rank}", dumps(True).encode())
        topo.collect(store, "connected/", speakers, time.monotonic() + wire.TURN)
        rates, reference = speaker.measure(plan["rounds"], plan["slot"])
    finally:
        speaker.close()
    found = {"out": results, "in": rates, "reference": reference}
    store.set(f"links/{rank}", dumps(found).encode())


def _with_results(
    number: int, link: Link, speakers: list[int], results: dict[int, dict[str, Any]]
) -> Link:
    nothing: dict[str, Any] = {"out": {}, "in": {}, "reference": None}
    source = results.get(speakers[link.source], nothing)
    target = results.get(speakers[link.target], nothing)
    found = source["out"].get(str(number), {"why": ""})
    references = [each["reference"] for each in (source, target) if each["reference"]]
    return replace(
        link,
        **found,
        rate=target["in"].get(str(number)),
        reference=min(references, default=None),
    )
