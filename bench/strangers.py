"""What strangers cost a job: training steps with and without a flood, in turns.

    python bench/strangers.py

Two ranks on two hosts (by HETCOMM_HOST_ID) repeat a step: products of matrices, and an all_reduce
of 1 MiB. In each block of steps 1,000 silent connections stay open, and new ones bring garbage,
`--rate` in a second. Blocks alternate: in flooded blocks the strangers connect to hetcomm's ports,
in quiet ones to listeners of nobody. So the processors have the strangers' own work in both. The
result is the median over pairs of blocks of the flooded time beside the quiet time, with its
quartiles. UCX has ports of its own here, and these are left out, because UCX does not bound
strangers.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import hetcomm
from hetcomm.rendezvous import free_port
from hetcomm.timing import seconds_of

SILENT = 1000
STEPS = 40
BOUND = 60.0  # seconds for the end of the processes
SETTLE = 0.1  # seconds in which the ranks close connections that have ended
UCX_PORTS = range(34_000, 36_000)
HOST = "127.0.0.1"


def rank() -> None:
    """A block of steps for each line of rank 0's input. Rank 0 prints the seconds of a step."""
    weights = np.ones((192, 192), np.float32)
    gradient = np.ones(1 << 18, np.float32)
    more = np.ones(1, np.int32)
    with hetcomm.Communicator.from_env() as comm:

        def step() -> None:
            for _ in range(4):
                weights @ weights
            comm.all_reduce(gradient, gradient, op="max")

        seconds_of(step, STEPS)
        if comm.rank == 0:
            print("ready", flush=True)
        while True:
            more[0] = comm.rank != 0 or bool(sys.stdin.readline())
            comm.all_reduce(more, more, op="min")
            if not more[0]:
                return
            seconds = seconds_of(step, STEPS) / STEPS
            if comm.rank == 0:
                print(seconds, flush=True)


def flood(rate: float) -> None:
    """Floods the ports in a line of input until the next line. Answers the first line once the
    silent strangers are there, and the second with the number of connections with garbage."""
    contents = [b"", b"\0", random.Random(1).randbytes(16384), b"GET / HTTP/1.1\r\n\r\n"]
    while ports := list(map(int, sys.stdin.readline().split())):
        silent = [socket.create_connection((HOST, ports[n % len(ports)])) for n in range(SILENT)]
        print("open", flush=True)
        begin = time.monotonic()
        for number in itertools.count():
            pause = max(0.0, begin + number / rate - time.monotonic())
            if select.select([sys.stdin], [], [], pause)[0]:
                sys.stdin.readline()
                break
            to = HOST, ports[number % len(ports)]
            with contextlib.suppress(OSError), socket.create_connection(to, 1.0) as stranger:
                stranger.sendall(contents[number % len(contents)])
        for stranger in silent:
            stranger.close()
        print(number, flush=True)


def ports_of(process: subprocess.Popen[str]) -> list[int]:
    """The ports at which a process listens, without those of UCX."""
    inodes = {os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()}
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    found = []
    for row in rows:
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
            found.append(int(row[1].rpartition(":")[2], 16))
    return sorted(set(found) - set(UCX_PORTS))


def ask(process: subprocess.Popen[str], *words: object) -> str:
    """Gives a line of input to a process, and returns its answer."""
    assert process.stdin is not None
    process.stdin.write(" ".join(map(str, words)) + "\n")
    process.stdin.flush()
    return answer_of(process)


def answer_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("strangers: a process ended; its error is above")
    return line


class Measurement:
    """Blocks of steps. `most`: the most descriptors of a rank, quiet and flooded. `sent`: the
    connections with garbage to ranks."""

    def __init__(self, ranks: list[subprocess.Popen[str]], flooder: subprocess.Popen[str]) -> None:
        self.ranks, self.flooder = ranks, flooder
        self.ports = [port for process in ranks for port in ports_of(process)]
        self.most = {False: 0, True: 0}
        self.sent = 0

    def block(self, flooded: bool) -> float:
        """Seconds of a step."""
        with contextlib.ExitStack() as listening:
            ports = self.ports
            if not flooded:
                servers = [socket.create_server((HOST, 0), backlog=4 * SILENT) for _ in ports]
                ports = [listening.enter_context(each).getsockname()[1] for each in servers]
            ask(self.flooder, *ports)
            over = threading.Event()
            watch = threading.Thread(target=self.count, args=(over, flooded))
            watch.start()
            seconds = float(ask(self.ranks[0]))
            over.set()
            watch.join()
            self.sent += int(ask(self.flooder)) * flooded
        time.sleep(SETTLE)
        return seconds

    def count(self, over: threading.Event, flooded: bool) -> None:
        while True:
            held = max(len(os.listdir(f"/proc/{process.pid}/fd")) for process in self.ranks)
            self.most[flooded] = max(self.most[flooded], held)
            if over.wait(0.05):
                return


def start(words: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", __file__, *words],
        env=os.environ | more,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def start_rank(number: int, port: int) -> subprocess.Popen[str]:
    variables = {"RANK": str(number), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": HOST}
    variables |= {"MASTER_PORT": str(port), "HETCOMM_HOST_ID": f"host-{number}"}
    variables |= {"UCX_TCP_PORT_RANGE": f"{UCX_PORTS.start}-{UCX_PORTS.stop - 1}"}
    variables |= {"HETCOMM_SOCKET_IFNAME": "lo", "HETCOMM_LOG_LEVEL": "error"}
    return start([], variables | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})


def measure(pairs: int, rate: float) -> None:
    port = free_port()
    ranks = [start_rank(number, port) for number in range(2)]
    processes = list(ranks)
    try:
        answer_of(ranks[0])
        processes.append(start(["--flood", str(rate)], {}))
        measurement = Measurement(ranks, processes[-1])
        quiet, ratios = [], []
        for pair in range(pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            seconds = {flooded: measurement.block(flooded) for flooded in order}
            quiet.append(seconds[False])
            ratios.append(seconds[True] / seconds[False])
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        if any(process.wait(BOUND) != 0 for process in processes):
            raise SystemExit("strangers: a process failed; its error is above")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    low, middle, high = (100 * (each - 1) for each in statistics.quantiles(ratios, n=4))
    most = measurement.most
    print(f"{len(measurement.ports)} ports, {pairs} pairs, {measurement.sent} with garbage")
    print(f"a quiet step: {statistics.median(quiet) * 1e3:.2f} ms")
    print(f"flooded: {middle:+.1f} %, quartiles {low:+.1f} % and {high:+.1f} %")
    print(f"most descriptors of a rank: {most[False]} quiet, {most[True]} flooded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--rate", type=float, default=200.0, help="garbage connections a second")
    parser.add_argument("--flood", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        return flood(options.flood)
    if "RANK" in os.environ:
        return rank()
    print(f"load {os.getloadavg()[0]:.2f}, {os.cpu_count()} processors")
    return measure(options.pairs, options.rate)


if __name__ == "__main__":
    main()
