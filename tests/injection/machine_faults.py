"""Injections into the machine around a rank: bytes of strangers, descriptors, shared memory."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flood import flooding
from job import BOUND, listening_ports
from recorded import Recording, changed, why_not
from trial import ERROR, HANG, SHARED_MEMORY, Complaint, Trial

if TYPE_CHECKING:
    from kinds import Settings

FILLER = SHARED_MEMORY / "filler"
MOST_SPARE = 100  # descriptors; no rank needs more
UCX_HANDSHAKE = struct.pack("<Q", 0xCAFEBABE12345678)  # UCX's TCP connections begin so


def strangers(trial: Trial) -> None:
    """The recording holds the second group's set-up and first calls. UCX's ports get random bytes
    alone: docs/security.md says what UCX does after the copy of a handshake."""
    chance, victim = trial.chance, trial.job[trial.victim]
    if why := why_not():
        trial.tell(f"nothing recorded: {why}")
    recording = None if why else Recording()
    trial.join("second", 60.0)
    trial.work_alone()
    ports = listening_ports(victim)
    streams = {port: [b"stranger"] for rank in trial.job.ranks for port in listening_ports(rank)}
    if recording:
        recording.stop()
        streams = recording.streams(list(streams))
    every = [stream for of_port in streams.values() for stream in of_port]
    if not every:
        raise Complaint(ERROR, f"no rank connected to any of the ports {list(streams)}")
    trial.open_links()
    before, told, came = trial.resources(), len(trial.told), 0
    trial.begin()
    with contextlib.ExitStack() as kept:
        for _ in range(chance.randrange(5, 60)):
            port = chance.choice(ports)
            how, data = changed(chance, chance.choice(streams[port] or every), every)
            if data.startswith(UCX_HANDSHAKE):
                how, data = "random", chance.randbytes(len(data))
            trial.tell(f"{how} {len(data)} bytes")
            with contextlib.suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", port), 5.0)
                kept.enter_context(stranger)
                stranger.settimeout(5.0)
                stranger.sendall(data)
                came += 1
                if chance.random() < 0.5:
                    stranger.close()
        trial.all_right()
    trial.told[told:] = [f"{came} strangers"]
    if not came:
        raise Complaint(ERROR, f"no stranger could send to any of the ports {ports}")
    trial.settle(before)
    trial.work_alone()
    trial.end()


UCX_PORTS = range(34_000, 36_000)  # outside of the usual ports of processes and of the store
FLOOD = 1000  # connections a second
FILLS = 1.5  # seconds of flood while the victim waits for the others
SET_UP = 5.0  # seconds for the rest of set-up; alone it takes a part of one


def ucx_ports(_: Trial) -> Settings:
    """UCX does not bound strangers, so a flood spares its ports."""
    every = {"UCX_TCP_PORT_RANGE": f"{UCX_PORTS.start}-{UCX_PORTS.stop - 1}"}
    return dict.fromkeys(range(64), every)


def flooded(trial: Trial) -> None:
    """Strangers come to all ports of the victim, also while it waits in set-up for the others."""
    victim = trial.job[trial.victim]
    spared = f"{UCX_PORTS.start}-{UCX_PORTS.stop - 1}"
    with flooding(FLOOD, BOUND, "--of", victim.process.pid, "--except", spared):
        trial.begin()
        trial.all_right()
        trial.order(victim, "use", "second", BOUND)
        time.sleep(FILLS)
        begin = time.monotonic()
        for rank in trial.others:
            trial.order(rank, "use", "second", BOUND)
        trial.all_right()
        seconds = time.monotonic() - begin
        trial.tell(f"a set-up took {seconds:.1f} s")
        if seconds > SET_UP:
            raise Complaint(HANG, f"set-up took {seconds:.1f} s beside a flood")
        trial.work_alone()
    trial.work_alone()
    trial.end()


TOO_FEW = "Too many open files"
REFUSALS = ("TransportError", "PeerFailedError", "VendorError")


def few_descriptors(trial: Trial) -> None:
    pid = trial.job[trial.victim].process.pid
    spare = trial.chance.choice((0, 0, 1, 5))
    trial.tell(f"{spare} left")
    trial.begin()
    used = max(int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()) + 1
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + spare, limits[1]))
    try:
        trial.all_right()
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def spare_descriptors(trial: Trial) -> Settings:
    spare = trial.chance.randrange(MOST_SPARE)
    trial.tell(f"{spare} left")
    return {trial.victim: {"SPARE_DESCRIPTORS": str(spare)}}


def joined_with_few_descriptors(trial: Trial) -> None:
    """The rank may have too few to write to the store, or for UCX, whose reasons are others."""
    named = f"rank {trial.victim}"
    trial.right_or_refused((*REFUSALS, "TimeoutError"), (TOO_FEW, named))


@contextlib.contextmanager
def full() -> Iterator[None]:
    """Takes all of the private /dev/shm."""
    status = os.statvfs(SHARED_MEMORY)
    with FILLER.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_bsize)
    try:
        yield
    finally:
        FILLER.unlink()


NO_ROOM = ("/dev/shm", "No space left", "shared memory")


def full_memory(trial: Trial) -> None:
    trial.begin()
    with full():
        trial.right_or_refused(REFUSALS, NO_ROOM, joining=False, ending=False)
    trial.end()


def fill_memory(trial: Trial) -> Settings:
    trial.cleanup.enter_context(full())
    return {}


def joined_with_full_memory(trial: Trial) -> None:
    trial.right_or_refused(REFUSALS, NO_ROOM, ending=False)
    trial.cleanup.close()
    trial.end()
