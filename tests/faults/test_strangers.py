"""Bytes from strangers at the control port are logged and ignored, and the group stays usable."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import threading
import time
from pathlib import Path

import pytest
from control_peers import packed
from flood import flooding
from job import BOUND, Job, cpu_seconds, listening_ports, wait_for


def control_port(folder: Path, rank: int = 0) -> int:
    """The control port of a rank, from its record in the store."""
    member = (folder / "first" / f"member-{rank}").read_bytes()
    found = re.findall(rb"127\.0\.0\.1 (\d+)", member)
    assert len(found) == 1
    return int(found[0])


ABORT = packed(1, 1, packed(0, 5, 0, b"", b"planted: a stranger's news", b""))
STRANGERS = {
    "nothing": b"",
    "one-byte": b"\0",
    "garbage": bytes(range(256)) * 64,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "huge-length": packed((1 << 64) - 1) + b"x" * 100,
    "zero-length": packed(0) * 100,
    "unfinished": packed(60_000) + b"x" * 1000,
    "wrong-proof": packed(1) + b"w" * 64,
    "proof-of-no-rank": packed(1 << 63) + b"w" * 64,
    "proof-of-the-rank-itself": packed(0) + b"w" * 64,
    "news-without-a-proof": packed(ABORT),
    "wrong-proof-then-news": packed(1) + b"w" * 64 + packed(ABORT) + b"w" * 32,
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


@pytest.mark.parametrize("limit", [1024, 256])
def test_a_thousand_strangers_take_few_descriptors(tmp_path: Path, limit: int) -> None:
    """New strangers replace the oldest silent ones, beyond an eighth of all descriptors. The log
    says so once."""
    with Job(tmp_path, "ab") as job:
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
                assert job[0].do("resources")["sockets"] < before + limit // 8 + 20
            wait_for(lambda: "connections of strangers at control port" in job[0].log.read_text())
            knock(port, STRANGERS["wrong-proof"])  # when its turn comes
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
            before, begin = cpu_seconds(job[0]), time.monotonic()
            while (seconds := time.monotonic() - begin) < 4:
                time.sleep(0.1)
            assert cpu_seconds(job[0]) - before < 0.1 * seconds
            assert "Too many open files; tries again twice a second" in job[0].log.read_text()
            job[0].do("release_descriptors")
            stranger.sendall(STRANGERS["wrong-proof"])
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""  # accepted now, and rejected
        assert job[0].log.read_text().count("cannot accept") == 1
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.parametrize("key", ["", "0123456789abcdef" * 4], ids=["no-key", "key"])
def test_a_flood_of_garbage_disturbs_no_rank(tmp_path: Path, key: str) -> None:
    """A thousand lasting strangers, and a new one with garbage as soon as one is rejected."""
    settings = {rank: {"HETCOMM_JOB_KEY": key} for rank in range(3)}
    with Job(tmp_path, "aab", settings=settings) as job, contextlib.ExitStack() as open_:
        assert job.do("all_reduce", 1000) == [6.0] * 3
        for rank in job.ranks:
            rank.do("limit_descriptors", 1024)
        before = [rank.do("resources")["sockets"] for rank in job.ranks]
        ports = [control_port(tmp_path, rank) for rank in range(3)]
        for number in range(1000):
            port = ports[number % len(ports)]
            open_.enter_context(socket.create_connection(("127.0.0.1", port), BOUND))
        over = threading.Event()
        contents = list(STRANGERS.values())

        def flood(port: int) -> None:
            for number in itertools.count():
                if over.is_set():
                    return
                with contextlib.suppress(OSError):
                    rush(port, contents[number % len(contents)])

        floods = [threading.Thread(target=flood, args=(port,)) for port in ports]
        for each in floods:
            each.start()
        try:
            for _ in range(20):
                assert job.do("all_reduce", 100_000) == [6.0] * 3
            for rank, sockets in zip(job.ranks, before, strict=True):
                assert rank.do("resources")["sockets"] < sockets + 1024 // 8 + 20
        finally:
            over.set()
            for each in floods:
                each.join(BOUND)
        for rank in job.ranks:
            assert rank.log.read_text().count("refused") < 40, rank.log.read_text()[:4000]
            rank.exits_cleanly()


def rush(port: int, content: bytes) -> None:
    """Connects, writes, and leaves at once."""
    with socket.create_connection(("127.0.0.1", port), 1.0) as stranger:
        stranger.settimeout(1.0)
        stranger.sendall(content)


@pytest.mark.parametrize("seconds", [1.0, 6.0], ids=["queue", "full-queue"])
def test_a_flood_delays_no_set_up(tmp_path: Path, seconds: float) -> None:
    """A thousand connections a second, silent or with garbage, to all ports of rank 1 but UCX's,
    while it waits for rank 0 and later. The kernel's queue takes 4,096 of them."""
    settings = {rank: {"UCX_TCP_PORT_RANGE": "34000-35999"} for rank in range(2)}
    with Job(tmp_path, "ab", settings=settings) as job:
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        words = ("--of", job[1].process.pid, "--except", "34000-35999")
        with flooding(1000, BOUND, *words):
            job[1].tell("use", "second", BOUND)
            time.sleep(seconds)
            begin = time.monotonic()
            job[0].do("use", "second", BOUND)
            assert "error" not in job[1].answer(BOUND)
            assert job.do("all_reduce", 1000) == [3.0, 3.0]
            assert time.monotonic() - begin < 3  # alone it takes 0.2 s
        for rank in job.ranks:
            rank.exits_cleanly()
