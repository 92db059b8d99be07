"""The ucx transport between two network namespaces: all bytes cross the wire."""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).parent
SIZE = 4 << 20
PROGRAM = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from hetcomm import _core
from transport_peers import finish, pattern, until
interfaces = sys.argv[2].split(",") if sys.argv[2] else []
transport = _core.make_transport("ucx", interfaces, shared_memory=False)
print(transport.address(False).hex(), flush=True)
link = transport.connect(bytes.fromhex(sys.stdin.readline()), 1 - int(sys.argv[1]))
into = bytearray({SIZE})
requests = [transport.recv(1, into), link.send(1, pattern({SIZE}, int(sys.argv[1])))]
finish([transport], requests)
assert into == pattern({SIZE}, 1 - int(sys.argv[1]))
print(link.describe(), flush=True)
sys.stdin.readline()
link.close(flush=True)
until([transport], lambda: link.closed)
"""

pytestmark = pytest.mark.needs("named network namespaces")


def ip(*arguments: str) -> str:
    return subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True, timeout=30
    ).stdout


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    names = [f"hetcomm-{os.getpid()}-{side}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "wire0", "netns", names[0], "type", "veth", "peer", "wire0", "netns",
           names[1])  # fmt: skip
        for number, name in enumerate(names, start=1):
            ip("-n", name, "addr", "add", f"198.18.91.{number}/24", "dev", "wire0")
            ip("-n", name, "link", "set", "wire0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        deadline = time.monotonic() + 30
        for name in names:  # the kernel reports a carrier up to a second late
            while "state UP" not in ip("-n", name, "link", "show", "wire0"):
                assert time.monotonic() < deadline, "the wire never came up"
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)


def sent_bytes(host: str, interface: str) -> int:
    return int(ip("netns", "exec", host, "cat", f"/sys/class/net/{interface}/statistics/tx_bytes"))


@pytest.mark.parametrize("interfaces", ["", "wire0"], ids=["chosen by ucx", "named"])
def test_bytes_cross_the_wire(hosts: list[str], interfaces: str) -> None:
    program = [sys.executable, "-P", "-c", PROGRAM]
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, *program, str(rank), interfaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        addresses = [rank.stdout.readline() for rank in ranks]
        for rank, address in zip(ranks, reversed(addresses), strict=True):
            rank.stdin.write(address)
            rank.stdin.flush()
        assert [rank.stdout.readline().strip() for rank in ranks] == ["tcp over wire0"] * 2
        for host in hosts:
            assert SIZE < sent_bytes(host, "wire0") < 1.2 * SIZE
            assert sent_bytes(host, "lo") < 10_000
        for rank in ranks:  # all at once: draining needs both sides
            rank.stdin.write("close\n")
            rank.stdin.flush()
        for rank in ranks:
            rank.wait(timeout=60)
        assert [rank.returncode for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
