"""A job whose ranks are processes that take orders from the test."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import abilities
import pytest
from ports import free_port
from preloaded import Preloaded

import hetcomm

RANK = Path(__file__).with_name("rank.py")
BOUND = 240.0  # seconds; far above the time of any test, so that a hang fails
NOTICE = 10.0  # seconds in which all ranks must have noticed a dead rank

VENDORS = {"n": "nvidia", "a": "amd", "c": "cpu"}


def emulated(vendor: str) -> str:
    """The file of both libraries of an emulated vendor."""
    return str(Path(hetcomm.__file__).parent / f"libhetcomm_emulated_{vendor}.so")


def vendor_environment(vendor: str, device: int) -> dict[str, str]:
    return {
        "HETCOMM_VENDOR": vendor,
        "HETCOMM_DEVICE": str(device),
        "HETCOMM_CUDA_LIBRARY": emulated("nvidia"),
        "HETCOMM_NCCL_LIBRARY": emulated("nvidia"),
        "HETCOMM_HIP_LIBRARY": emulated("amd"),
        "HETCOMM_RCCL_LIBRARY": emulated("amd"),
    }


def kind_of(request: pytest.FixtureRequest) -> str:
    """The kind of ranks that a parameter of a fixture names. Skips the test without torch."""
    if request.param == "torch":
        abilities.need("torch")
    return str(request.param)


def subfolder(folder: Path) -> Path:
    """A new folder, for one of several jobs of a test."""
    return Path(tempfile.mkdtemp(dir=folder))


class Process:
    """One rank; rank.py lists its orders."""

    def __init__(
        self,
        kind: str,
        arguments: Iterable[object],
        host: str,
        log: Path,
        more: Mapping[str, str],
    ) -> None:
        environment = (
            os.environ
            | {"HETCOMM_HOST_ID": host, "HETCOMM_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            | more
        )
        self.log = log
        words = [kind, *map(str, arguments)]
        self.process: subprocess.Popen[str] | Preloaded
        with log.open("w") as stderr:
            if kind == "torch" and "LD_PRELOAD" not in more:
                self.process = Preloaded(RANK, words, environment, stderr)
            else:
                self.process = subprocess.Popen(
                    [sys.executable, str(RANK), *words],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    text=True,
                )
        self.answers: queue.Queue[str] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("")

    def tell(self, method: str, *arguments: object) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(self.why_ended()) from None

    def answer(self, bound: float = BOUND) -> dict[str, Any]:
        """The next answer, a value or an error. Fails if the process ends or takes too long."""
        try:
            line = self.answers.get(timeout=bound)
        except queue.Empty:
            raise AssertionError(f"no answer within {bound} s; {self.log.read_text()}") from None
        assert line, self.why_ended()
        found: dict[str, Any] = json.loads(line)
        return found

    def why_ended(self) -> str:
        return f"the process ended: {self.process.wait(BOUND)}; {self.log.read_text()}"

    def value(self, bound: float = BOUND) -> Any:
        found = self.answer(bound)
        assert "value" in found, found
        return found["value"]

    def error(self, bound: float = BOUND) -> dict[str, Any]:
        found = self.answer(bound)
        assert "error" in found, found
        return found

    def do(self, method: str, *arguments: object) -> Any:
        self.tell(method, *arguments)
        return self.value()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(BOUND)

    def exits_cleanly(self) -> None:
        """Orders the rank to end. It must end at once, with code 0 and without a complaint in its
        log."""
        assert self.do("exit") == "exiting"
        self.ended_cleanly()

    def ended_cleanly(self) -> None:
        assert self.process.wait(BOUND) == 0, self.log.read_text()
        log = self.log.read_text()
        assert "Traceback" not in log and "terminate called" not in log, log


class Job:
    """Ranks on hosts as in "aab"; ends what is left of them on exit.

    vendors: of each rank, letters of VENDORS; without it all are the CPU's.
    settings: more environment variables, by rank.
    joins: False where the group cannot come about: every rank then has an error to tell.
    """

    def __init__(
        self,
        folder: Path,
        hosts: str,
        kind: str = "core",
        timeout: float = 60.0,
        store_on_rank_0: bool = False,
        vendors: str = "",
        settings: Mapping[int, Mapping[str, str]] | None = None,
        joins: bool = True,
    ) -> None:
        port = free_port() if store_on_rank_0 else 0
        self.joins = joins
        self.begin = time.monotonic()
        self.ranks = [
            Process(
                kind,
                (folder, rank, len(hosts), timeout, port),
                host,
                folder / f"rank{rank}.log",
                (vendor_environment(VENDORS[vendors[rank]], rank) if vendors else {})
                | (settings or {}).get(rank, {}),
            )
            for rank, host in enumerate(hosts)
        ]

    def __enter__(self) -> Job:
        if not self.joins:
            return self
        try:
            assert self.values() == ["joined"] * len(self.ranks)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()
            rank.reader.join(BOUND)
            for stream in (rank.process.stdin, rank.process.stdout):
                assert stream is not None
                stream.close()

    def __getitem__(self, rank: int) -> Process:
        return self.ranks[rank]

    def others(self, rank: int) -> list[Process]:
        return [other for other in self.ranks if other is not self.ranks[rank]]

    def tell(self, method: str, *arguments: object) -> None:
        for rank in self.ranks:
            rank.tell(method, *arguments)

    def values(self) -> list[Any]:
        return [rank.value() for rank in self.ranks]

    def do(self, method: str, *arguments: object) -> list[Any]:
        self.tell(method, *arguments)
        return self.values()

    def codes(self) -> list[int | None]:
        """The exit codes so far."""
        return [rank.process.poll() for rank in self.ranks]


def listening_ports(process: Process) -> list[int]:
    """The TCP ports on which a process listens, from /proc."""
    inodes = {
        target[len("socket:[") : -1]
        for descriptor in Path(f"/proc/{process.process.pid}/fd").iterdir()
        if (target := str(descriptor.readlink())).startswith("socket:[")
    }
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def cpu_seconds(rank: Process) -> float:
    """The processor time of the process so far."""
    fields = Path(f"/proc/{rank.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def errors_within(ranks: Iterable[Process], bound: float) -> list[dict[str, Any]]:
    """The error of every rank, within `bound` seconds from now."""
    deadline = time.monotonic() + bound
    return [rank.error(max(0.0, deadline - time.monotonic())) for rank in ranks]


def assert_first_cause_stays(ranks: Iterable[Process], first: list[dict[str, Any]]) -> None:
    """Another operation fails at once, with the cause of the first failure."""
    for rank, earlier in zip(ranks, first, strict=True):
        rank.tell("all_reduce", 16)
        again = rank.error()
        assert (again["error"], again["peer"]) == (earlier["error"], earlier["peer"])
        assert again["text"] == earlier["text"]
