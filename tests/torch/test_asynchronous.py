"""Operations that continue while the caller works, in any order, on several groups and threads."""

from __future__ import annotations

import mmap
import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values

import hetcomm

LAYOUTS = ["a", "aa", "ab", "abb", "aabba", "abababab"]
MANY = 60


def _input(rank: int, call: int, count: int) -> torch.Tensor:
    return oracle.values(torch.int64, "SUM", count, "asynchronous", rank, call)


def _sum(ranks: list[int], call: int, count: int) -> torch.Tensor:
    return oracle.reduced([_input(rank, call, count) for rank in ranks], "SUM").values


def _finished(work: dist.Work) -> bool:
    end = time.monotonic() + 30
    while not work.is_completed():
        if time.monotonic() > end:
            return False
        time.sleep(0)
    return True


def many_in_flight(rank: int, size: int, seed: int) -> None:
    everybody = list(range(size))
    counts = torch.randint(0, 30_000, (MANY,), generator=oracle.generator(seed)).tolist()
    tensors = [_input(rank, call, count) for call, count in enumerate(counts)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    order = torch.randperm(MANY, generator=oracle.generator(seed, rank)).tolist()
    for call in order:
        if call % 3 == 0:
            assert _finished(works[call]), f"call {call} never completed without wait()"
            assert works[call].is_success()
        elif call % 3 == 1:
            works[call].wait()
        else:
            result = works[call].get_future().wait()
            assert torch.equal(result[0] if isinstance(result, list) else result, tensors[call])
        assert torch.equal(tensors[call], _sum(everybody, call, counts[call])), f"call {call}"


def futures(rank: int, size: int, seed: int) -> None:
    thens: list[Any] = []
    for call in range(20):
        tensor = _input(rank, call, 1000 + call)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        thens.append(future.then(lambda done: done.value()[0].clone() + 1))
    for call in reversed(range(20)):
        expected = _sum(list(range(size)), call, 1000 + call) + 1
        assert torch.equal(thens[call].wait(), expected), f"call {call}"
    outputs = [torch.zeros(50, dtype=torch.int64) for _ in range(size)]
    gathered = dist.all_gather(outputs, _input(rank, 0, 50), async_op=True)
    gathered.get_future().wait()  # lists are filled by then, too
    for peer in range(size):
        assert torch.equal(outputs[peer], _input(peer, 0, 50))


def traced(rank: int, size: int, seed: int) -> None:
    everybody = list(range(size))
    dist.barrier()
    with hetcomm.trace() as traces:
        tensor = _input(rank, 0, 40_000)
        work = dist.all_reduce(tensor, async_op=True)
        assert _finished(work), "a large one never completed without wait()"
        dist.all_gather_into_tensor(torch.zeros(size * 5), torch.ones(5))
    assert torch.equal(tensor, _sum(everybody, 0, 40_000))
    assert [trace.operation.split()[0] for trace in traces] == ["all_reduce", "all_gather"]
    for trace in traces:
        assert 0 <= trace.started <= trace.ended
        assert all(trace.started <= span.start <= span.end <= trace.ended for span in trace.spans)


def waiting_callbacks(rank: int, size: int, seed: int) -> None:
    """A callback of a future waits for a further operation, whose callback waits, and so on, four
    deep."""

    def begin(call: int) -> Any:
        future = dist.all_reduce(_input(rank, call, 3000), async_op=True).get_future()
        if call == 4:
            return future
        return future.then(lambda done: [*done.value(), *begin(call + 1).wait()])

    for call, tensor in enumerate(begin(0).wait()):
        assert torch.equal(tensor, _sum(list(range(size)), call, 3000)), f"call {call}"


def large_operations(rank: int, size: int, seed: int) -> None:
    """The caller does not copy large tensors: the first thread to write a page faults."""
    alone = [dist.new_group([each]) for each in range(size)][rank]

    def faults(pages: int) -> int:
        memory = mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        output = torch.frombuffer(memory, dtype=torch.uint8)
        x, splits = torch.ones_like(output), [len(output)]
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        work = dist.all_to_all_single(output, x, splits, splits, alone, async_op=True)
        found = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        work.wait()
        assert torch.equal(output, x)
        return found

    assert faults(4096) < 2048


def dropped(rank: int, size: int, seed: int) -> None:
    """The work and the tensor are dropped. Later calls are correct all the same."""
    for call in range(30):
        dist.all_reduce(_input(rank, call, 5000), async_op=True)
    tensor = _input(rank, 99, 5000)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, _sum(list(range(size)), 99, 5000))


def overlapping_groups(rank: int, size: int, seed: int) -> None:
    """Groups of every size from 1 to all, in one order on all ranks, with several calls on each."""
    random = oracle.generator(seed, "groups")
    members = [
        sorted(torch.randperm(size, generator=random)[: 1 + number % size].tolist())
        for number in range(min(2 * size, 9))
    ]
    groups = [dist.new_group(ranks) for ranks in members]
    mine = [(g, ranks) for g, ranks in zip(groups, members, strict=True) if rank in ranks]
    running = []
    for call in range(5):
        for group, ranks in mine:
            tensor = _input(rank, call, 3000)
            running.append((tensor, _sum(ranks, call, 3000), ranks,
                            dist.all_reduce(tensor, group=group, async_op=True)))  # fmt: skip
    for tensor, expected, ranks, work in reversed(running):
        work.wait()
        assert torch.equal(tensor, expected), f"group {ranks}"
    for group, ranks in mine:
        tensor = _input(rank, 7, 100)
        dist.broadcast(tensor, src=ranks[-1], group=group)
        assert torch.equal(tensor, _input(ranks[-1], 7, 100)), f"broadcast in {ranks}"


def two_threads(rank: int, size: int, seed: int) -> None:
    groups = [dist.new_group(list(range(size))) for _ in range(2)]
    gloo = dist.new_group(list(range(size)), backend="gloo")
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for call in range(40):
                tensor = _input(rank, 100 * number + call, 200 * call)
                dist.all_reduce(tensor, group=groups[number])
                expected = _sum(list(range(size)), 100 * number + call, 200 * call)
                assert torch.equal(tensor, expected), f"thread {number}, call {call}"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for call in range(10):  # gloo and the default group beside the others
        for group in (gloo, None):
            tensor = _input(rank, 500 + call, 100)
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, _sum(list(range(size)), 500 + call, 100))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs in its group"
    if errors:
        raise errors[0]


def ring_of_messages(rank: int, size: int, seed: int) -> None:
    if size == 1:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    for call, count in enumerate((0, 1, 1000, 300_000)):
        incoming = torch.zeros(count, dtype=torch.int64)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, _input(rank, call, count), right),
            dist.P2POp(dist.irecv, incoming, left),
        ])  # fmt: skip
        for work in works:
            work.wait()
        assert torch.equal(incoming, _input(left, call, count)), f"{count} elements"


def objects(rank: int, size: int, seed: int) -> None:
    mine = {"rank": rank, "text": "x" * (rank * 1000), "nested": [rank, (None, 1.5)]}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, mine)
    assert [one["rank"] for one in everyone] == list(range(size))
    assert everyone[size - 1]["text"] == "x" * ((size - 1) * 1000)
    shared = [mine, "second"] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(shared, src=size - 1)
    assert shared[0]["rank"] == size - 1 and shared[1] == "second"
    received: list[Any] = [None]
    dist.scatter_object_list(received, [f"to {r}" for r in range(size)] if rank == 0 else None)
    assert received == [f"to {rank}"]
    gathered: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, gathered)
    assert gathered is None or [one["rank"] for one in gathered] == list(range(size))


PROGRAMS = [
    many_in_flight, futures, traced, waiting_callbacks, large_operations, dropped,
    overlapping_groups, two_threads, ring_of_messages, objects,
]  # fmt: skip


def run_programs(
    rank: int, size: int, seed: int, programs: list[Callable[[int, int, int], None]]
) -> dict[str, float]:
    taken = {}
    for program in programs:
        begin = time.monotonic()
        try:
            program(rank, size, seed)
        except Exception as error:
            error.add_note(f"in {program.__name__}")
            raise
        taken[program.__name__] = time.monotonic() - begin
    return taken


@pytest.mark.parametrize("layout", LAYOUTS)
def test_asynchronous_programs_run(job: Callable[..., Job], seed: int, layout: str) -> None:
    taken = values(job(layout, bound=150), run_programs, seed, PROGRAMS)[0]
    print(layout, {name: round(seconds, 2) for name, seconds in taken.items()})
