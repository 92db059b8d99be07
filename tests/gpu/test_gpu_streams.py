"""Operations follow the order of torch's streams, before and after the call."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from ranks import Job, values
from stream_programs import reused_memory
from test_gpu_collectives import home

COUNT = 1_000_000
LONG = 1_000_000_000  # cycles of a GPU's clock: about half a second
KINDS = ["g", "gg", "gc"]


def _busy() -> torch.cuda.Event:
    """Keeps the current stream busy. The returned event passes at the end of that work."""
    torch.cuda._sleep(LONG)
    event = torch.cuda.Event()
    event.record()
    return event


def _sum(size: int) -> float:
    return size * (size + 1) / 2


def _run(rank: int, size: int, on_gpu: Callable[[int, int], None], calls: int) -> None:
    """The ranks of the GPU run the program. The other ranks make the same number of all_reduces.

    One all_reduce comes before: the first launch of a kernel may wait for the device.
    """
    if home() == "cuda":
        tensor = torch.full((COUNT,), float(rank + 1), device="cuda")
        dist.all_reduce(tensor)
        assert bool((tensor * 2 == 2 * _sum(size)).all())
        return on_gpu(rank, size)
    for _ in range(1 + calls):
        tensor = torch.full((COUNT,), float(rank + 1))
        dist.all_reduce(tensor)
        assert bool((tensor == _sum(size)).all())


def _waits_for_the_callers_stream(rank: int, size: int) -> None:
    tensor = torch.zeros(COUNT, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _busy()
        tensor.fill_(rank + 1)
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()  # on another stream than the call's
    assert bool((tensor == _sum(size)).all())


def _waiting_leaves_the_host_alone(rank: int, size: int) -> None:
    busy = _busy()
    tensor = torch.full((COUNT,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    result = tensor * 2
    assert not busy.query(), "the host waited for the GPU"
    assert bool((result == 2 * _sum(size)).all())


def _a_timeout_makes_the_host_wait(rank: int, size: int) -> None:
    from datetime import timedelta

    busy = _busy()
    tensor = torch.full((COUNT,), float(rank + 1), device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed()
    work.wait(timedelta(seconds=30))
    assert busy.query(), "the operation ended before what it waits for"
    assert work.is_completed() and work.is_success()
    assert bool((tensor == _sum(size)).all())


def _completion_shows_without_waiting(rank: int, size: int) -> None:
    tensor = torch.full((COUNT,), float(rank + 1), device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    end = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < end, "never completed"
        time.sleep(0)
    assert bool((tensor == _sum(size)).all())


def _futures(rank: int, size: int) -> None:
    _busy()
    tensor = torch.full((COUNT,), float(rank + 1), device="cuda")
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    result = doubled.wait()
    assert bool((result == 2 * _sum(size)).all())


def _computing_meanwhile(rank: int, size: int) -> None:
    tensors = [torch.full((COUNT,), float(rank + 1), device="cuda") for _ in range(8)]
    matrix = torch.randn(1024, 1024, device="cuda", dtype=torch.float64)
    expected = matrix @ matrix
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    products = [matrix @ matrix for _ in range(20)]
    for work in works:
        work.wait()
    assert all(bool((tensor == _sum(size)).all()) for tensor in tensors)
    assert all(torch.allclose(product, expected) for product in products)


# Each program with its number of all_reduces, and the ranks for it. Where a rank of the CPU takes
# part, the host waits until it has moved the operation.
PROGRAMS = [
    (_waits_for_the_callers_stream, 1, KINDS), (_waiting_leaves_the_host_alone, 1, ["g", "gg"]),
    (_a_timeout_makes_the_host_wait, 1, KINDS), (_completion_shows_without_waiting, 1, KINDS),
    (_futures, 1, KINDS), (_computing_meanwhile, 8, KINDS),
]  # fmt: skip
CASES = [(program, calls, kinds) for program, calls, every in PROGRAMS for kinds in every]


@pytest.mark.parametrize(
    ("program", "calls", "kinds"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_collectives_follow_the_stream(
    job: Callable[..., Job], kinds: str, program: Callable, calls: int
) -> None:
    values(job(kinds), _run, program, calls)


@pytest.mark.parametrize("kinds", KINDS)
def test_the_caching_allocator_waits(job: Callable[..., Job], kinds: str) -> None:
    values(job(kinds), reused_memory)


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, COUNT, 5 * COUNT):
        if home() == "cuda":
            torch.cuda._sleep(LONG // 50)
        incoming = torch.zeros(count, device=home())
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, torch.full((count,), float(rank), device=home()), right),
            dist.P2POp(dist.irecv, incoming, left),
        ])  # fmt: skip
        for work in works:
            work.wait()
        assert bool((incoming == left).all()), f"{count} elements"


@pytest.mark.parametrize("kinds", ["gg", "gc", "ggc"])
def test_messages_follow_the_stream(job: Callable[..., Job], kinds: str) -> None:
    values(job(kinds), messages)
