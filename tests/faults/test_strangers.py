"""Bytes from strangers at the control port: logged, ignored, and no harm to the group."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from job import BOUND, Job, Process


def packed(*values: int | bytes) -> bytes:
    """As the control connection writes them: numbers of 8 bytes, texts after their length."""
    parts = []
    for value in values:
        if isinstance(value, bytes):
            parts.append(struct.pack("<Q", len(value)) + value)
        else:
            parts.append(struct.pack("<Q", value))
    return b"".join(parts)


def listening_ports(process: Process) -> list[int]:
    """TCP ports on which a process listens, from /proc."""
    inodes = {
        target[len("socket:[") : -1]
        for descriptor in Path(f"/proc/{process.process.pid}/fd").iterdir()
        if (target := str(descriptor.readlink())).startswith("socket:[")
    }
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


ABORT = packed(1, 1, packed(0, 5, 0, b"", b"planted: a stranger's news"))
STRANGERS = {
    "nothing": b"",
    "one-byte": b"\0",
    "garbage": bytes(range(256)) * 64,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "huge-length": packed((1 << 64) - 1) + b"x" * 100,
    "zero-length": packed(0) * 100,
    "unfinished": packed(60_000) + b"x" * 1000,
    "wrong-secret": packed(packed(b"123-456-", 1)),
    "empty-secret": packed(packed(b"", 1)),
    "text-beyond-the-frame": packed(packed((1 << 63) + 5, 1)),
    "news-without-a-secret": packed(ABORT),
    "wrong-secret-then-news": packed(packed(b"123-456-", 1), ABORT),
}


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_strangers_are_refused(tmp_path: Path, hosts: str) -> None:
    with Job(tmp_path, hosts) as job:
        total = float(sum(range(1, len(hosts) + 1)))
        for rank in job.ranks:
            ports = listening_ports(rank)
            assert ports, "the control plane listens somewhere"
            for port in ports:
                for content in STRANGERS.values():
                    knock(port, content)
            assert job.do("all_reduce", 1000) == [total] * len(hosts)
        for rank in job.ranks:
            assert "refused" in rank.log.read_text()
            rank.exits_cleanly()


def knock(port: int, content: bytes) -> None:
    """Connects, writes, half closes, and waits until the other side has hung up."""
    with socket.create_connection(("127.0.0.1", port), BOUND) as stranger:
        try:
            stranger.sendall(content)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass  # hung up on already


def test_many_strangers_who_stay_do_not_keep_the_group_from_working(tmp_path: Path) -> None:
    with Job(tmp_path, "ab") as job:
        strangers = []
        try:
            for port in listening_ports(job[0]):
                for _ in range(40):
                    strangers.append(socket.create_connection(("127.0.0.1", port), BOUND))
                    strangers[-1].sendall(STRANGERS["unfinished"])
            for _ in range(3):
                assert job.do("all_reduce", 300_000) == [3.0, 3.0]
        finally:
            for stranger in strangers:
                stranger.close()
        for rank in job.ranks:
            rank.exits_cleanly()
