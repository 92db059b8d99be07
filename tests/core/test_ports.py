"""Machines whose connections have taken all ports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_abilities import WITH_OWN_PORTS

HERE = Path(__file__).parent
FIRST, LAST = 40000, 40005
# `program HOSTS FREE FOLDER ...`: two ranks join on these hosts while all ports but FREE are taken.
PROGRAM = """
import errno, socket, sys
hosts, free = sys.argv[1], int(sys.argv[2])
sys.path[:0] = sys.argv[3:]
from communicators import executor, run_ranks

def take_ports():
    taken = []
    while True:
        one = socket.socket()
        try:
            one.bind(("127.0.0.1", 0))
        except OSError as error:
            assert error.errno == errno.EADDRINUSE
            return taken[free:]
        one.listen()
        taken.append(one)

held = take_ports()
try:
    executors = [executor(rank) for rank in range(2)]
    for outcome in run_ranks(list(hosts), lambda _: "works", executors=executors, timeout=5):
        print(outcome)
except Exception as error:
    print(error)
"""


@pytest.mark.needs("own range of ports")
@pytest.mark.parametrize(
    ("hosts", "free", "error"),
    [
        ("aa", 0, "cannot listen for control connections on 127.0.0.1: Address already in use"),
        # The kernel may find no port for a listener while some are free.
        ("aa", 2, "cannot (connect to rank 1|listen for control connections)"),
        ("ab", 2, "expected a free TCP port of lo; got none|cannot (connect|listen for control)"),
    ],
)
def test_a_kernel_without_free_ports_is_an_error(hosts: str, free: int, error: str) -> None:
    words = [*WITH_OWN_PORTS, str(FIRST), str(LAST), sys.executable, "-c", PROGRAM]
    words += [hosts, str(free), str(HERE), str(HERE.parent / "running")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert re.search(error, done.stdout), done
    assert "net.ipv4.ip_local_port_range" in done.stdout
