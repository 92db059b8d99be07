"""UCX's TCP takes "put (address, length)" from anybody, so the kernel lets only peers in."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from job import Job, Process, listening_ports, wait_for
from test_strangers import control_port

FOREIGN = "127.0.0.2"  # an address of no rank: all ranks have 127.0.0.1
OVERWRITTEN = b"written!"


def put(address: int) -> bytes:
    """UCX's magic number, the header of a put request, the request, and the bytes."""
    request = struct.pack("<QQI", address, len(OVERWRITTEN), 0)
    return struct.pack("<QBI", 0xCAFEBABE12345678, 33, len(request)) + request + OVERWRITTEN


def attack(port: int, message: bytes) -> None:
    stranger = socket.socket()
    with stranger, contextlib.suppress(OSError):  # a dropped packet has no answer
        stranger.bind((FOREIGN, 0))
        stranger.settimeout(1.5)
        stranger.connect(("127.0.0.1", port))
        stranger.sendall(message)
        stranger.recv(1)  # UCX answers none of this


def ucx_ports(folder: Path, rank: Process, number: int) -> list[int]:
    return [port for port in listening_ports(rank) if port != control_port(folder, number)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Job]:
    with Job(tmp_path, "ab") as job:
        yield job


def test_a_stranger_writes_no_memory_of_a_rank(tmp_path: Path, pair: Job) -> None:
    """Neither before the ranks have connected to each other, nor afterwards."""
    for connected in [False, True]:
        if connected:
            assert pair.do("all_reduce", 300_000) == [3.0, 3.0]
        for number, rank in enumerate(pair.ranks):
            address = rank.do("keep_secret")
            ports = ucx_ports(tmp_path, rank, number)
            assert ports, "UCX listens for the rank of the other host"
            for port in ports:
                attack(port, put(address))
        assert pair.do("all_reduce", 1000) == [3.0, 3.0]
        assert pair.do("tell_secret") == ["untaken!"] * 2
    for rank in pair.ranks:
        wait_for(lambda rank=rank: "dropped" in rank.log.read_text())
        assert "HETCOMM_UCX_SOURCES" in rank.log.read_text()
        rank.exits_cleanly()


def test_a_named_source_is_admitted(tmp_path: Path) -> None:
    """As of a rank whose address changes on the way. This shows, too, that the attack works."""
    settings = {rank: {"HETCOMM_UCX_SOURCES": f"10.0.0.0/8,{FOREIGN}"} for rank in range(2)}
    with Job(tmp_path, "ab", settings=settings) as job:
        assert job.do("all_reduce", 300_000) == [3.0, 3.0]
        (port,) = ucx_ports(tmp_path, job[0], 0)
        attack(port, put(job[0].do("keep_secret")))
        assert job.do("all_reduce", 1000) == [3.0, 3.0]
        assert job[0].do("tell_secret") == OVERWRITTEN.decode()


def test_two_groups_share_a_port(tmp_path: Path) -> None:
    """The second group connects while the first one is in use, and strangers still cannot."""
    with Job(tmp_path, "ab") as job:
        assert job.do("all_reduce", 300_000) == [3.0, 3.0]
        job.do("use", "second")
        assert job.do("all_reduce", 300_000) == [3.0, 3.0]
        ports = [ucx_ports(tmp_path, rank, number) for number, rank in enumerate(job.ranks)]
        addresses = job.do("keep_secret")
        for address, several in zip(addresses, ports, strict=True):
            for port in several:
                attack(port, put(address))
        assert job.do("all_reduce", 300_000) == [3.0, 3.0]
        assert job.do("tell_secret") == ["untaken!"] * 2


def test_ranks_of_one_host_have_no_port_of_ucx(tmp_path: Path) -> None:
    with Job(tmp_path, "aa") as job:
        assert job.do("all_reduce", 300_000) == [3.0, 3.0]
        job[0].tell("send", 1, 300_000)
        job[1].tell("recv", 0, 300_000)
        job.values()
        for number, rank in enumerate(job.ranks):
            assert ucx_ports(tmp_path, rank, number) == []
            rank.exits_cleanly()
