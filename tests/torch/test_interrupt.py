"""Ctrl-C and other signals during waits: the call ends at once, and the other ranks hear of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import FrameType

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values

import hetcomm

LATE = 25.0  # seconds: the group's timeout, at which an uninterrupted wait would end
# Seconds until an interrupt. On a busy machine an interrupt may come before the wait: then Python
# handles it, the group is unharmed, and the next interrupt comes later.
DELAYS = (0.5, 1.0, 2.0, 4.0)


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _interrupt_after(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def _unharmed() -> bool:
    """Whether no interrupt has ended the group. An old torch cannot tell."""
    knows = hasattr(torch._C._distributed_c10d, "ErrorType")
    return knows and backend().get_error().name == "SUCCESS"


CALLS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(3)),
    "large": lambda: dist.all_reduce(torch.ones(3_000_000)),
    "wait": lambda: _wait(dist.all_reduce(torch.ones(3), async_op=True)),
    "wait for a time": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(
        timedelta(seconds=LATE)
    ),
    "barrier": dist.barrier,
    "recv": lambda: dist.recv(torch.ones(3), 1),
    "recv from any": lambda: dist.recv(torch.ones(3)),
    "objects": lambda: dist.broadcast_object_list([None], 1),
    "coalesced": lambda: backend().allreduce_coalesced([torch.ones(3), torch.ones(2)]).wait(),
    "monitored_barrier": lambda: backend().monitored_barrier(timedelta(seconds=LATE)),
    "pending works": lambda: (
        dist.all_reduce(torch.ones(3), async_op=True),
        dist.group.WORLD._wait_for_pending_works(),
    ),
}


def interrupted(rank: int, size: int, call: str) -> str:
    # Background jobs of a shell ignore SIGINT, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 0:
        for seconds in DELAYS:
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                _interrupt_after(seconds)
                CALLS[call]()
            assert time.monotonic() - begun < LATE / 2
            if not _unharmed():
                break
        with pytest.raises(hetcomm.AbortedError, match="KeyboardInterrupt"):
            dist.barrier()
        return "interrupted"
    with pytest.raises(hetcomm.AbortedError) as heard:
        dist.recv(torch.ones(3), 0)  # rank 0 does not send this message
    return str(heard.value)


@pytest.mark.parametrize(
    ("call", "hosts"), [*((call, "aa") for call in CALLS), ("all_reduce", "ab"), ("recv", "ab")]
)
def test_an_interrupt_ends_a_wait(job: Callable[..., Job], call: str, hosts: str) -> None:
    said = values(job(hosts, group_timeout=LATE), interrupted, call)
    assert said[0] == "interrupted"
    assert "rank 0 aborted the group: KeyboardInterrupt during " in said[1]


def failing(rank: int, size: int) -> str:
    """The operation fails right after the signal, before the wait looks for signals again."""
    if rank == 1:
        with pytest.raises(hetcomm.AbortedError):
            dist.recv(torch.ones(3), 0)
        return ""

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        backend().abort()

    signal.signal(signal.SIGINT, signal.default_int_handler)
    work = dist.irecv(torch.ones(3), 1)
    assert work is not None
    failure, first = hetcomm.AbortedError, "interrupt"
    try:
        try:
            threading.Timer(0.5, interrupt).start()
            work.wait()
        except failure:  # through code in which no signal handler runs before
            first = "failure"
            raise
    except KeyboardInterrupt:
        return first
    except failure:
        return first
    return "nothing"


def test_an_interrupt_wins_over_a_failing_operation(job: Callable[..., Job]) -> None:
    assert values(job("aa", group_timeout=LATE), failing)[0] == "interrupt"


def other_signals(rank: int, size: int) -> None:
    """A handler with an ordinary exception ends only this wait. A handler that returns ends no
    wait."""
    calls = []

    def note(number: int, frame: FrameType | None) -> None:
        calls.append(number)
        if len(calls) == 2:
            raise ValueError("enough")

    signal.signal(signal.SIGALRM, note)
    if rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
        received = torch.zeros(3)
        work = dist.irecv(received, 1)
        assert work is not None
        with pytest.raises(ValueError, match="enough"):
            work.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(calls) == 2
        dist.send(torch.ones(1), 1)
        work.wait()
        assert received.tolist() == [5, 5, 5]
    else:
        dist.recv(torch.ones(1), 0)  # comes after rank 0's wait
        dist.send(torch.full((3,), 5.0), 0)
    dist.barrier()


def test_other_signals_run_their_handlers(job: Callable[..., Job]) -> None:
    values(job("aa"), other_signals)


def in_a_thread(rank: int, size: int) -> None:
    """Signals belong to the main thread: a wait on another thread continues."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
        dist.send(torch.full((3,), 5.0), 0)
        return dist.barrier()
    received = torch.zeros(3)
    waiting = threading.Thread(target=dist.recv, args=(received, 1))
    waiting.start()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    dist.send(torch.ones(1), 1)
    waiting.join(60)
    assert received.tolist() == [5, 5, 5]
    dist.barrier()


def test_a_wait_in_a_thread_sees_no_interrupt(job: Callable[..., Job]) -> None:
    values(job("aa"), in_a_thread)


def in_set_up(rank: int, size: int, kind: str) -> None:
    """Rank 1 does not come to the new group."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = dist.distributed_c10d._get_default_store()
    if kind == "tcp":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if rank == 0:
        for seconds in DELAYS:
            new = dist.PrefixStore(f"new after {seconds} s", store)
            begun = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                _interrupt_after(seconds)
                hetcomm.ProcessGroupHetcomm(new, rank, size, timedelta(seconds=LATE))
            assert time.monotonic() - begun < LATE / 2
            if new.check(["member/0"]):  # so set-up had begun
                break
        assert new.check(["member/0"])
    dist.barrier()


@pytest.mark.parametrize("kind", ["file", "tcp"])
def test_an_interrupt_ends_set_up(job: Callable[..., Job], kind: str) -> None:
    values(job("aa", group_timeout=LATE), in_set_up, kind)
