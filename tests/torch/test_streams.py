"""Tensors of an emulated device with streams: order of operations, waits, and lifetime of memory.

torch queues all computations on the device in its current stream.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import emulated_device
import pytest
import torch
import torch.distributed as dist
from collectives import failures_on
from ranks import Job, logs, values
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from vendors import environments

import hetcomm

pytestmark = emulated_device.needed

# Letters of hosts and vendors: one native island; staged to a CPU rank, and to another vendor.
LAYOUTS = [("aa", "nn"), ("ab", "nc"), ("ab", "na")]
COUNT = 5000
LATE = 150  # milliseconds by which a rank is late, so that a missing wait gives wrong results
BOUND = timedelta(seconds=30)


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    emulated_device.build()


def prepare() -> None:
    emulated_device.load()


def _job(job: Callable[..., Job], hosts: str, vendors: str, **settings: Any) -> Job:
    backend = f"cpu:hetcomm,{emulated_device.NAME}:hetcomm"
    return job(
        hosts, environments=environments(vendors), prepare=prepare, backend=backend, **settings
    )


def home() -> str:
    return "cpu" if os.environ["HETCOMM_VENDOR"] == "cpu" else emulated_device.NAME


def on_device() -> bool:
    return home() != "cpu"


def late(rank: int) -> None:
    """Delays the later work of the current stream, most of all on rank 1."""
    if on_device():
        emulated_device.load().delay(LATE * (1 + rank))


def side() -> Any:
    """A stream that begins after the work of the current one."""
    if not on_device():
        return nullcontext()
    stream = torch.Stream(device=home())
    stream.wait_stream(torch.accelerator.current_stream())
    return stream


def closed() -> Any:
    return emulated_device.load().closed() if on_device() else nullcontext()


def full(value: float, count: int = COUNT) -> Tensor:
    return torch.empty(count, device=home()).fill_(value)


def _sum(size: int) -> float:
    return size * (size + 1) / 2


def _until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + BOUND.total_seconds()
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0)


def waits_for_the_callers_stream(rank: int, size: int) -> None:
    tensor = full(0)
    with side():
        late(rank)
        tensor.fill_(rank + 1)
        work = dist.all_reduce(tensor, async_op=True)
    work.wait()  # on another stream than the call's
    assert bool((tensor == _sum(size)).all()), tensor


def a_synchronous_call_orders_the_stream(rank: int, size: int) -> None:
    with side():
        late(rank)
        tensor = full(rank + 1)
        dist.all_reduce(tensor)
        tensor.mul_(2)
        assert bool((tensor == 2 * _sum(size)).all()), tensor


def waiting_leaves_the_host_alone(rank: int, size: int) -> None:
    """In a native island. Other operations need the host, so wait() waits for the host there."""
    tensor = full(0)
    with closed():
        tensor.fill_(rank + 1)
        work = dist.all_reduce(tensor, async_op=True)
        if on_device():
            work.wait()
            tensor.mul_(2)
            assert not work.is_completed(), "it ended before the tensor was filled"
            assert not torch.accelerator.current_stream().query()
    if not on_device():
        work.wait()
        tensor.mul_(2)
    assert bool((tensor == 2 * _sum(size)).all()), tensor


def submitting_leaves_the_host_alone(rank: int, size: int) -> None:
    tensor, parts = full(0), [full(-1) for _ in range(size)]
    with closed():
        tensor.fill_(rank + 1)
        works = [dist.all_reduce(tensor, async_op=True)]
        works.append(dist.all_gather(parts, full(rank), async_op=True))
        futures = [work.get_future() for work in works]
        if on_device():
            assert not any(work.is_completed() for work in works), "it ended before it could begin"
    for work, future in zip(works, futures, strict=True):
        work.wait()
        assert future.done()
    assert bool((tensor == _sum(size)).all()), tensor
    assert [part.unique().tolist() for part in parts] == [[peer] for peer in range(size)]


def a_timeout_makes_the_host_wait(rank: int, size: int) -> None:
    late(rank)
    tensor = full(rank + 1)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait(BOUND)
    assert work.is_completed() and work.is_success()
    assert bool((tensor == _sum(size)).all()), tensor


def completion_shows_without_waiting(rank: int, size: int) -> None:
    late(rank)
    tensor = full(rank + 1)
    work = dist.all_reduce(tensor, async_op=True)
    _until(work.is_completed, "never completed")
    with side():
        assert bool((tensor == _sum(size)).all()), tensor


def futures(rank: int, size: int) -> None:
    late(rank)
    future = dist.all_reduce(full(rank + 1), async_op=True).get_future()
    result = future.then(lambda done: done.value()[0] * 2).wait()
    assert bool((result == 2 * _sum(size)).all()), result


def lists(rank: int, size: int) -> None:
    """Results that must be copied out of one buffer, after the operation."""
    late(rank)
    parts = [full(-1) for _ in range(size)]
    with side():
        dist.all_gather(parts, full(rank))
        assert [part.unique().tolist() for part in parts] == [[peer] for peer in range(size)]
    inputs = [full(10 * rank + peer) for peer in range(size)]
    late(rank)
    result = full(-1)
    work = dist.reduce_scatter(result, inputs, async_op=True)
    with side():
        work.wait()
        assert bool((result == 10 * (_sum(size) - size) + rank * size).all()), result


def back_to_back(rank: int, size: int) -> None:
    """Two streams take turns. Each call sees the results of the call before."""
    tensor, streams = full(1), [side(), side()]
    for call in range(12):
        with streams[call % 2]:
            if call % 5 == 0:
                late(rank)
            dist.all_reduce(tensor)
            tensor.sub_(size - 1)
            other = streams[(call + 1) % 2]
            if on_device():
                other.wait_stream(streams[call % 2])
    with streams[0]:
        assert bool((tensor == 1).all()), tensor


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, COUNT, 300_000):
        with side():
            late(rank)
            incoming = full(-1, count)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, full(rank, count), right),
                dist.P2POp(dist.irecv, incoming, left),
            ])  # fmt: skip
            for work in works:
                work.wait()
            incoming.add_(1)
            assert bool((incoming == left + 1).all()), f"{count} elements"


PROGRAMS = [
    waits_for_the_callers_stream, a_synchronous_call_orders_the_stream,
    submitting_leaves_the_host_alone, a_timeout_makes_the_host_wait,
    completion_shows_without_waiting, futures, lists, back_to_back, messages,
]  # fmt: skip


def run_all(rank: int, size: int, native: bool) -> None:
    for program in [*PROGRAMS, *([waiting_leaves_the_host_alone] if native else [])]:
        try:
            program(rank, size)
        except BaseException as error:
            error.add_note(program.__name__)
            raise


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_collectives_follow_the_stream(job: Callable[..., Job], hosts: str, vendors: str) -> None:
    values(_job(job, hosts, vendors), run_all, vendors == "nn")


def run_cases(rank: int, size: int, seed: int, layout: str) -> list[str]:
    return failures_on(home(), rank, size, seed, layout)


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_every_collective_dtype_and_op_is_correct(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    results = values(_job(job, hosts, vendors, bound=200), run_cases, seed, hosts + vendors)
    failures = [failure for result in results for failure in result]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])


def memory_stays(rank: int, size: int) -> None:
    """Python drops the tensors before the operation begins. Their memory stays."""
    if not on_device():
        output, parts = torch.empty(size * COUNT), [torch.empty(COUNT) for _ in range(size)]
        dist.all_gather_into_tensor(output, full(rank + 1))
        dist.all_gather(parts, full(rank + 1))
        return
    device = emulated_device.load()
    source, output = full(rank), full(-1, size * COUNT)
    torch.accelerator.synchronize()
    addresses = source.data_ptr(), output.data_ptr()
    with closed():
        source.fill_(rank + 1)
        dist.all_gather_into_tensor(output, source, async_op=True)
        del source, output
        assert not any(map(device.is_free, addresses)), "given away while it is in use"
        assert full(-1).data_ptr() != addresses[0]
    torch.accelerator.synchronize()
    _until(lambda: all(map(device.is_free, addresses)), "never given back")
    parts = [full(-1) for _ in range(size)]
    with closed():
        work = dist.all_gather(parts, full(rank + 1), async_op=True)
        assert all(device.recorded(part.data_ptr()) == 1 for part in parts)
    work.wait()
    assert [part[0].item() for part in parts] == list(range(1, size + 1))


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_memory_stays_until_the_operation_is_over(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    values(_job(job, hosts, vendors), memory_stays)


def aborted(rank: int, size: int) -> str:
    tensor = full(rank + 1)
    dist.all_reduce(tensor)
    torch.accelerator.synchronize() if on_device() else None
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        # An abort may also end an operation that is over here, but not yet at the peer.
        store.wait(["first is over"], BOUND)
        dist.distributed_c10d._abort_process_group()
        return "aborted"
    store.set("first is over", "")
    try:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()  # only the device's stream waits
        tensor.add_(1)
        work.wait(BOUND)
    except hetcomm.Error as error:
        torch.accelerator.synchronize() if on_device() else None  # the stream continues
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_a_failure_shows_and_frees_the_stream(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    text = values(_job(job, hosts, vendors, bound=60), aborted)[0]
    assert "rank 1" in text and "abort" in text, text


def train(rank: int, size: int) -> None:
    """Trains beside a process that has the data of all ranks."""

    def network(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(20, 90), nn.Tanh(), nn.LayerNorm(90), nn.Linear(90, 7))

    # Several buckets, so that their all-reduces overlap the backward pass.
    model = DistributedDataParallel(network(rank).to(home()), bucket_cap_mb=0.005)
    alone = network(0)  # DDP begins from rank 0's parameters
    data = [torch.Generator().manual_seed(100 + peer) for peer in range(size)]
    for _ in range(4):
        late(rank)
        batches = [torch.randn(8, 20, generator=one) for one in data]
        targets = [torch.randint(0, 7, (8,), generator=one) for one in data]
        mine = nn.functional.cross_entropy(
            model(batches[rank].to(home())), targets[rank].to(home())
        )
        both = nn.functional.cross_entropy(alone(torch.cat(batches)), torch.cat(targets))
        for trained, loss in ((model, mine), (alone, both)):
            trained.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter -= 0.2 * parameter.grad
    for ours, reference in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours.detach().cpu(), reference.detach(), atol=1e-5)


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_data_parallel_training_equals_one_process(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    values(_job(job, hosts, vendors), train)


def host_tensors(rank: int, size: int) -> None:
    tensor = torch.full((COUNT,), float(rank + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == _sum(size)).all())
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    assert [part.tolist() for part in parts] == [[float(peer)] * 3 for peer in range(size)]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    large = torch.full((400_000,), float(rank + 1))
    with side():
        dist.all_reduce(large)
    assert bool((large == _sum(size)).all())
    dropped = torch.full((COUNT,), float(rank + 1))
    stream = side()
    late(rank)
    with stream:
        dist.all_reduce(dropped, async_op=True)
    _until(lambda: bool((dropped == _sum(size)).all()), "a result without a wait was not written")
    dist.barrier()


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_host_tensors_are_copied_and_warned_about(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    made = _job(job, hosts, vendors)
    values(made, host_tensors)
    assert "a CPU tensor is copied to emulated nvidia GPU 0" in logs(made)[0], logs(made)


def elsewhere(rank: int, size: int) -> list[str]:
    texts = []
    for tensors in ([torch.ones(3, device=f"{home()}:5")], [full(1, 3), torch.ones(3 * size)]):
        try:
            if len(tensors) == 1:
                dist.all_reduce(tensors[0])
            else:
                dist.all_gather_into_tensor(tensors[1], tensors[0])
        except hetcomm.InvalidArgumentError as error:
            texts.append(str(error))
    tensor = full(1)
    dist.all_reduce(tensor)  # the group continues
    tensor.cpu()  # no rank leaves before the end
    return texts


def test_tensors_elsewhere_are_rejected(job: Callable[..., Job]) -> None:
    for rank, texts in enumerate(values(_job(job, "aa", "nn"), elsewhere)):
        assert len(texts) == 2, texts
        assert f"serves emulated:{rank}" in texts[0] and "emulated:5" in texts[0], texts
        assert "one device" in texts[1], texts
