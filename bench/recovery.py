"""How long ranks take to notice a killed rank, and to go on without it.

    python bench/recovery.py              # 8 ranks: about 5 minutes
    python bench/recovery.py --quick      # a try: one kill of each kind

*Notice*: all ranks repeat all_reduce through the array API, and one rank gets SIGKILL. The figure
is the time until the last of the other ranks has raised. *Recovery*: ranks of two emulated vendors
repeat all_reduce through torch. Two of them die one after another, and the other ranks shrink the
group each time. The figures are the times until the last rank has raised, for shrink_group() alone,
and until an all_reduce of the smaller group is right on all ranks. Hosts differ by HETCOMM_HOST_ID,
on the loopback of one machine. Times count from the kill. The figures go to
bench/results/recovery.json, those of a try to build/studies.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import peers
from studies import provenance, running, stored
from studies.model import Verdict
from studies.recovery_blocks import KIND, STUDY

from hetcomm.emulate.vendors import library_environment
from hetcomm.rendezvous import free_port

TRIES = peers.ROOT / "build" / "studies"
BOUND = 180.0  # seconds of a job
SIZES = {"4 KiB": 1 << 10, "4 MiB": 1 << 20}  # elements
# By hosts: the most seconds until all others have raised.
NOTICE = {"aaaaaaaa": 0.3, "aaaabbbb": 1.0, "aabbccdd": 1.0}
MIXED, VENDORS = "aaaabbbb", {"a": "nvidia", "b": "amd"}
SHRINK, RECOVERY = 2.0, 3.0  # seconds
VICTIMS = (5, 2)  # one after another


def turn(all_reduce: Callable[[], float], expected: float) -> tuple[float, Any]:
    """Repeats all_reduce until one fails. Returns the time of the error, and the error."""
    turns = 0
    while True:
        try:
            total = all_reduce()
        except Exception as error:
            return time.monotonic(), error
        assert total == expected, f"expected {expected}, got {total}"
        turns += 1
        if turns == 3:
            tell("turning")


def tell(content: Any) -> None:
    print(json.dumps(content), flush=True)


def notice_rank(count: int) -> None:
    import numpy as np

    import hetcomm

    comm = hetcomm.Communicator.from_env()
    data = np.empty(count, np.float32)

    def all_reduce() -> float:
        data.fill(1.0)
        comm.all_reduce(data, data)
        return float(data[-1])

    raised, error = turn(all_reduce, comm.size)
    tell({"raised": raised, "peer": error.peer})


def recovery_rank(count: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    import hetcomm  # noqa: F401

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group("hetcomm", store=store, rank=rank, world_size=size)

    def all_reduce() -> float:
        data = torch.ones(count)
        dist.all_reduce(data)
        return data[-1].item()

    for _ in VICTIMS:
        raised, error = turn(all_reduce, dist.get_world_size())
        dist.shrink_group([error.peer], shrink_flags=c10d.SHRINK_ABORT)
        shrunk = time.monotonic()
        right = all_reduce() == dist.get_world_size()
        over = time.monotonic() if right else float("inf")
        tell({"raised": raised, "shrunk": shrunk, "right": over, "peer": error.peer})


class Job:
    """Ranks on hosts as in "aab", by host. Ends what is left of them on exit."""

    def __init__(self, what: str, hosts: str, count: int, port: int, vendors: bool) -> None:
        self.processes = []
        for rank, host in enumerate(hosts):
            variables = {
                "HETCOMM_HOST_ID": host,
                "HETCOMM_SOCKET_IFNAME": "lo",
                "HETCOMM_LOG_LEVEL": "error",
                "OMP_NUM_THREADS": "1",
                "PYTHONWARNINGS": "ignore",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                "RANK": str(rank),
                "LOCAL_RANK": str(hosts[:rank].count(host)),
                "WORLD_SIZE": str(len(hosts)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            if vendors:
                variables |= library_environment(VENDORS[host])
                variables |= {"HETCOMM_VENDOR": VENDORS[host]}
                variables |= {"HETCOMM_DEVICE": variables["LOCAL_RANK"]}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", __file__, "--rank", what, str(count)],
                    env=running.environment(variables),
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        self.alarm = threading.Timer(BOUND, self.end)
        self.alarm.start()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.alarm.cancel()
        self.end()
        for process in self.processes:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def end(self) -> None:
        for process in self.processes:
            process.kill()

    def answers(self, ranks: Iterable[int]) -> list[Any]:
        """The next line of each rank."""
        found = []
        for rank in ranks:
            output = self.processes[rank].stdout
            assert output is not None
            line = output.readline()
            if not line:
                raise SystemExit(f"recovery: rank {rank} ended, or took more than {BOUND:g} s")
            found.append(json.loads(line))
        return found

    def kill(self, rank: int) -> float:
        """The time of the kill, amid all_reduces."""
        time.sleep(0.2)
        at = time.monotonic()
        self.processes[rank].send_signal(signal.SIGKILL)
        return at


def check_peers(answers: list[Any], victim: int) -> None:
    if any(answer["peer"] != victim for answer in answers):
        raise SystemExit(f"recovery: expected errors that name rank {victim}, got {answers}")


def notice(hosts: str, count: int, victim: int) -> float:
    """Seconds from a kill until all other ranks have raised."""
    with Job("notice", hosts, count, free_port(), vendors=False) as job:
        job.answers(range(len(hosts)))
        others = [rank for rank in range(len(hosts)) if rank != victim]
        at = job.kill(victim)
        answers = job.answers(others)
    check_peers(answers, victim)
    return max(answer["raised"] for answer in answers) - at


def recoveries(count: int) -> list[dict[str, float]]:
    """For each of VICTIMS the seconds of each stage."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found, alive = [], list(range(len(MIXED)))
    with Job("recovery", MIXED, count, store.port, vendors=True) as job:
        for victim in VICTIMS:
            job.answers(alive)
            number = alive.index(victim)  # in the present group
            alive.remove(victim)
            at = job.kill(victim)
            answers = job.answers(alive)
            check_peers(answers, number)
            stages = ("raised", "shrunk", "right")
            ends = {stage: max(answer[stage] for answer in answers) - at for stage in stages}
            longest = max(answer["shrunk"] - answer["raised"] for answer in answers)
            found.append({**ends, "shrink": longest})
    return found


def conduct(kills: int, words: list[str]) -> stored.Result:
    facts = provenance.of_this_run(words, ())
    share = facts["machine"]["busy"]
    if share > provenance.MUCH:
        print(f"other work takes {share:.0%} of the processors")
    start = time.monotonic()
    quick = " --quick" if "--quick" in words else ""
    result = stored.Result(STUDY, f"python bench/recovery.py{quick}", facts)
    for hosts, bound in NOTICE.items():
        where = f"8 ranks on {len(set(hosts))} host{'s' if len(set(hosts)) > 1 else ''}"
        for size, count in SIZES.items():
            seconds = [notice(hosts, count, 1 + kill % 7) for kill in range(kills)]
            judge(result, where, f"all others raise, amid all_reduces of {size}", seconds, bound)
    found = [recoveries(SIZES["4 MiB"]) for _ in range(kills)]
    for number, nth in enumerate(("first", "second")):
        for stage, what, bound in (
            ("raised", "all others raise", NOTICE[MIXED]),
            ("shrink", "shrink_group() alone", SHRINK),
            ("right", "an all_reduce of the others is right", RECOVERY),
        ):
            seconds = [each[number][stage] for each in found]
            where = "8 ranks on 2 hosts of two vendors"
            judge(result, where, f"{nth} death: {what}", seconds, bound)
    facts["seconds"] = round(time.monotonic() - start, 1)
    return result


def judge(result: stored.Result, where: str, what: str, seconds: list[float], bound: float) -> None:
    """Adds the worst of some measurements beside its bound, and the median."""
    worst, middle = max(seconds), statistics.median(seconds)
    print(f"{where}, {what}: median {middle:.3f} s, worst {worst:.3f} s of {len(seconds)}, "
          f"target {bound:g} s", flush=True)  # fmt: skip
    count = f"worst of {len(seconds)}"
    found = Verdict(
        KIND, where, what, worst, count, bound, worst / bound, f"<= {bound:g} s", worst <= bound
    )
    result.verdicts.append(found)
    result.bars[found.case] = middle


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one kill of each kind")
    parser.add_argument("--kills", type=int, default=7, help="of each kind")
    parser.add_argument("--output", type=Path, help="another folder")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.rank:
        what, count = given.rank
        return {"notice": notice_rank, "recovery": recovery_rank}[what](int(count))
    folder = given.output or (TRIES if given.quick else stored.FOLDER)
    folder.mkdir(exist_ok=True, parents=True)
    provenance.check_build(peers.ROOT)
    conduct(1 if given.quick else given.kills, words).write(folder)
    print(f"Written: {os.path.relpath(folder)}/{STUDY}.json")
    return None


if __name__ == "__main__":
    # SystemExit also ends the started ranks.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main(sys.argv[1:])
