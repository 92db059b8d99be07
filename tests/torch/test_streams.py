"""Tensors of an emulated device with streams: order of operations, waits, and lifetime of memory.

torch queues all computations on the device in its current stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import emulated_device
import pytest
import torch
import torch.distributed as dist
from collectives import failures_on
from ranks import Job, logs, values
from stream_programs import (
    COUNT,
    PROGRAMS,
    aborted,
    closed,
    full,
    home,
    late,
    messages,
    on_device,
    prepare,
    side,
    sum_of,
    until,
    waiting_leaves_the_host_alone,
)  # fmt: skip
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from vendors import environments

import hetcomm

pytestmark = emulated_device.needed

# Letters of hosts and vendors: one native island; staged to a CPU rank, and to another vendor.
LAYOUTS = [("aa", "nn"), ("ab", "nc"), ("ab", "na")]
ALONE = ("a", "n")


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    emulated_device.build()


def _job(job: Callable[..., Job], hosts: str, vendors: str, **settings: Any) -> Job:
    backend = f"cpu:hetcomm,{emulated_device.NAME}:hetcomm"
    return job(
        hosts, environments=environments(vendors), prepare=prepare, backend=backend, **settings
    )


def run_all(rank: int, size: int, native: bool) -> None:
    programs = [program for program in PROGRAMS if size > 1 or program is not messages]
    for program in [*programs, *([waiting_leaves_the_host_alone] if native else [])]:
        try:
            program(rank, size)
        except BaseException as error:
            error.add_note(program.__name__)
            raise


@pytest.mark.parametrize(("hosts", "vendors"), [ALONE, *LAYOUTS])
def test_collectives_follow_the_stream(job: Callable[..., Job], hosts: str, vendors: str) -> None:
    values(_job(job, hosts, vendors), run_all, set(vendors) == {"n"})


def run_cases(rank: int, size: int, seed: int, layout: str) -> list[str]:
    return failures_on(home(), rank, size, seed, layout)


@pytest.mark.parametrize(("hosts", "vendors"), [ALONE, *LAYOUTS])
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
    until(lambda: all(map(device.is_free, addresses)), "never given back")
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


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_a_failure_shows_and_frees_the_stream(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    text = values(_job(job, hosts, vendors, bound=120), aborted)[0]
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
    assert bool((tensor == sum_of(size)).all())
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    assert [part.tolist() for part in parts] == [[float(peer)] * 3 for peer in range(size)]
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    large = torch.full((400_000,), float(rank + 1))
    with side():
        dist.all_reduce(large)
    assert bool((large == sum_of(size)).all())
    dropped = torch.full((COUNT,), float(rank + 1))
    stream = side()
    late(rank)
    with stream:
        dist.all_reduce(dropped, async_op=True)
    until(lambda: bool((dropped == sum_of(size)).all()), "a result without a wait was not written")
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
