"""Process groups that a program builds itself, without init_process_group(), as torchft does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values

import hetcomm
from hetcomm import _attempts

CPU = torch.device("cpu")
BOUND = timedelta(seconds=60)


def built(store: dist.Store, rank: int, size: int) -> tuple[dist.ProcessGroup, dist.Backend]:
    """The program that docs/torch.md shows."""
    backend = hetcomm.ProcessGroupHetcomm(store, rank, size, BOUND, device=CPU)
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    group._register_backend(CPU, dist.ProcessGroup.BackendType.CUSTOM, backend)
    return group, backend


def check(group: dist.ProcessGroup, rank: int, size: int) -> None:
    data = torch.full((1000,), rank + 1.0)
    group.allreduce([data]).wait()
    assert (data == sum(range(1, size + 1))).all()
    group.broadcast(data.fill_(rank), 1).wait()
    assert (data == 1).all()
    gathered = [torch.zeros(2) for _ in range(size)]
    group.allgather([gathered], [torch.full((2,), float(rank))]).wait()
    assert [one[0].item() for one in gathered] == list(range(size))
    if rank == 0:
        group.send([torch.ones(3)], 1, 7).wait()
    elif rank == 1:
        received = torch.zeros(3)
        group.recv([received], 0, 7).wait()
        assert received.tolist() == [1, 1, 1]
    group.barrier().wait()


def by_hand(rank: int, size: int, path: str) -> None:
    """Several groups in one store, one after another. All but the last end by abort, as after a
    failure."""
    assert not dist.is_initialized()
    store = dist.FileStore(path, size)
    for attempt in range(3):
        group, backend = built(dist.PrefixStore(f"attempt/{attempt}", store), rank, size)
        assert type(backend) is hetcomm.ProcessGroupHetcomm
        assert (backend.rank(), backend.size(), backend.name()) == (rank, size, "hetcomm")
        assert group._get_backend(CPU) is backend
        check(group, rank, size)
        pending = group.recv([torch.zeros(3)], (rank + 1) % size, 0)  # no rank sends this message
        backend.abort()
        with pytest.raises(hetcomm.AbortedError):
            pending.wait()
        with pytest.raises(hetcomm.AbortedError):
            group.barrier().wait()
    group, backend = built(dist.PrefixStore("last", store), rank, size)
    check(group, rank, size)
    backend.shutdown()


def run_two(program: Callable[..., None], argument: Any) -> None:
    """Runs program(rank, 2, argument) as two processes."""
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=program, args=(rank, 2, argument)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(120)
        if one.exitcode is None:
            one.kill()
    assert [one.exitcode for one in ranks] == [0, 0]


def test_groups_can_be_built_by_hand(tmp_path: Path) -> None:
    run_two(by_hand, str(tmp_path / "store"))


def with_a_late_rank(rank: int, size: int, port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, size, is_master=False, timeout=BOUND)
    time.sleep(3 * rank)
    group, backend = built(store, rank, size)
    check(group, rank, size)
    backend.shutdown()


def test_waiting_for_a_late_rank_fills_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run_two(with_a_late_rank, store.port)
    assert "c10d" not in capfd.readouterr().err


def serve(port: Any) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port.send(store.port)
    time.sleep(BOUND.total_seconds())  # serves until the test kills this process


def test_a_store_whose_server_stands_still_delays_no_timeout() -> None:
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    server = spawn.Process(target=serve, args=(sender,), daemon=True)
    server.start()
    sender.close()  # recv() ends with the server
    store = dist.TCPStore("127.0.0.1", receiver.recv(), is_master=False, timeout=BOUND)
    assert server.pid
    stop = threading.Timer(1.0, os.kill, (server.pid, signal.SIGSTOP))
    stop.start()
    try:
        start = time.monotonic()
        with pytest.raises(hetcomm.TimeoutError, match="is not stopped"):
            hetcomm.ProcessGroupHetcomm(store, 0, 2, timedelta(seconds=3), device=CPU)
        assert time.monotonic() - start < 10
    finally:
        stop.join()
        server.kill()


def in_ddp(rank: int, size: int) -> None:
    """A model over a group built by hand. The default group is gloo's."""
    store = dist.PrefixStore("by hand", dist.distributed_c10d._get_default_store())
    group, _ = built(store, rank, size)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=group)
    model(torch.full((3, 4), float(rank))).sum().backward()
    mean = 3 * sum(range(size)) / size
    gradient = model.module.weight.grad
    assert gradient is not None and torch.equal(gradient, torch.full((2, 4), mean))


def test_a_model_trains_over_a_group_built_by_hand(job: Callable[..., Job]) -> None:
    values(job("aa", backend="gloo"), in_ddp)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rank": 3}, "rank"),
        ({"device": "meta"}, 'type "cpu" or "cuda"; got meta'),
        ({"device": "gpu"}, "expected a torch.device, or None"),
    ],
)
def test_impossible_groups_are_rejected(arguments: dict[str, Any], words: str) -> None:
    given = {"store": dist.HashStore(), "rank": 0, "size": 1, **arguments}
    with pytest.raises(hetcomm.InvalidArgumentError, match=words):
        hetcomm.ProcessGroupHetcomm(**given)


# torch makes other numbers of them, because its own overflow.
LONGEST = (timedelta.max, timedelta(days=200_000_000))


@pytest.mark.parametrize("longest", LONGEST)
def test_the_longest_timeout_is_a_timeout(longest: timedelta, monkeypatch: Any) -> None:
    options = dist.AllreduceOptions()
    options.timeout = longest
    backend = hetcomm.ProcessGroupHetcomm(dist.HashStore(), 0, 1, longest, name="alone")
    backend.allreduce([torch.ones(2)], options).wait(longest)
    backend.shutdown()
    told = []
    monkeypatch.setattr(
        _attempts, "store_of_attempt", lambda *given: told.append(given) or given[0]
    )
    dist.init_process_group(
        "hetcomm", store=dist.HashStore(), rank=0, world_size=1, timeout=longest
    )
    try:
        dist.all_reduce(torch.ones(2))
        dist.distributed_c10d._set_pg_timeout(longest)
    finally:
        dist.destroy_process_group()
    assert told and all(seconds == 1e9 for _, _, _, seconds, _ in told)


def test_a_negative_timeout_is_rejected() -> None:
    wrong = timedelta(seconds=-1)
    options = dist.AllreduceOptions()
    options.timeout = wrong
    refused = pytest.raises(
        hetcomm.InvalidArgumentError, match="timeout: expected 0 seconds or more"
    )
    with refused:
        hetcomm.ProcessGroupHetcomm(dist.HashStore(), 0, 1, wrong)
    backend = hetcomm.ProcessGroupHetcomm(dist.HashStore(), 0, 1, BOUND, name="negative")
    with refused:
        backend.set_timeout(wrong)
    with refused:
        backend.allreduce([torch.ones(2)], options)
    backend.shutdown()
    backend = hetcomm.ProcessGroupHetcomm(dist.HashStore(), 0, 1, BOUND, name="again")
    work = backend.allreduce([torch.ones(2)])
    with refused:
        work.wait(wrong)
    work.wait()
    backend.shutdown()
    with refused:
        dist.init_process_group(
            "hetcomm", store=dist.HashStore(), rank=0, world_size=1, timeout=wrong
        )
