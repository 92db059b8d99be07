"""Bad arguments raise InvalidArgumentError on the caller, and the group stays usable."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values

import hetcomm


def _backend() -> dist.Backend:
    """The backend, for calls that torch's own Python checks would reject."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def _rooted(options: type, root: int) -> Any:
    made = options()
    made.rootRank = root
    return made


def bad_calls(rank: int, size: int) -> dict[str, Callable[[], object]]:
    """Bad calls by name. Every rank makes the same calls, so that no rank waits for another."""
    good = torch.ones(6)
    shared = torch.ones(1).expand(6)  # all elements are one word
    complex_ones = torch.ones(3, dtype=torch.complex64)
    sparse = torch.eye(3).to_sparse()
    meta = torch.ones(6, device="meta")
    backend = _backend()
    list_of = lambda count, dtype=torch.float32, n=6: [  # noqa: E731
        torch.ones(n, dtype=dtype) for _ in range(count)
    ]
    peer = (rank + 1) % size
    calls: dict[str, Callable[[], object]] = {
        "shared all_reduce": lambda: dist.all_reduce(shared),
        "shared broadcast": lambda: dist.broadcast(shared, 0),
        "overlapping rows": lambda: dist.broadcast(torch.ones(9).as_strided((4, 3), (2, 1)), 0),
        "shared in a list": lambda: dist.all_gather([shared] * size, good),
        "shared parts": lambda: dist.reduce_scatter_tensor(shared, torch.ones(6 * size)),
        "shared to all": lambda: dist.all_to_all([shared] * size, list_of(size)),
        "sparse broadcast": lambda: backend.broadcast([sparse]),
        "sparse all_reduce MAX": lambda: backend.allreduce([sparse], dist.ReduceOp.MAX),
        "meta all_reduce": lambda: backend.allreduce([meta]),
        "meta in a list": lambda: backend.allgather([[meta] * size], [good]),
        "AVG of integers": lambda: dist.all_reduce(good.int(), dist.ReduceOp.AVG),
        "PREMUL_SUM of bytes": lambda: dist.all_reduce(
            good.byte(), dist._make_nccl_premul_sum(2.0)
        ),
        "no number as factor": lambda: dist.all_reduce(
            good, dist._make_nccl_premul_sum(float("nan"))
        ),
        "product of complex": lambda: backend.allreduce([complex_ones], dist.ReduceOp.PRODUCT),
        "MAX of complex": lambda: dist.reduce(complex_ones, 0, dist.ReduceOp.MAX),
        "BOR of complex": lambda: dist.reduce(complex_ones, 0, dist.ReduceOp.BOR),
        "complex factor": lambda: dist.all_reduce(
            good, dist._make_nccl_premul_sum(torch.tensor([1j]))
        ),
        "no tensor": lambda: backend.allreduce([]),
        "two tensors": lambda: backend.reduce([good, good], _rooted(dist.ReduceOptions, 0)),
        "tensors of unlike shapes": lambda: backend.allreduce([good, torch.ones(5)]),
        "list too short": lambda: dist.all_gather(list_of(size - 1), good),
        "list too long": lambda: dist.all_gather(list_of(size + 1), good),
        "list of another dtype": lambda: backend.allgather([list_of(size, torch.int32)], [good]),
        "list of another size": lambda: dist.all_gather(list_of(size, n=7), good),
        "gathered into too little": lambda: dist.all_gather_into_tensor(torch.ones(5), good),
        "gathered into another dtype": lambda: backend._allgather_base(
            torch.ones(6 * size, dtype=torch.int32), good, dist.distributed_c10d.AllgatherOptions()
        ),
        "scattered from too little": lambda: dist.reduce_scatter_tensor(good, torch.ones(5)),
        "inputs of another size": lambda: dist.reduce_scatter(good, list_of(size, n=7)),
        "splits that do not add up": lambda: dist.all_to_all_single(
            torch.ones(6), good, [6] * size, [5] + [0] * (size - 1)
        ),
        "an element without a row": lambda: dist.all_to_all_single(
            torch.ones(0), torch.tensor(1.0), [0] * size, [0] * size
        ),
        "negative splits": lambda: dist.all_to_all_single(
            torch.ones(6), good, [7, -1] + [0] * (size - 2) if size > 1 else [-6],
            [7, -1] + [0] * (size - 2) if size > 1 else [-6],
        ),
        "another dtype out": lambda: backend.alltoall_base(
            torch.ones(6 * size).int(), torch.ones(6 * size), [], [], dist.AllToAllOptions()
        ),
        "list to all of too many": lambda: dist.all_to_all(
            list_of(size + 1), list_of(size + 1)
        ),
        "broadcast from nobody": lambda: backend.broadcast(
            [good], _rooted(dist.BroadcastOptions, size)
        ),
        "reduce to nobody": lambda: backend.reduce([good], _rooted(dist.ReduceOptions, -1)),
        "scatter from nobody": lambda: backend.scatter(
            [good], [], _rooted(dist.ScatterOptions, size)
        ),
        "gather to nobody": lambda: backend.gather([], [good], _rooted(dist.GatherOptions, size)),
        "gather of a wrong list": lambda: backend.gather(
            [list_of(size + 1)], [good], _rooted(dist.GatherOptions, rank)
        ),
        "send to oneself": lambda: backend.send([good], rank, 0),
        "receive from oneself": lambda: backend.recv([good], rank, 0),
        "send to nobody": lambda: backend.send([good], size, 0),
        "receive from nobody": lambda: backend.recv([good], -2, 0),
        "send with a negative tag": lambda: backend.send([good], peer, -5),
        "receive with a negative tag": lambda: backend.recv([good], peer, -5),
        "receive from anybody with a negative tag": lambda: backend.recv_anysource([good], -1),
        "receive into shared": lambda: backend.recv([shared], peer, 0),
    }  # fmt: skip
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for op in ("BAND", "BOR", "BXOR"):
            calls[f"{op} of {dtype}"] = lambda dtype=dtype, op=op: dist.all_reduce(
                torch.ones(3, dtype=dtype), getattr(dist.ReduceOp, op)
            )
    if size > 1:
        calls["indivisible"] = lambda: dist.all_to_all_single(
            torch.ones(6 * size + 1), torch.ones(6 * size + 1)
        )
    return calls


def refuse(rank: int, size: int) -> dict[str, str]:
    problems = {}
    for name, call in bad_calls(rank, size).items():
        try:
            call()
        except hetcomm.InvalidArgumentError as error:
            if not isinstance(error, ValueError) or not isinstance(error, hetcomm.Error):
                problems[name] = f"of {type(error).__mro__}"
            elif not re.search(r"expected .*got |is not defined for .*expected ", str(error)):
                problems[name] = f"says not what was expected and what came: {error}"
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"
        else:
            problems[name] = "accepted"
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor)  # the group continues
        if tensor[0] != size * (size - 1) / 2:
            problems[name] = f"the next sum is wrong: {tensor}"
    return problems


@pytest.mark.parametrize("layout", ["a", "aa", "ab", "abb"])
def test_bad_arguments_are_rejected(job: Callable[..., Job], layout: str) -> None:
    results = values(job(layout), refuse)
    problems = [
        f"rank {rank}, {name}: {problem}"
        for rank, result in enumerate(results)
        for name, problem in result.items()
    ]
    assert not problems, "\n".join(problems)


def odd_but_legal(rank: int, size: int) -> None:
    """Views, scalars, empty and zero-dimensional tensors, complex numbers where nothing reduces."""
    everything = torch.arange(12.0).reshape(3, 4)
    dist.all_reduce(everything[1])
    assert torch.equal(everything[1], torch.arange(4.0, 8.0) * size)
    assert torch.equal(everything[0], torch.arange(4.0)), "wrote beyond a view"
    scalar = torch.tensor(3)
    dist.all_reduce(scalar)
    assert scalar.item() == 3 * size
    empty = torch.empty(0, 5)
    dist.all_reduce(empty)
    dist.broadcast(empty, size - 1)
    numbers = torch.full((7,), complex(rank, -rank), dtype=torch.complex64)
    dist.broadcast(numbers, size - 1)
    assert numbers[3] == complex(size - 1, 1 - size)
    special = torch.tensor([float("nan") if rank == 0 else 1.0, float("inf"), -0.0, 2.0])
    for op in (dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM):
        tensor = special.clone()
        dist.all_reduce(tensor, op)
        assert tensor[0].isnan() and tensor[1].isposinf() and tensor[2] == 0, f"{op}: {tensor}"
    gathered = list(torch.zeros(size, 4).unbind())  # consecutive views: no copy is needed
    dist.all_gather(gathered, torch.full((4,), float(rank)))
    assert all(bool((gathered[peer] == peer).all()) for peer in range(size))
    rows = torch.full((2 * size, 3), rank)
    received = torch.zeros(2 * size, 3, dtype=rows.dtype)
    dist.all_to_all_single(received, rows)
    assert torch.equal(received[::2, 0], torch.arange(size))


@pytest.mark.parametrize("layout", ["a", "aa", "ab", "abbab"])
def test_unusual_legal_arguments_are_accepted(job: Callable[..., Job], layout: str) -> None:
    values(job(layout), odd_but_legal)
