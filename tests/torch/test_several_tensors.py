"""Several tensors of one rank in a call of c10d, with the results of gloo where gloo is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch import Tensor

import hetcomm

CPU = torch.device("cpu")


def options(kind: type, **settings: Any) -> Any:
    made = kind()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def mine(rank: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [(torch.arange(6).reshape(2, 3) % (4 + i) + rank + i).to(dtype) for i in range(3)]


def everything(rank: int, size: int, backend: Any) -> list[tuple[str, list[Tensor]]]:
    """The results of each call with this rank's tensors, by name."""
    found: list[tuple[str, list[Tensor]]] = []
    for dtype in (torch.float32, torch.float64, torch.int32, torch.uint8):
        for op in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
            if dtype.is_floating_point and op.startswith("B"):
                continue
            given = mine(rank, dtype)
            backend.allreduce(
                given, options(dist.AllreduceOptions, reduceOp=getattr(dist.ReduceOp, op))
            ).wait()
            found.append((f"allreduce {op} {dtype}", given))
    for root in range(3):
        given = mine(rank)
        backend.broadcast(
            given, options(dist.BroadcastOptions, rootRank=size - 1, rootTensor=root)
        ).wait()
        found.append((f"broadcast {root}", given))
    lists = [[torch.zeros(2, 3) for _ in range(3 * size)] for _ in range(3)]
    backend.allgather(lists, mine(rank)).wait()
    found.append(("allgather", [tensor for one in lists for tensor in one]))
    given = [mine(rank)[0], mine(rank)[1].reshape(3, 2)[:1]]
    backend.allreduce_coalesced(given).wait()
    found.append(("allreduce_coalesced", given))
    given = [torch.sparse_coo_tensor([[rank, 3]], [1.0 + i, 2.0], (5,)) for i in range(2)]
    backend.allreduce(given).wait()
    found.append(("sparse", [one.to_dense() for one in given]))
    return found


def differing_from_gloo(rank: int, size: int) -> list[str]:
    """The calls whose results differ from gloo's."""
    ours = everything(rank, size, dist.group.WORLD._get_backend(CPU))
    gloo = everything(rank, size, dist.new_group(backend="gloo")._get_backend(CPU))
    return [
        f"{name}: {got}, gloo has {want}"
        for (name, got), (_, want) in zip(ours, gloo, strict=True)
        if not all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    ]


@pytest.mark.parametrize("hosts", ["aa", "aba"])
def test_several_tensors_work_as_on_gloo(job: Callable[..., Job], hosts: str) -> None:
    assert values(job(hosts), differing_from_gloo) == [[]] * len(hosts)


def beyond_gloo(rank: int, size: int) -> None:
    """Calls for which gloo has another result for each tensor: averages, and strides."""
    backend = dist.group.WORLD._get_backend(CPU)
    given = mine(rank)
    total = sum(sum(mine(each)) for each in range(size))
    work = backend.allreduce(given, options(dist.AllreduceOptions, reduceOp=dist.ReduceOp.AVG))
    work.wait()
    assert all(torch.equal(tensor, total / size) for tensor in given)
    first, second = mine(rank)[:2]
    strided = [first.t().contiguous().t(), torch.stack([second, second], -1)[..., 0]]
    backend.allreduce(strided).wait()
    total = sum(sum(mine(each)[:2]) for each in range(size))
    assert all(torch.equal(tensor, total) for tensor in strided)
    mixed = [first.t().contiguous().t(), second.clone()]
    backend.broadcast(mixed, options(dist.BroadcastOptions, rootRank=0, rootTensor=1)).wait()
    assert all(torch.equal(tensor, mine(0)[1]) for tensor in mixed)


def test_calls_beyond_gloo_are_served(job: Callable[..., Job]) -> None:
    values(job("aa"), beyond_gloo)


def wrong(rank: int, size: int) -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    two = [torch.ones(3), torch.ones(3)]
    unlike = [torch.ones(3), torch.ones(2)]
    kinds = [torch.ones(3), torch.ones(3, dtype=torch.int32)]
    lists = [[torch.ones(3) for _ in range(2 * size)] for _ in range(2)]
    broadcast = options(dist.BroadcastOptions, rootTensor=2)
    sparse = [torch.eye(3).to_sparse(), torch.ones(3)]
    cases: list[tuple[str, Callable[[], object]]] = [
        ("one dtype and shape", lambda: backend.allreduce(unlike)),
        ("one dtype and shape", lambda: backend.allreduce(kinds)),
        ("one dtype and shape", lambda: backend.broadcast(unlike)),
        ("one dtype and shape", lambda: backend.allreduce(sparse)),
        ("root tensor from 0 to 1, got 2", lambda: backend.broadcast(two, broadcast)),
        ("for each of 2 inputs, got 1", lambda: backend.allgather(lists[:1], two)),
        (f"list of {2 * size} tensors", lambda: backend.allgather([lists[0], lists[0][1:]], two)),
        ("expected one tensor, got 0", lambda: backend.allreduce([])),
        ("expected one tensor, got 2", lambda: backend.reduce(two, options(dist.ReduceOptions))),
    ]
    for words, call in cases:
        with pytest.raises(hetcomm.InvalidArgumentError, match=words):
            call()
    dist.barrier()


def test_incompatible_tensors_are_rejected(job: Callable[..., Job]) -> None:
    values(job("aa"), wrong)
