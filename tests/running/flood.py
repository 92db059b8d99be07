"""A flood of strangers: so many connections a second, silent or with garbage, for a while.

    python flood.py RATE SECONDS PORT...
    python flood.py RATE SECONDS --of PROCESS... [--except FIRST-LAST]

With processes, their listening ports are looked up again and again. Prints a line once the first
connections are there, and their number at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

KEPT = 4000  # open connections at most
LOOK = 0.05  # seconds between two looks for new ports
WARM = 0.5  # seconds of flood before the line
CONTENTS = [b"", b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", random.Random(1).randbytes(1024)]


def ports_of(processes: Sequence[int]) -> set[int]:
    """The TCP ports at which the processes listen."""
    inodes = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for each in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(each))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == "0A" and f"socket:[{row[9]}]" in inodes
    }


def flood(rate: float, seconds: float, ports: list[int], processes: Sequence[int],
          spared: range) -> int:  # fmt: skip
    """The number of connections."""
    kept: deque[socket.socket] = deque()
    number, told, looked = 0, False, 0.0
    begin = time.monotonic()
    while (now := time.monotonic()) - begin < seconds:
        if processes and now - looked > LOOK:
            looked = now
            ports = sorted(ports_of(processes) - set(spared))
        if not told and now - begin > WARM:
            told = True
            print("flooding", flush=True)
        if not ports or number >= (now - begin) * rate:
            time.sleep(0.001)
            continue
        number += 1
        stranger = socket.socket()
        stranger.setblocking(False)
        kept.append(stranger)
        with contextlib.suppress(OSError):
            stranger.connect_ex(("127.0.0.1", ports[number % len(ports)]))
            if content := CONTENTS[number // len(ports) % len(CONTENTS)]:
                stranger.send(content)
        if len(kept) > KEPT:
            kept.popleft().close()
    return number


@contextlib.contextmanager
def flooding(rate: float, seconds: float, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A process that floods, once it has begun."""
    command = [sys.executable, "-P", __file__, str(rate), str(seconds), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "flooding\n"
            yield process
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("ports", type=int, nargs="*")
    parser.add_argument("--of", type=int, nargs="+", default=[])
    parser.add_argument("--except", dest="spared", default="0-0")
    options = parser.parse_args()
    first, last = map(int, options.spared.split("-"))
    spared = range(first, last + 1)
    print(flood(options.rate, options.seconds, options.ports, options.of, spared))


if __name__ == "__main__":
    main()
