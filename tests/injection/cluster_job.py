"""A job that takes orders, whose ranks run on the hosts of an emulated cluster."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from job import BOUND, VENDORS, Job, Process

from hetcomm.emulate import Cluster, Host, Nic, Result, run

HERE = Path(__file__).parent
RATE = 1_000_000_000  # bits per second of the only NIC of a host
# The NICs of a host with more than one. So slow that messages of 8 KiB are divided among them.
SLOW, FAST = 100_000_000, 200_000_000
SEVERAL = (Nic(SLOW, SLOW), Nic(FAST, FAST), Nic(SLOW, SLOW))
FASTEST = "eth1"


def processes_of(folder: Path) -> dict[int, str]:
    """[process] -> its command line, of all processes that have the folder there."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(folder) in words and int(process.name) != os.getpid():
            found[int(process.name)] = b" ".join(words).decode()
    return found


class Foreign:
    """A process that another process started, with the interface of Popen that a Job needs."""

    returncode = None

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self.pid, self._end = pid, os.pidfd_open(pid)
        self.stdin: IO[str] = orders.makefile("w")
        self.stdout: IO[str] = orders.makefile("r")

    def _ended(self, seconds: float) -> bool:
        return bool(select.select([self._end], [], [], seconds)[0])

    def poll(self) -> int | None:
        """0 after the end; ClusterJob.codes() knows the exit code."""
        return 0 if self._ended(0) else None

    def wait(self, timeout: float = BOUND) -> int:
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"rank with process {self.pid}", timeout)
        return 0

    def send_signal(self, number: int) -> None:
        if not self._ended(0):
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        os.close(self._end)


class ClusterProcess(Process):
    def __init__(self, orders: socket.socket, log: Path) -> None:
        """Takes the connection."""
        shown = orders.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", shown)[0]
        self.log = log
        self.answers: queue.Queue[str] = queue.Queue()
        with orders:
            self.process: Any = Foreign(pid, orders)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        """A killed rank that has unread orders resets the connection."""
        try:
            super()._read()
        except ConnectionResetError:
            self.answers.put("")


class ClusterJob(Job):
    """hosts: the place of each rank as in "aab". vendors: the letter of each rank in VENDORS;
    ranks of one host have one vendor. nics: the number of NICs of each host, if any has several."""

    def __init__(self, folder: Path, hosts: str, vendors: str, environment: Mapping[str, str],
                 timeout: float = 60.0, nics: str = "") -> None:  # fmt: skip
        self.joins, self.folder = True, folder
        self.result: Result | None = None
        self.networks: dict[int, NetworkOf] = {}
        names = sorted(set(hosts))
        one = (Nic(RATE, RATE),)
        self.cluster = Cluster(
            tuple(
                Host(
                    name,
                    hosts.count(name),
                    SEVERAL[: int(nics[place])] if nics else one,
                    VENDORS[vendors[hosts.index(name)]],
                )
                for place, name in enumerate(names)
            ),
            order=tuple(hosts) if len(names) > 1 else "block",
        )
        self.runner = threading.Thread(
            target=self._run, args=(timeout, dict(environment)), daemon=True
        )
        found: dict[int, ClusterProcess] = {}
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(folder / "orders"))
                listener.listen(len(hosts))
                self.runner.start()
                for _ in hosts:
                    rank, orders = self._accept(listener)
                    found[rank] = ClusterProcess(orders, self.folder / f"rank-{rank}.log")
            self.ranks = [found[rank] for rank in range(len(hosts))]
        except BaseException:
            self.ranks = list(found.values())
            self.__exit__()
            raise

    def _accept(self, listener: socket.socket) -> tuple[int, socket.socket]:
        """The next rank that takes orders, and the connection to it."""
        listener.settimeout(1.0)
        until = time.monotonic() + BOUND
        while True:
            assert self.runner.is_alive(), "the cluster ended before all its ranks took orders"
            assert time.monotonic() < until, f"a rank takes no orders within {BOUND:g} s"
            with contextlib.suppress(TimeoutError):
                orders = listener.accept()[0]
                break
        try:
            orders.settimeout(BOUND)
            line = b""
            while not line.endswith(b"\n"):
                byte = orders.recv(1)
                assert byte, "a rank ended before it told its number"
                line += byte
            orders.settimeout(None)
            return int(line), orders
        except BaseException:
            orders.close()
            raise

    def _run(self, timeout: float, environment: dict[str, str]) -> None:
        program = [str(HERE / "cluster_rank.py"), str(self.folder / "orders"), str(self.folder)]
        self.result = run(
            self.cluster,
            [sys.executable, *program, str(timeout)],
            env=os.environ | environment,
            timeout=10 * BOUND,
            grace=4 * BOUND,
            stdout=self.folder,
        )

    def network(self, rank: int) -> NetworkOf:
        """Changes the network of the rank's host."""
        host = self.cluster.placement[rank]
        if host not in self.networks:
            self.networks[host] = NetworkOf(self[rank].process.pid)
        return self.networks[host]

    def codes(self) -> list[int | None]:
        """The exit codes, once all ranks have ended."""
        self.runner.join(BOUND)
        assert self.result is not None, "the emulated cluster did not end with its ranks"
        return list(self.result.exit_codes)

    def __exit__(self, *_: object) -> None:
        for network in self.networks.values():
            network.close()
        super().__exit__()
        for rank in self.ranks:
            rank.process.close()
        for number in processes_of(self.folder):  # ranks that took no orders
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if self.runner.ident is not None:
            self.runner.join(BOUND)


class NetworkOf:
    """The NICs of one emulated host; network_change.py lists the changes."""

    def __init__(self, pid: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(HERE / "network_change.py"), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._expect("ready")
        except BaseException:
            self.close()
            raise

    def change(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], BOUND)[0], "no answer"
        assert self.process.stdout.readline().strip() == word

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
