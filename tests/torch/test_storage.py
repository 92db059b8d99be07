"""Tensors without the memory that they name: an error, never a crash."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, check_texts, refusal, values
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.two_tensor import TwoTensor

import hetcomm

CPU = torch.device("cpu")
COUNT = 6


def freed() -> Tensor:
    """As FSDP frees parameters."""
    tensor = torch.ones(COUNT)
    tensor.untyped_storage().resize_(0)
    return tensor


def cut() -> Tensor:
    """The storage holds all elements but the last."""
    memory = torch.ones(3 * COUNT)
    tensor = memory[3 : 3 + 2 * COUNT : 2]
    memory.untyped_storage().resize_(4 * (3 + 2 * COUNT - 2))
    return tensor


def cut_view() -> Tensor:
    memory = torch.ones(3 * COUNT)
    tensor = memory[2 * COUNT :]
    memory.untyped_storage().resize_(4 * COUNT)
    return tensor


def fake() -> Tensor:
    with FakeTensorMode():
        return torch.ones(COUNT)


def functional() -> Tensor:
    return torch._to_functional_tensor(torch.ones(COUNT))


def meta() -> Tensor:
    return torch.ones(COUNT, device="meta")


def nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(COUNT - 2)])


def jagged() -> Tensor:
    parts = [torch.ones(2), torch.ones(COUNT - 2)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def opaque() -> Tensor:
    return torch.ones(COUNT).to_mkldnn()


def compressed() -> Tensor:
    return torch.eye(COUNT).to_sparse_csr()


def pair() -> Tensor:
    """A wrapper of two tensors, without memory of its own."""
    return TwoTensor(torch.ones(COUNT), torch.ones(COUNT))


CUT = [freed, cut, cut_view]
KINDS = [*CUT, fake, functional, meta, nested, jagged, opaque, compressed, pair]


def calls(bad: Tensor, rank: int, size: int) -> dict[str, Callable[[], object]]:
    """Calls of the backend itself: torch's own functions would look at some tensors first."""
    backend: Any = dist.group.WORLD._get_backend(CPU)
    good, peer = torch.ones(COUNT), (rank + 1) % size
    half, whole = torch.ones(COUNT // size), torch.ones(COUNT * size)
    listed = [good] * (size - 1)
    apart = [torch.ones(COUNT) for _ in range(size - 1)]
    rooted = {}
    for kind in ("Broadcast", "Reduce", "Gather", "Scatter"):
        rooted[kind] = getattr(dist, f"{kind}Options")()
        rooted[kind].rootRank = 0
    gathering, scattering = dist.distributed_c10d.AllgatherOptions(), dist.ReduceScatterOptions()
    many: dict[str, Callable[[], object]] = {
        "allreduce": lambda: backend.allreduce([bad]),
        "several": lambda: backend.allreduce([good, bad]),
        "broadcast": lambda: backend.broadcast([bad], rooted["Broadcast"]),
        "several of a broadcast": lambda: backend.broadcast([good, bad], rooted["Broadcast"]),
        "reduce": lambda: backend.reduce([bad], rooted["Reduce"]),
        "allgather": lambda: backend.allgather([[*apart, good]], [bad]),
        "allgather into": lambda: backend.allgather([[*apart, bad]], [good]),
        "_allgather_base": lambda: backend._allgather_base(whole, bad, gathering),
        "_allgather_base into": lambda: backend._allgather_base(bad, half, gathering),
        "reduce_scatter": lambda: backend.reduce_scatter([good], [[*listed, bad]], scattering),
        "reduce_scatter into": lambda: backend.reduce_scatter([bad], [[*listed, good]], scattering),
        "_reduce_scatter_base": lambda: backend._reduce_scatter_base(half, bad, scattering),
        "_reduce_scatter_base into": lambda: backend._reduce_scatter_base(bad, whole, scattering),
        "alltoall": lambda: backend.alltoall([*apart, good], [*listed, bad]),
        "alltoall into": lambda: backend.alltoall([*apart, bad], [*listed, good]),
        "alltoall_base": lambda: backend.alltoall_base(good, bad, [], []),
        "alltoall_base into": lambda: backend.alltoall_base(bad, good, [], []),
        "gather": lambda: backend.gather(
            [[*apart, good]] if rank == 0 else [], [bad], rooted["Gather"]
        ),
        "scatter": lambda: backend.scatter(
            [bad], [[*listed, good]] if rank == 0 else [], rooted["Scatter"]
        ),
        "coalesced": lambda: backend.allreduce_coalesced([good, bad]),
        "allgather_coalesced": lambda: backend.allgather_coalesced(
            [[torch.ones(COUNT)] for _ in range(size)], [bad]
        ),
        "allgather_coalesced into": lambda: backend.allgather_coalesced(
            [[each] for each in (*apart, bad)], [good]
        ),
        "register_buffer": lambda: hetcomm.register_buffer(bad),
    }
    if size > 1:
        many |= {
            "send": lambda: backend.send([bad], peer, 0),
            "recv": lambda: backend.recv([bad], peer, 0),
            "recv_anysource": lambda: backend.recv_anysource([bad], 0),
        }
    return many


def coalesced_calls(bad: Tensor, rank: int, size: int) -> dict[str, Callable[[], object]]:
    """torch's dispatcher itself refuses other tensors than those of a cut storage."""
    whole = torch.ones(COUNT * size)
    return {
        "coalesced gathers": lambda: _coalesced(dist.all_gather_into_tensor, whole, bad),
        "coalesced scatters": lambda: _coalesced(dist.reduce_scatter_tensor, bad, whole),
        "a send behind": lambda: dist.group.WORLD._get_backend(CPU).send([bad], 1 - rank, 0),
    }


def _coalesced(call: Callable[..., object], *tensors: Tensor) -> None:
    with _coalescing_manager(dist.group.WORLD, CPU):
        call(*tensors)


def refused(rank: int, size: int, number: int) -> list[str]:
    problems = []
    make = KINDS[number]
    listed = calls if make not in CUT else lambda *of: calls(*of) | coalesced_calls(*of)
    for name in listed(make(), rank, size):
        try:
            text = refusal(listed(make(), rank, size)[name])
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        if not re.search("expected .*got|No backend type associated", text):
            problems.append(f"{name} of {make.__name__}: {text}")
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total[0] == size, (name, total)
    return problems


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("layout", ["aa", "ab"])
def test_tensors_without_memory_are_refused(
    job: Callable[..., Job], number: int, layout: str
) -> None:
    found = values(job(layout), refused, number)
    assert found == [[]] * len(layout)


def other_entries(rank: int, size: int) -> list[str]:
    """A freed factor of PREMUL_SUM, and freed parts of a sparse tensor."""
    factor = torch.tensor([2.0])
    premul = dist._make_nccl_premul_sum(factor)
    factor.untyped_storage().resize_(0)
    texts = [refusal(lambda: dist.all_reduce(torch.ones(3), premul))]
    for name in ("_indices", "_values"):
        sparse = torch.eye(3).to_sparse().coalesce()
        getattr(sparse, name)().untyped_storage().resize_(0)
        texts.append(refusal(lambda sparse=sparse: dist.all_reduce(sparse)))
    dist.barrier()
    return texts


def test_freed_factors_and_sparse_tensors_are_refused(job: Callable[..., Job]) -> None:
    check_texts(values(job("aa"), other_entries), ["expected a storage of at least"] * 3)


def resized(rank: int, size: int) -> float:
    """As FSDP uses parameters: freed, allocated again, gathered into."""
    tensor = torch.ones(COUNT * size)
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(4 * COUNT * size)
    dist.all_gather_into_tensor(tensor, torch.full((COUNT,), float(rank)))
    empty = torch.ones(COUNT)[:0]
    empty.untyped_storage().resize_(0)
    dist.all_reduce(empty)
    return tensor.sum().item()


def test_storages_that_are_allocated_again_are_used(job: Callable[..., Job]) -> None:
    assert values(job("aa"), resized) == [COUNT] * 2
