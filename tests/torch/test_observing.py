"""Observing a group's operations and state: hooks, durations, errors, options."""

from __future__ import annotations

import copy
import os
import signal
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, logs, values
from torch.distributed.distributed_c10d import _get_default_group, _get_default_store

import hetcomm

CPU = torch.device("cpu")
has_errors = pytest.mark.skipif(
    not hasattr(torch._C._distributed_c10d, "ErrorType"),
    reason="this torch does not ask for a backend's error",
)


def hooked(rank: int, size: int) -> list[tuple[str, int]]:
    group = _get_default_group()
    infos: list[Any] = []
    dist.all_reduce(torch.ones(3))  # before there is a hook
    group._register_on_completion_hook(infos.append)
    with pytest.raises(hetcomm.InvalidArgumentError, match="expected one for each group"):
        group._register_on_completion_hook(print)
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
    del works  # no wait
    dist.broadcast(torch.ones(5), 0)
    work = (dist.irecv if rank == 0 else dist.isend)(torch.ones(5), 1 - rank)
    work.wait()
    group._wait_for_pending_works()
    for info in infos:
        assert info.time_finished >= info.time_started
        assert info.active_duration >= timedelta(0)
    return sorted((str(info.op_type).split(".")[-1], info.seq) for info in infos)


@pytest.mark.parametrize("layout", ["aa", "ab"])
def test_the_hook_is_called_for_each_operation(job: Callable[..., Job], layout: str) -> None:
    expected = [("ALLREDUCE", 2), ("ALLREDUCE", 3), ("ALLREDUCE", 4), ("BROADCAST", 5)]
    receives, sends = values(job(layout), hooked)
    assert receives == [*expected, ("RECV", 5)]
    assert sends == [*expected, ("SEND", 5)]


def raising(rank: int, size: int) -> float:
    def hook(info: Any) -> None:
        raise KeyError("of the hook")

    _get_default_group()._register_on_completion_hook(hook)
    total = torch.ones(3)
    for _ in range(3):
        dist.all_reduce(total)
    _get_default_group()._wait_for_pending_works()
    return total[0].item()


def test_a_raising_hook_is_reported_and_disturbs_no_operation(job: Callable[..., Job]) -> None:
    made = job("aa")
    assert values(made, raising) == [8.0, 8.0]
    assert "of the hook" in logs(made)[0]


def pending(rank: int, size: int) -> None:
    store, tensor = _get_default_store(), torch.full((300_000,), float(rank))
    if rank == 0:
        work = dist.irecv(tensor, 1)
        assert work is not None and not work.is_completed()
        store.set("waits", "")
        _get_default_group()._wait_for_pending_works()
        assert work.is_completed() and tensor[0] == 1
    else:
        store.wait(["waits"], timedelta(seconds=60))
        dist.send(tensor, 0)


@pytest.mark.parametrize("layout", ["aa", "ab"])
def test_pending_works_are_waited_for(job: Callable[..., Job], layout: str) -> None:
    values(job(layout), pending)


def timed(rank: int, size: int) -> list[float]:
    group, store = _get_default_group(), _get_default_store()
    untimed = dist.all_reduce(torch.ones(3), async_op=True)
    untimed.wait()
    with pytest.raises(hetcomm.InvalidArgumentError, match="_enable_collectives_timing"):
        untimed._get_duration()
    group._enable_collectives_timing()
    seen = []
    # Rank 1 begins later, by more than rank 0's clock can be off.
    begin = time.monotonic()
    if rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        with pytest.raises(hetcomm.InvalidArgumentError, match="got one under way"):
            work._get_duration()
        time.sleep(0.05)
        store.set("begun", "")
    else:
        store.wait(["begun"], timedelta(seconds=60))
        work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    seen += [work._get_duration(), 1000 * (time.monotonic() - begin)]
    with dist.distributed_c10d._coalescing_manager(group, CPU, async_ops=True) as manager:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3).int())
    manager.wait()
    return [*seen, *(work._get_duration() for work in manager.works)]


def test_works_report_their_duration(job: Callable[..., Job]) -> None:
    (waited, bound, *_), *others = results = values(job("aa"), timed)
    assert 50 <= waited <= bound
    for durations in results:
        assert all(duration > 0 for duration in durations), others


def killed(rank: int, size: int) -> list[str]:
    backend = _get_default_group()._get_backend(CPU)
    seen = [backend.get_error().name]
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + 60
    while backend.get_error().name == "SUCCESS" and time.monotonic() < end:
        time.sleep(0.01)
    return [*seen, backend.get_error().name]


@has_errors
def test_a_dead_rank_is_a_remote_error(job: Callable[..., Job]) -> None:
    outcomes = launch(job("aab", may_die=(2,)), killed)
    assert [outcome.value for outcome in outcomes[:2]] == [["SUCCESS", "REMOTE_ERROR"]] * 2, (
        outcomes
    )


def late(rank: int, size: int) -> list[str]:
    backend = _get_default_group()._get_backend(CPU)
    if rank == 0:
        backend.set_timeout(timedelta(seconds=3))
        with pytest.raises(TimeoutError):
            dist.all_reduce(torch.ones(3))
    end = time.monotonic() + 60
    while backend.get_error().name == "SUCCESS" and time.monotonic() < end:
        time.sleep(0.01)
    seen = [backend.get_error().name]
    fresh = dist.new_group([rank], use_local_synchronization=True)._get_backend(CPU)
    fresh.abort()
    return [*seen, fresh.get_error().name]


@has_errors
def test_timeouts_and_aborts_have_their_own_results(job: Callable[..., Job]) -> None:
    assert values(job("aa"), late) == [["TIMEOUT", "COMM_ERROR"]] * 2


def options(rank: int, size: int) -> list[str]:
    own = _get_default_group()._get_backend(CPU).options
    twin = copy.deepcopy(own)
    assert twin is not own and twin.backend == "hetcomm" and twin._timeout == own._timeout
    texts = []
    foreign = torch._C._distributed_c10d.Backend.Options("nccl", timedelta(seconds=5))
    for given in ({"timeout": 3}, foreign):
        with pytest.raises(hetcomm.InvalidArgumentError) as raised:
            dist.new_group(pg_options=given)
        texts.append(str(raised.value))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        group = dist.new_group(pg_options=twin, timeout=twin._timeout)
        assert not [warning for warning in caught if "hetcomm" in str(warning.message)]
        dist.new_group(pg_options=twin, timeout=timedelta(seconds=7))
    texts += [str(warning.message) for warning in caught if "hetcomm" in str(warning.message)]
    # Here the options are for the other backend.
    dist.new_group(backend="cpu:hetcomm,cuda:gloo", pg_options=foreign)
    total = torch.ones(3)
    dist.all_reduce(total, group=group)
    assert total[0] == size
    return texts


def test_options_of_other_backends_are_rejected(job: Callable[..., Job]) -> None:
    for texts in values(job("aa"), options):
        assert len(texts) == 3, texts
        assert "hetcomm.Options, or a copy of the options of another hetcomm group" in texts[0]
        assert "hetcomm group; got dict" in texts[0]
        assert "of nccl; leave pg_options out" in texts[1]
        assert "0:01:00, is not used" in texts[2] and "0:00:07" in texts[2]
