"""Runs in the virtual machine: jobs of forked ranks. Writes their findings as JSON into /run/job.

One process imports everything and forks the ranks of each job, because starting Python is what
takes time on an emulated processor.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/core"))

import numpy as np  # noqa: E402
from communicators import COLLECTIVES, Call, native_spec, random_spec  # noqa: E402
from scenarios import DEVICES, SCENARIOS, Scenario  # noqa: E402

from hetcomm import _core  # noqa: E402
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec  # noqa: E402

JOB = Path("/run/job")
VENDORS = {"n": "nvidia", "a": "amd"}
BOUND = 400.0  # seconds for a job; far above its usual time, so that a hang fails


class FolderStore(_core.Store):
    """A store of files, for processes of one machine."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def set(self, key: str, value: bytes) -> None:
        path = self.folder / key.replace("/", "%")
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(value)
        part.rename(path)

    def get(self, key: str, timeout: timedelta) -> bytes:
        path = self.folder / key.replace("/", "%")
        deadline = time.monotonic() + timeout.total_seconds()
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody has set {key}")
            time.sleep(0.01)
        return path.read_bytes()


def counters() -> dict[str, dict[str, int]]:
    """By device: the packets and bytes that it sent as RoCE; and all bytes of TCP."""
    lo = Path("/sys/class/net/lo/statistics/tx_bytes")
    found = {"lo": {"bytes": int(lo.read_text())}}
    for number in range(DEVICES):
        command = ["tc", "-s", "-j", "filter", "show", "dev", f"vr{number}", "egress"]
        filters = json.loads(subprocess.check_output(command, timeout=60))
        actions = [
            action for one in filters for action in one.get("options", {}).get("actions", [])
        ]
        packets = Path(f"/sys/class/infiniband/rxe{number}/ports/1/hw_counters/sent_pkts")
        found[f"rxe{number}"] = {
            "packets": int(packets.read_text()),
            "bytes": sum(action["stats"]["bytes"] for action in actions),
        }
    return found


def wires() -> list[dict[str, int]]:
    """The packets that each end of a wire passed and lost."""
    command = ["tc", "-s", "-j", "qdisc", "show", "dev"]
    found = []
    for number in (0, 1):
        shown = json.loads(subprocess.check_output([*command, f"vr{number}"], timeout=60))
        netem = next(entry for entry in shown if entry["kind"] == "netem")
        found.append({key: netem[key] for key in ("packets", "drops")})
    return found


def everything(communicator: Communicator, scenario: Scenario) -> None:
    """Every collective at random sizes, and one large call of each kind, in many packets."""
    rng = random.Random(scenario.name)  # the same calls on every rank
    any_spec = native_spec if scenario.vendors else random_spec
    for seed in range(scenario.rounds):
        for collective in COLLECTIVES:
            spec = any_spec(rng, communicator.size, collective.name)
            Call(communicator, spec, seed, rng.random() < 0.5).check()
    size = communicator.size
    for peer in range(size):  # messages, also between members of an island
        for other in range(size):
            if peer != other and communicator.rank in (peer, other):
                message(communicator, peer, other)


def message(communicator: Communicator, source: int, target: int) -> None:
    sent = np.arange(10_000, dtype=np.int32) + 100 * source + target
    if communicator.rank == source:
        communicator.send(sent, Dtype.int32, target, 7).wait(BOUND)
    else:
        got = np.zeros_like(sent)
        communicator.recv(got, Dtype.int32, source, 7).wait(BOUND)
        assert (got == sent).all(), f"message from {source} to {target}"


def exchange(communicator: Communicator, elements: int) -> None:
    """A message from every rank to every other rank."""
    rank, others = (
        communicator.rank,
        [r for r in range(communicator.size) if r != communicator.rank],
    )
    got = {peer: np.zeros(elements, np.float32) for peer in others}
    works = [communicator.recv(got[peer], Dtype.float32, peer, 8) for peer in others]
    for peer in others:
        sent = np.full(elements, 10 * rank + peer, np.float32)
        works.append(communicator.send(sent, Dtype.float32, peer, 8))
    for work in works:
        work.wait(BOUND)
    assert all((got[peer] == 10 * peer + rank).all() for peer in others)


def become(scenario: Scenario, rank: int) -> None:
    """Gives this process the environment of a rank of the scenario."""
    os.environ["HETCOMM_LOG_LEVEL"] = "info"
    os.environ["HETCOMM_HOST_ID"] = f"host-{scenario.hosts[rank]}"
    os.environ["HETCOMM_SOCKET_IFNAME"] = scenario.interfaces(rank)
    # This check of UCX rejects packets of soft-RoCE, which carry no destination.
    os.environ["UCX_UD_VERBS_ETH_DGID_CHECK"] = "n"
    # UCX resends connection requests ever more rarely; a starved machine would take minutes.
    os.environ["UCX_UD_TIMER_BACKOFF"] = "1.1"
    if scenario.vendors:
        vendor = VENDORS[scenario.vendors[rank]]
        library = str(ROOT / f"hetcomm/libhetcomm_emulated_{vendor}.so")
        names = ("CUDA", "NCCL") if vendor == "nvidia" else ("HIP", "RCCL")
        os.environ |= {f"HETCOMM_{name}_LIBRARY": library for name in names}
        os.environ |= {"HETCOMM_VENDOR": vendor, "HETCOMM_DEVICE": "0"}
        os.environ["HETCOMM_EMULATED_NETWORKS"] = "IB,Socket"
        os.environ["NCCL_HOSTID"] = scenario.hosts[rank]


def rank_of(scenario: Scenario, rank: int, store: FolderStore) -> dict[str, Any]:
    become(scenario, rank)
    size = len(scenario.hosts)
    began = time.monotonic()
    communicator = Communicator(store, rank, size, BOUND, scenario.name)
    made = time.monotonic()

    def meet() -> None:
        Call(communicator, Spec(Collective.barrier, Dtype.uint8, ReduceOp.sum), 0, True).check()

    def read_counters() -> None:
        meet()
        if rank == 0:
            traffic.append(counters())
        meet()

    everything(communicator, scenario)
    checked = time.monotonic()
    traffic: list[dict[str, dict[str, int]]] = []
    if scenario.elements:  # one large call, and little other traffic, between two readings
        read_counters()
        if scenario.two_networks:
            exchange(communicator, scenario.elements)
        else:
            big = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=scenario.elements)
            Call(communicator, big, 1, True).check()
        read_counters()
    found = {
        "paths": [communicator.path_to(peer) if peer != rank else "" for peer in range(size)],
        "traffic": traffic,
        "facts": _core.serialize(_core.probe_device(_core.probe_rank())),
        "explanations": _core.explain_nics(),
        "ucx": _core.ucx_version(),
        "seconds": {"set-up": made - began, "collectives": checked - made},
    }
    meet()
    communicator.leave()
    return found


def fork(program: Callable[[], Any], output: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        with (output.with_suffix(".log")).open("w") as log:
            os.dup2(log.fileno(), 2)
            faulthandler.dump_traceback_later(0.9 * BOUND, file=log)
            try:
                found = {"found": program()}
            except BaseException:
                found = {"error": traceback.format_exc()}
            output.write_text(json.dumps(found))
        _core.shut_down()
    finally:
        os._exit(0)


def run_job(scenario: Scenario) -> dict[str, Any]:
    """Forks the ranks, waits for them and collects their findings."""
    folder = Path("/run") / scenario.name
    folder.mkdir()
    store = FolderStore(folder)
    outputs = [folder / f"rank-{rank}.json" for rank in range(len(scenario.hosts))]
    for number in (0, 1) if scenario.netem else ():
        command = ["tc", "qdisc", "add", "dev", f"vr{number}", "root", "netem"]
        subprocess.run([*command, *scenario.netem.split()], check=True, timeout=60)
    children = [
        fork(lambda rank=rank: rank_of(scenario, rank, store), output)
        for rank, output in enumerate(outputs)
    ]
    waiting, deadline = set(children), time.monotonic() + BOUND
    while waiting and time.monotonic() < deadline:
        waiting -= {child for child in waiting if os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.05)
    for child in waiting:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    passed = wires() if scenario.netem else []
    for number in (0, 1) if scenario.netem else ():
        subprocess.run(["tc", "qdisc", "del", "dev", f"vr{number}", "root"], timeout=60)
    results = []
    for output in outputs:
        result = json.loads(output.read_text()) if output.exists() else {"error": "no answer"}
        log = output.with_suffix(".log")
        results.append({**result, "log": log.read_text() if log.exists() else ""})
    return {"ranks": results, "wires": passed}


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def main() -> None:
    for name in sys.argv[1:]:
        began = uptime()
        summary = run_job(SCENARIOS[name]) | {"from": began, "until": uptime()}
        (JOB / f"{name}.json").write_text(json.dumps(summary))


main()
