"""AVG and PREMUL_SUM, 8-bit floats, unsigned integers and complex numbers, against a float64 oracle
and gloo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from oracle import generator
from ranks import Job, values
from torch import Tensor
from vendors import environments

from hetcomm import _core

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *EIGHT_BITS)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COUNTS = (0, 1, 7, 257, 20_011, 400_003)
FACTOR = -0.375  # exact in every dtype
GLOO = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS = ["a", "aa", "ab", "abab", "aabba"]
VENDORS = [("a", "n"), ("aa", "nn"), ("ab", "nc"), ("aabbc", "nnaac")]

Calls = dict[str, Callable[[Tensor, Any], Tensor]]


def calls(rank: int, size: int) -> Calls:
    """Each reducing collective, from this rank's input to its result."""

    def in_place(x: Tensor, op: Any) -> Tensor:
        dist.all_reduce(x, op)
        return x

    def rooted(x: Tensor, op: Any) -> Tensor:
        dist.reduce(x, size - 1, op)
        return x if rank == size - 1 else x[:0]

    def scattered(x: Tensor, op: Any) -> Tensor:
        output = torch.empty(x.numel() // size, dtype=x.dtype)
        dist.reduce_scatter_tensor(output, x[: output.numel() * size], op)
        return output

    def scattered_list(x: Tensor, op: Any) -> Tensor:
        count = x.numel() // size
        output = torch.empty(count, dtype=x.dtype)
        dist.reduce_scatter(
            output, [x[i * count : (i + 1) * count].clone() for i in range(size)], op
        )
        return output

    return {"all_reduce": in_place, "reduce": rooted, "reduce_scatter_tensor": scattered,
            "reduce_scatter": scattered_list}  # fmt: skip


def wanted(name: str, total: Tensor, rank: int, size: int) -> Tensor:
    if name == "reduce":
        return total if rank == size - 1 else total[:0]
    if name == "all_reduce":
        return total
    count = total.numel() // size
    return total[rank * count : (rank + 1) * count]


def operation(name: str) -> Any:
    if name == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(FACTOR)
    if name == "PREMUL_SUM by a tensor":
        return dist._make_nccl_premul_sum(torch.tensor([FACTOR]))
    return getattr(dist.ReduceOp, name)


def oracle(inputs: list[Tensor], name: str) -> tuple[Tensor, Tensor]:
    """The result in float64, and its tolerance: a few roundings of the magnitudes that are
    added."""
    stack = torch.stack([one.double() for one in inputs])
    factor = FACTOR if "PREMUL" in name else 1 / len(inputs) if name == "AVG" else 1
    if name in ("MIN", "MAX"):
        return getattr(torch, "a" + name.lower())(stack, 0), torch.zeros(stack.shape[1])
    magnitude = stack.abs().sum(0)
    info = torch.finfo(inputs[0].dtype)
    bound = (len(inputs) + 2) * (info.eps * magnitude + info.smallest_normal * info.eps)
    return factor * stack.sum(0), abs(factor) * bound if name == "AVG" else bound


def floats(rank: int, size: int, seed: int) -> list[str]:
    failures = []
    gloo = dist.new_group(backend="gloo")
    for dtype in FLOATS:
        names = ["AVG", "PREMUL_SUM", "PREMUL_SUM by a tensor"]
        names += ["SUM", "MIN", "MAX"] if dtype in EIGHT_BITS else []
        for count in COUNTS:
            inputs = [
                torch.randn(count, generator=generator(seed, count, each)).to(dtype)
                for each in range(size)
            ]
            for name in names:
                total, bound = oracle(inputs, name)
                for collective, call in calls(rank, size).items():
                    got = call(inputs[rank].clone(), operation(name)).double()
                    want = wanted(collective, total, rank, size)
                    limit = wanted(collective, bound, rank, size)
                    if not ((got - want).abs() <= limit).all():
                        failures.append(f"rank {rank}: {collective} {name} {dtype} x {count}")
            if dtype in GLOO and count:
                ours, theirs = inputs[rank].clone(), inputs[rank].clone()
                dist.all_reduce(ours, dist.ReduceOp.AVG)
                dist.all_reduce(theirs, dist.ReduceOp.AVG, group=gloo)
                _, bound = oracle(inputs, "AVG")
                if not ((ours.double() - theirs.double()).abs() <= 2 * bound).all():
                    failures.append(f"rank {rank}: AVG {dtype} x {count} against gloo")
    return failures


def unsigned(rank: int, size: int, native: bool) -> None:
    for dtype in UNSIGNED:
        if native and dtype == torch.uint16:  # native libraries lack these
            continue
        name = str(dtype).removeprefix("torch.")
        inputs = [
            np.random.default_rng([each, size]).integers(0, np.iinfo(name).max, 1001, name)
            for each in range(size)
        ]
        for op, function in (("SUM", np.add), ("MIN", np.minimum), ("MAX", np.maximum)):
            got = torch.from_numpy(inputs[rank].copy())
            assert got.dtype == dtype
            dist.all_reduce(got, operation(op))
            np.testing.assert_array_equal(
                got.numpy(), function.reduce(inputs, dtype=name), f"{op} {name}"
            )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_floats_are_reduced(job: Callable[..., Job], seed: int, layout: str) -> None:
    ranks = job(layout, bound=250)
    failures = [failure for found in values(ranks, floats, seed) for failure in found]
    assert not failures, "\n".join(failures[:40])


@pytest.mark.needs("emulated vendors")
@pytest.mark.parametrize(("hosts", "vendors"), VENDORS)
def test_floats_are_reduced_between_vendors(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    ranks = job(hosts, environments=environments(vendors), bound=250)
    failures = [failure for found in values(ranks, floats, seed) for failure in found]
    assert not failures, "\n".join(failures[:40])


@pytest.mark.parametrize("layout", ["aa", "abb"])
def test_unsigned_integers_are_reduced(job: Callable[..., Job], layout: str) -> None:
    values(job(layout), unsigned, False)


@pytest.mark.needs("emulated vendors")
def test_unsigned_integers_are_reduced_between_vendors(job: Callable[..., Job]) -> None:
    values(job("aabb", environments=environments("nnaa")), unsigned, True)


def complex_numbers(rank: int, size: int) -> list[str]:
    """As pairs of floats: by torch in all_reduce(), by the backend in all other collectives."""
    failures = []
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def coalesced(x: Tensor, op: Any) -> Tensor:
        options = dist.AllreduceCoalescedOptions()
        options.reduceOp = op
        first, last = x[: x.numel() // 2].clone(), x[x.numel() // 2 :].clone()
        backend.allreduce_coalesced([first, last], options).wait()
        return torch.cat([first, last])

    def direct(x: Tensor, op: Any) -> Tensor:
        backend.allreduce([x], op).wait()
        return x

    ways = calls(rank, size) | {"all_reduce direct": direct, "all_reduce coalesced": coalesced}
    for dtype in (torch.complex64, torch.complex128, torch.complex32):
        for count in (0, 6, 1001):
            # Small integers: every sum is exact, also of complex32, whose arithmetic torch lacks.
            inputs = [
                torch.randint(-8, 8, (2, count), generator=generator(count, each)).double()
                for each in range(size)
            ]
            total = torch.stack(inputs).sum(0)
            for name in ("SUM", "AVG", "PREMUL_SUM", "PREMUL_SUM by a tensor"):
                factor = FACTOR if "PREMUL" in name else 1 / size if name == "AVG" else 1
                for collective, call in ways.items():
                    got = call(torch.complex(*inputs[rank]).to(dtype), operation(name))
                    kind = collective.split()[0]
                    want = [wanted(kind, factor * one, rank, size) for one in total]
                    parts = torch.view_as_real(got).double().unbind(-1)
                    if got.dtype != dtype or not all(
                        torch.allclose(a, b, rtol=4e-3, atol=4e-3)
                        for a, b in zip(parts, want, strict=True)
                    ):
                        failures.append(f"rank {rank}: {collective} {name} {dtype} x {count}")
    return failures


@pytest.mark.parametrize("layout", ["a", "abb"])
def test_complex_numbers_are_reduced(job: Callable[..., Job], layout: str) -> None:
    failures = [one for found in values(job(layout), complex_numbers) for one in found]
    assert not failures, "\n".join(failures[:40])


@pytest.mark.needs("emulated vendors")
def test_complex_numbers_are_reduced_between_vendors(job: Callable[..., Job]) -> None:
    ranks = job("aab", environments=environments("nnc"))
    failures = [one for found in values(ranks, complex_numbers) for one in found]
    assert not failures, "\n".join(failures[:40])


def old_library(rank: int, size: int) -> list[str]:
    texts = []
    for dtype in EIGHT_BITS:
        mine = torch.full((5,), float(rank)).to(dtype)
        moved = torch.empty(5 * size, dtype=dtype)
        dist.all_gather_into_tensor(moved, mine)
        assert moved.float().tolist() == [float(each) for each in range(size) for _ in range(5)]
        with pytest.raises(_core.InvalidArgumentError) as refused:
            dist.all_reduce(mine)
        texts.append(str(refused.value))
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, dist.ReduceOp.AVG)  # the group continues
    assert tensor[0] == (size - 1) / 2
    return texts


@pytest.mark.needs("emulated vendors")
def test_8_bit_floats_need_a_library_that_reduces_them(job: Callable[..., Job]) -> None:
    settings = environments("nnc")
    for one in settings:
        one["HETCOMM_EMULATED_FAULT"] = "version:22203"
    results = values(job("aab", environments=settings), old_library)
    for text in results[0]:
        assert "NCCL 2.24.0 or newer" in text and "NCCL 2.22.3" in text, text
    assert results[1] == results[2] == results[0]
