"""Bytes from strangers at the control port are logged and ignored, and the group stays usable."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest
from control_peers import packed
from job import BOUND, Job, Process, cpu_seconds, wait_for


def listening_ports(process: Process) -> list[int]:
    """The TCP ports on which a process listens, from /proc."""
    inodes = {
        target[len("socket:[") : -1]
        for descriptor in Path(f"/proc/{process.process.pid}/fd").iterdir()
        if (target := str(descriptor.readlink())).startswith("socket:[")
    }
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def control_port(folder: Path) -> int:
    """The control port of rank 0, from its record in the store."""
    found = re.findall(rb"127\.0\.0\.1 (\d+)", (folder / "first" / "member-0").read_bytes())
    assert len(found) == 1
    return int(found[0])


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
def test_strangers_are_rejected(tmp_path: Path, hosts: str) -> None:
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
    """Connects, writes, half closes, and waits until the other side has closed the connection."""
    with socket.create_connection(("127.0.0.1", port), BOUND) as stranger:
        try:
            stranger.sendall(content)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except OSError:
            pass  # the connection is closed already


def test_many_lasting_strangers_do_not_stop_the_group(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("limit", [0, 256], ids=["default", "256-descriptors"])
def test_a_thousand_strangers_take_few_descriptors(tmp_path: Path, limit: int) -> None:
    """New strangers replace the oldest silent ones. The log says so once."""
    with Job(tmp_path, "ab") as job:
        if limit:
            job[0].do("limit_descriptors", limit)
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        before = job[0].do("resources")["sockets"]
        port = control_port(tmp_path)
        strangers = []
        try:
            for _ in range(1000):
                strangers.append(socket.create_connection(("127.0.0.1", port), BOUND))
            for _ in range(3):
                assert job.do("all_reduce", 1000) == [3.0, 3.0]
                assert job[0].do("resources")["sockets"] < before + 100
            wait_for(lambda: "connections of strangers at control port" in job[0].log.read_text())
            knock(port, STRANGERS["wrong-secret"])  # when its turn comes
        finally:
            for stranger in strangers:
                stranger.close()
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        assert job[0].log.read_text().count("connections of strangers") == 1
        for rank in job.ranks:
            rank.exits_cleanly()


def test_a_rank_without_descriptors_does_not_spin(tmp_path: Path) -> None:
    with Job(tmp_path, "ab") as job:
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        port = control_port(tmp_path)
        job[0].do("hoard_descriptors")
        with socket.create_connection(("127.0.0.1", port), BOUND) as stranger:
            wait_for(lambda: "cannot accept control connections" in job[0].log.read_text())
            before, until = cpu_seconds(job[0]), time.monotonic() + 4
            while time.monotonic() < until:
                time.sleep(0.1)
            assert cpu_seconds(job[0]) - before < 0.25
            assert "Too many open files; tries again twice a second" in job[0].log.read_text()
            job[0].do("release_descriptors")
            stranger.sendall(STRANGERS["wrong-secret"])
            assert stranger.recv(1) == b""  # accepted now, and rejected
        assert job[0].log.read_text().count("cannot accept") == 1
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        for rank in job.ranks:
            rank.exits_cleanly()
