"""Sixteen threads of every rank on eight process groups make random collectives."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

DTYPES = (torch.float32, torch.int64)
COUNTS = (1, 7, 1000, 30_000)


class Round:
    """The numbers of one call. Rank r has `numbers[r]`, which a float32 adds exactly."""

    def __init__(self, group: dist.ProcessGroup, call: int, count: int, dtype: torch.dtype) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.root, self.count, self.dtype = call % self.size, count, dtype
        self.numbers = [rank + call % 100 for rank in range(self.size)]

    def full(self, number: int) -> Tensor:
        return torch.full((self.count,), number, dtype=self.dtype)

    def mine(self) -> Tensor:
        return self.full(self.numbers[self.rank])

    def of_everyone(self) -> Tensor:
        return torch.cat([self.full(number) for number in self.numbers])


Pair = tuple[Tensor, Tensor]  # result, expected result


def all_reduce(one: Round) -> Pair:
    total = one.mine()
    dist.all_reduce(total, group=one.group)
    return total, one.full(sum(one.numbers))


def all_gather(one: Round) -> Pair:
    gathered = torch.empty(one.size * one.count, dtype=one.dtype)
    dist.all_gather_into_tensor(gathered, one.mine(), group=one.group)
    return gathered, one.of_everyone()


def broadcast(one: Round) -> Pair:
    shared = one.mine()
    dist.broadcast(shared, group_src=one.root, group=one.group)
    return shared, one.full(one.numbers[one.root])


def messages(one: Round) -> Pair:
    received = torch.empty_like(one.mine())
    pending = dist.isend(one.mine(), group=one.group, group_dst=(one.rank + 1) % one.size)
    left = (one.rank - 1) % one.size
    dist.recv(received, group=one.group, group_src=left)
    pending.wait()
    return received, one.full(one.numbers[left])


def reduce_scatter(one: Round) -> Pair:
    blocks = [one.full(one.numbers[one.rank] * (block + 1)) for block in range(one.size)]
    total = torch.empty_like(blocks[0])
    dist.reduce_scatter_tensor(total, torch.cat(blocks), group=one.group)
    return total, one.full(sum(one.numbers) * (one.rank + 1))


def all_to_all(one: Round) -> Pair:
    def block(source: int, target: int) -> Tensor:
        return one.full(one.numbers[source] * one.size + target)

    ranks = range(one.size)
    received = torch.empty(one.size * one.count, dtype=one.dtype)
    sent = torch.cat([block(one.rank, target) for target in ranks])
    dist.all_to_all_single(received, sent, group=one.group)
    return received, torch.cat([block(source, one.rank) for source in ranks])


def gather(one: Round) -> Pair:
    if one.rank != one.root:
        dist.gather(one.mine(), group_dst=one.root, group=one.group)
        return one.mine(), one.mine()
    parts = [torch.empty_like(one.mine()) for _ in range(one.size)]
    dist.gather(one.mine(), parts, group_dst=one.root, group=one.group)
    return torch.cat(parts), one.of_everyone()


def scatter(one: Round) -> Pair:
    parts = [one.full(number) for number in one.numbers] if one.rank == one.root else None
    part = torch.empty(one.count, dtype=one.dtype)
    dist.scatter(part, parts, group_src=one.root, group=one.group)
    return part, one.mine()


def coalesced(one: Round) -> Pair:
    tensors = [one.mine().to(dtype) for dtype in (*DTYPES, one.dtype)]
    with _coalescing_manager(one.group, torch.device("cpu")):
        for tensor in tensors:
            dist.all_reduce(tensor, group=one.group)
    joined = torch.cat([tensor.to(torch.int64) for tensor in tensors])
    return joined, torch.full_like(joined, sum(one.numbers))


KINDS = (
    all_reduce, all_gather, broadcast, messages, reduce_scatter, all_to_all, gather, scatter,
    coalesced,
)  # fmt: skip


def many_threads(rank: int, size: int, seconds: float, seed: int) -> int:
    """Two threads on each of 8 groups. In a group they take turns; groups are independent."""
    groups = [dist.new_group() for _ in range(8)]
    end = time.monotonic() + seconds
    done, failures = [0] * len(groups), []

    def work(index: int, turn: int, turns: list[threading.Semaphore]) -> None:
        group = groups[index]
        chance = random.Random(seed * 8 + index)  # equal on all ranks and in both threads
        try:
            for call in range(10**9):
                kind, count = chance.choice(KINDS), chance.choice(COUNTS)
                dtype = chance.choice(DTYPES)
                if call % 2 != turn:
                    continue
                turns[turn].acquire(timeout=60)
                # Each group has a collective at least, also on a busy machine.
                go_on = torch.tensor([int(time.monotonic() < end or done[index] == 0)])
                dist.all_reduce(go_on, dist.ReduceOp.MIN, group=group)
                if go_on.item():
                    came, expected = kind(Round(group, call, count, dtype))
                    assert torch.equal(came, expected), (kind.__name__, call, count, dtype)
                    done[index] += 1
                turns[1 - turn].release()
                if not go_on.item():
                    return
        except BaseException as error:
            failures.append(error)
            turns[1 - turn].release()

    threads = []
    for index in range(len(groups)):
        turns = [threading.Semaphore(1), threading.Semaphore(0)]
        threads += [threading.Thread(target=work, args=(index, t, turns)) for t in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 90)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]
    assert min(done) > 0, done
    return sum(done)


@pytest.mark.parametrize(("layout", "seconds"), [("aa", 3), ("abb", 3), ("abab", 25)])
def test_threads_use_their_own_groups(
    job: Callable[..., Job], layout: str, seconds: float, seed: int
) -> None:
    counts = values(job(layout, bound=seconds + 190), many_threads, seconds, seed)
    print(f"{layout}: {counts[0]} collectives by 16 threads on 8 groups in {seconds:g} s")
    assert len(set(counts)) == 1
