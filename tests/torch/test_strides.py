"""Tensors that are not row-major, differently on each rank: only their elements count."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import emulated_device
import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from vendors import environments


def kinds(elements: Tensor, device: str = "cpu") -> list[Tensor]:
    """The same elements in different layouts: by row, by column, every other word, parts of longer
    rows."""
    return [
        elements.to(device, copy=True),
        elements.t().clone(memory_format=torch.contiguous_format).to(device).t(),
        torch.stack([elements, elements + 1000], -1).to(device).unbind(-1)[0],
        torch.cat([elements, elements + 1000], 1).to(device)[:, : elements.shape[1]],
    ]


def every_collective(rank: int, size: int, asynchronous: bool, device: str = "cpu") -> list[str]:
    """Results that differ from those of row-major tensors, and writes beside the tensors."""
    every = [torch.arange(12.0).reshape(4, 3) + 100 * each for each in range(size)]
    mine, total, root = every[rank], sum(every), size - 1
    failures: list[str] = []

    def run(call: Callable[..., dist.Work | None], *arguments: object, **named: object) -> None:
        work = call(*arguments, **named, async_op=asynchronous)
        if asynchronous and work is not None:
            work.wait()

    def check(name: str, there: Tensor, want: Tensor) -> None:
        if not torch.equal(got := there.cpu(), want):
            failures.append(f"rank {rank}: {name} gave {got}, expected {want}")

    def stacked(tensors: list[Tensor]) -> Tensor:
        return torch.stack([tensor.cpu() for tensor in tensors])

    for shift in range(len(kinds(mine))):

        def strided(elements: Tensor, more: int = 0, shift: int = shift) -> Tensor:
            every_kind = kinds(elements, device)
            return every_kind[(shift + rank + more) % len(every_kind)]

        def room(count: int) -> list[Tensor]:
            return [strided(torch.zeros(4, 3), each) for each in range(count)]

        everyone = [strided(one, each) for each, one in enumerate(every)]
        x = strided(mine)
        run(dist.all_reduce, x)
        check("all_reduce", x, total)
        if x._base is not None and x._base.numel() > x.numel():
            base = x._base.cpu()
            others = base[..., 1] if base.dim() == 3 else base[:, 3:]
            check("beside all_reduce", others, mine + 1000)
        x = strided(mine)
        run(dist.broadcast, x, root)
        check("broadcast", x, every[root])
        x = strided(mine)
        run(dist.reduce, x, root)
        if rank == root:
            check("reduce", x, total)
        outputs = room(size)
        run(dist.all_gather, outputs, strided(mine))
        check("all_gather", stacked(outputs), torch.stack(every))
        columns = torch.zeros(12, size).to(device)
        run(dist.all_gather, list(columns.unbind(1)), mine.flatten().to(device))
        check("all_gather of columns", columns, torch.stack(every).reshape(size, 12).t())
        x = strided(torch.zeros(4 * size, 3))
        run(dist.all_gather_into_tensor, x, strided(mine, 1))
        check("all_gather_into_tensor", x, torch.cat(every))
        outputs = room(size) if rank == root else []
        run(dist.gather, strided(mine), outputs or None, dst=root)
        if rank == root:
            check("gather", stacked(outputs), torch.stack(every))
        x = strided(torch.zeros(4, 3))
        run(dist.scatter, x, everyone if rank == root else None, src=root)
        check("scatter", x, mine)
        x = strided(torch.zeros(4, 3))
        run(dist.reduce_scatter, x, everyone)
        check("reduce_scatter", x, mine * size)
        x = strided(torch.zeros(4, 3))
        run(dist.reduce_scatter_tensor, x, strided(torch.cat(every), 1))
        check("reduce_scatter_tensor", x, mine * size)
        outputs = room(size)
        run(dist.all_to_all, outputs, everyone)
        check("all_to_all", stacked(outputs), mine.expand(size, 4, 3))
        x = strided(torch.zeros(4 * size, 3))
        run(dist.all_to_all_single, x, strided(torch.cat(every), 1))
        check("all_to_all_single", x, mine.repeat(size, 1))
        if size > 1:
            x = strided(torch.zeros(4, 3))
            ring = [
                dist.P2POp(dist.isend, strided(mine), (rank + 1) % size),
                dist.P2POp(dist.irecv, x, (rank - 1) % size),
            ]
            for work in dist.batch_isend_irecv(ring):
                work.wait()
            check("recv", x, every[rank - 1])
    return failures


def synchronous_or_not(rank: int, size: int) -> list[str]:
    return [one for way in (False, True) for one in every_collective(rank, size, way)]


@pytest.mark.parametrize("layout", ["a", "aa", "aab"])
def test_strides_change_no_result(job: Callable[..., Job], layout: str) -> None:
    failures = [one for of in values(job(layout), synchronous_or_not) for one in of]
    assert not failures, "\n".join(failures[:20])


def prepare() -> None:
    emulated_device.load()


def on_devices(rank: int, size: int) -> list[str]:
    """Also tensors of the host on a device's rank, which are copied to the device and back."""
    home = "cpu" if os.environ["HETCOMM_VENDOR"] == "cpu" else emulated_device.NAME
    return [one for of in (home, "cpu") for one in every_collective(rank, size, True, of)]


@emulated_device.needed[0]
@emulated_device.needed[1]
def test_strides_change_no_result_on_devices(job: Callable[..., Job]) -> None:
    emulated_device.build()
    backend = f"cpu:hetcomm,{emulated_device.NAME}:hetcomm"
    ranks = job("ab", environments=environments("nc"), prepare=prepare, backend=backend)
    failures = [one for of in values(ranks, on_devices) for one in of]
    assert not failures, "\n".join(failures[:20])


def negated(rank: int, size: int) -> list[list[float]]:
    """Tensors that torch negates or conjugates only when it reads them. torch.distributed itself
    would copy them and lose the result."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    x, y = torch._neg_view(torch.full((2,), -1.0 - rank)), torch.full((2,), -1j * rank).conj()
    backend.allreduce([x]).wait()
    backend.allreduce([y]).wait()
    return [x.tolist(), y.imag.tolist()]


def test_lazily_negated_tensors_are_resolved(job: Callable[..., Job]) -> None:
    assert values(job("ab"), negated) == [[[3.0, 3.0], [1.0, 1.0]]] * 2


def batches(rank: int, size: int) -> list[str]:
    every = [torch.arange(12.0).reshape(4, 3) + 100 * each for each in range(size)]
    pairs: list[tuple[Tensor, Tensor]] = []
    cpu = torch.device("cpu")
    reduced = kinds(every[rank])
    with _coalescing_manager(dist.group.WORLD, cpu):
        for tensor in reduced:
            dist.all_reduce(tensor)
    pairs += [(tensor, sum(every)) for tensor in reduced]
    wholes, parts = kinds(torch.zeros(4 * size, 3)), kinds(every[rank])
    with _coalescing_manager(dist.group.WORLD, cpu):
        for whole, part in zip(wholes, reversed(parts), strict=True):
            dist.all_gather_into_tensor(whole, part)
    pairs += [(whole, torch.cat(every)) for whole in wholes]
    wholes, parts = kinds(torch.cat(every)), kinds(torch.zeros(4, 3))
    with _coalescing_manager(dist.group.WORLD, cpu):
        for whole, part in zip(wholes, reversed(parts), strict=True):
            dist.reduce_scatter_tensor(part, whole)
    pairs += [(part, every[rank] * size) for part in parts]
    lists = [kinds(torch.zeros(4, 3)) for _ in range(size)]
    backend = dist.group.WORLD._get_backend(cpu)
    backend.allgather_coalesced(lists, kinds(every[rank])).wait()
    pairs += [(one, every[each]) for each, of in enumerate(lists) for one in of]
    return [f"{got} instead of {want}" for got, want in pairs if not torch.equal(got, want)]


def test_strides_change_no_batch(job: Callable[..., Job]) -> None:
    failures = [one for of in values(job("aab"), batches) for one in of]
    assert not failures, "\n".join(failures[:20])


def convolutions(rank: int, size: int) -> None:
    """ZeRO broadcasts each parameter, here all channels-last. After 3 steps they equal gloo's."""

    def trained(backend: str) -> Iterator[Tensor]:
        group = dist.new_group(backend=backend)
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3))
        network = DistributedDataParallel(
            layers.to(memory_format=torch.channels_last), process_group=group
        )
        optimizer = ZeroRedundancyOptimizer(
            network.parameters(), torch.optim.SGD, process_group=group, lr=0.01
        )
        for step in range(3):
            inputs = torch.randn(
                2, 3, 8, 8, generator=torch.Generator().manual_seed(9 * step + rank)
            )
            optimizer.zero_grad()
            network(inputs.to(memory_format=torch.channels_last)).square().mean().backward()
            optimizer.step()
        return (parameter.detach() for parameter in network.parameters())

    for ours, theirs in zip(trained("hetcomm"), trained("gloo"), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_zero_redundancy_optimizer_keeps_channels_last_parameters(job: Callable[..., Job]) -> None:
    values(job("ab"), convolutions)
