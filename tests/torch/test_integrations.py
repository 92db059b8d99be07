"""What torch builds on process groups, over hetcomm."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from ranks import Job, values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

# Of random collectives from many threads.
SECONDS = float(os.environ.get("HETCOMM_TEST_SECONDS", "6"))


def _eager(x: torch.Tensor) -> torch.Tensor:
    everybody = dist.group.WORLD
    total = functional.all_reduce(x * 2, "sum", everybody)
    gathered = functional.all_gather_tensor(total + 1, 0, everybody)
    return functional.reduce_scatter_tensor(gathered, "sum", 0, everybody) - x


def functional_collectives(rank: int, size: int) -> tuple[list[float], list[float]]:
    x = torch.arange(12.0) + rank
    compiled = torch.compile(_eager, fullgraph=True, backend="aot_eager")
    return _eager(x).tolist(), compiled(x).tolist()


@pytest.mark.parametrize("layout", ["aa", "ab"])
def test_functional_collectives_eager_and_compiled(job: Callable[..., Job], layout: str) -> None:
    for rank, (eager, compiled) in enumerate(values(job(layout), functional_collectives)):
        total = 2 * (2 * torch.arange(12.0) + 1)
        assert eager == ((total + 1) * 2 - (torch.arange(12.0) + rank)).tolist()
        assert compiled == eager


def save_and_load(rank: int, size: int, folder: str) -> bool:
    def sharded(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return fully_shard(torch.nn.Linear(33, 17), mesh=init_device_mesh("cpu", (size,)))

    first, second = sharded(1), sharded(2)
    checkpoint.save({"model": first.state_dict()}, checkpoint_id=folder)
    state = {"model": second.state_dict()}
    differed = not torch.equal(state["model"]["weight"].full_tensor(), first.weight.full_tensor())
    checkpoint.load(state, checkpoint_id=folder)
    second.load_state_dict(state["model"])
    same = torch.equal(second.weight.full_tensor(), first.weight.full_tensor())
    return differed and same


def test_distributed_checkpoint(job: Callable[..., Job], tmp_path: Path) -> None:
    assert values(job("aab"), save_and_load, str(tmp_path / "saved")) == [True] * 3


def beside_gloo(rank: int, size: int) -> tuple[float, float, str]:
    gloo, ours = dist.new_group(backend="gloo"), dist.new_group(backend="cpu:hetcomm")
    one, other = torch.full((5,), rank + 1.0), torch.full((5,), rank + 1.0)
    works = [dist.all_reduce(one, group=gloo, async_op=True)]
    works.append(dist.all_reduce(other, group=ours, async_op=True))
    for work in works:
        work.wait()
    return one[0].item(), other[0].item(), dist.get_backend(ours)


def test_beside_another_backend(job: Callable[..., Job]) -> None:
    assert values(job("ab"), beside_gloo) == [(3.0, 3.0, "cpu:hetcomm")] * 2


def many_threads(rank: int, size: int, seconds: float, seed: int) -> int:
    """Two threads on each of 8 groups; in a group they take turns, groups are independent."""
    groups = [dist.new_group() for _ in range(8)]
    end = time.monotonic() + seconds
    done, failures = [0] * len(groups), []

    def work(index: int, turn: int, turns: list[threading.Semaphore]) -> None:
        group = groups[index]
        chance = random.Random(seed * 8 + index)  # alike on all ranks and in both threads
        try:
            for call in range(10**9):
                kind, count = chance.randrange(4), chance.choice([1, 7, 1000, 30000])
                if call % 2 != turn:
                    continue
                turns[turn].acquire(timeout=60)
                go_on = torch.tensor([1 if time.monotonic() < end else 0])
                dist.all_reduce(go_on, dist.ReduceOp.MIN, group=group)
                if go_on.item():
                    _check(kind, count, call, group)
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


def _check(kind: int, count: int, call: int, group: dist.ProcessGroup) -> None:
    rank, size = group.rank(), group.size()
    mine = torch.full((count,), float(rank + call % 100))
    numbers = [float(r + call % 100) for r in range(size)]
    if kind == 0:
        dist.all_reduce(mine, group=group)
        assert (mine == sum(numbers)).all()
    elif kind == 1:
        gathered = torch.empty(size * count)
        dist.all_gather_into_tensor(gathered, mine, group=group)
        assert (gathered.view(size, count) == torch.tensor(numbers)[:, None]).all()
    elif kind == 2:
        root = call % size
        dist.broadcast(mine, group_src=root, group=group)
        assert (mine == numbers[root]).all()
    else:
        received = torch.empty_like(mine)
        pending = dist.isend(mine, group=group, group_dst=(rank + 1) % size)
        dist.recv(received, group=group, group_src=(rank - 1) % size)
        pending.wait()
        assert (received == numbers[(rank - 1) % size]).all()


@pytest.mark.parametrize("layout", ["aa", "abb", "abab"])
def test_threads_on_groups_of_their_own(job: Callable[..., Job], layout: str, seed: int) -> None:
    counts = values(job(layout, bound=SECONDS + 190), many_threads, SECONDS, seed)
    print(f"{layout}: {counts[0]} collectives by 16 threads on 8 groups in {SECONDS:g} s")
    assert len(set(counts)) == 1
