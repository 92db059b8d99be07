"""Early ends of operations and groups: timeouts, failed futures, shutdown(). Declared features."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch.distributed.distributed_c10d import _get_default_group, _get_default_store

import hetcomm

CPU = torch.device("cpu")


def within(seconds: float) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=seconds)
    return options


def alone(rank: int, size: int) -> list[str]:
    """Rank 1 makes none of the calls, so those of rank 0 end by their timeouts."""
    groups = [dist.new_group()._get_backend(CPU) for _ in range(3)]
    texts = []
    if rank == 0:
        one, group, lanes = groups
        with pytest.raises(hetcomm.TimeoutError) as raised:
            one.allreduce([torch.ones(3)], within(1)).wait()
        texts.append(str(raised.value))

        group.set_timeout(timedelta(seconds=2))
        assert group.options._timeout == timedelta(seconds=2)
        with pytest.raises(hetcomm.TimeoutError) as raised:
            group.allreduce([torch.ones(3)]).wait()
        texts.append(str(raised.value))

        works = [lanes.allreduce([torch.ones(3)], within(60)) for _ in range(4)]
        last = lanes.allreduce([torch.ones(3)], within(1))  # behind these, without a wait
        end = time.monotonic() + 30
        while not all(work.is_completed() for work in [*works, last]):
            assert time.monotonic() < end, [work.is_completed() for work in [*works, last]]
            time.sleep(0.01)
        texts.append(str(last.exception()))
        _get_default_store().set("over", "")
    else:
        _get_default_store().wait(["over"], timedelta(seconds=90))
    dist.barrier()  # other groups continue
    return texts


def test_operations_and_groups_have_timeouts(job: Callable[..., Job]) -> None:
    one, group, behind = values(job("aa"), alone)[0]
    assert "no completion within 1 s" in one
    assert "no completion within 2 s" in group
    assert "no completion within 1 s, waiting for an earlier operation" in behind


def failed(rank: int, size: int) -> None:
    group = dist.new_group()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        future = work.get_future()
        child = future.then(lambda done: done.value())
        group._get_backend(CPU).abort()
        for look in (future.wait, future.wait, future.value, work.wait, work.wait):
            with pytest.raises(hetcomm.AbortedError, match="torch asked for it"):
                look()
        with pytest.raises(RuntimeError, match="torch asked for it"):
            child.wait()
        with pytest.raises(RuntimeError):
            work._get_future_result() if hasattr(work, "_get_future_result") else (
                work.get_future_result()
            )
    dist.barrier()


def test_futures_of_failed_operations_raise(job: Callable[..., Job]) -> None:
    values(job("aa"), failed)


def shut_down(rank: int, size: int) -> str:
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    group.shutdown()
    group.shutdown()  # changes nothing
    with pytest.raises(hetcomm.AbortedError) as raised:
        dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()
    return str(raised.value)


def test_shutdown_ends_pending_operations(job: Callable[..., Job]) -> None:
    for text in values(job("ab"), shut_down):
        assert "used afterwards" in text


def abilities(rank: int, size: int) -> dict[str, bool]:
    backend = _get_default_group()._get_backend(CPU)
    names = [name for name in dir(backend) if name.startswith("supports_")]
    found = {name.removeprefix("supports_"): getattr(backend, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, bool)}


def test_supported_features_are_declared(job: Callable[..., Job]) -> None:
    expected = {"coalescing": True, "shrinking": True, "splitting": True, "time_estimate": False}
    found = values(job("a"), abilities)[0]
    assert "coalescing" in found
    assert found == {name: value for name, value in expected.items() if name in found}
