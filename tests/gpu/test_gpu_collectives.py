"""Every collective, dtype and operation on GPU tensors, among GPU ranks and with CPU ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from collectives import failures_on
from ranks import Job, launch, values

import hetcomm

KINDS = ["g", "gg", "gc", "ggc", "gcgc", "ggggcc"]


def home() -> str:
    return "cpu" if os.environ.get("HETCOMM_VENDOR") == "cpu" else "cuda"


def run_cases(rank: int, size: int, seed: int, kinds: str) -> list[str]:
    return failures_on(home(), rank, size, seed, kinds)


@pytest.mark.parametrize("kinds", KINDS)
def test_every_collective_dtype_and_op_is_correct(
    job: Callable[..., Job], seed: int, kinds: str
) -> None:
    results = values(job(kinds, bound=280), run_cases, seed, kinds)
    failures = [failure for result in results for failure in result]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])


def cpu_tensors(rank: int, size: int) -> None:
    """A rank of the GPU takes CPU tensors too, through copies."""
    tensor = torch.arange(1000.0) + rank
    dist.all_reduce(tensor)
    assert torch.equal(tensor, size * torch.arange(1000.0) + size * (size - 1) / 2)
    parts = [torch.empty(3) for _ in range(size)]
    dist.all_gather(parts, torch.full((3,), float(rank)))
    assert torch.equal(torch.stack(parts), torch.arange(float(size)).repeat(3, 1).t())
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    dist.barrier()


@pytest.mark.parametrize("kinds", ["g", "gg", "gcg"])
def test_cpu_tensors_are_accepted(job: Callable[..., Job], kinds: str) -> None:
    values(job(kinds), cpu_tensors)


def lossy_sums(rank: int, size: int, seed: int) -> list[list[float]]:
    """Sums by each lossy codec, with error feedback: the third of each."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(size, 300_007, generator=generator)
    found = []
    for codec in (
        *("int8", "int4", "int4:2048", "fp8_e4m3", "fp8_e5m2", "bf16", "fp16"),
        *("int8:bf16", "int4:32:bf16", "fp8_e4m3:64:bf16", "topk", "topk:0.3"),
    ):
        feedback = hetcomm.Feedback()
        for _ in range(3):
            total = parts[rank].to(home(), copy=True)
            with hetcomm.codec(codec, feedback=feedback, key=codec):
                dist.all_reduce(total)
        found.append(total.cpu().tolist())
    return found


def without_kernels() -> None:
    os.environ["HETCOMM_KERNELS"] = "0"


@pytest.mark.parametrize("kinds", ["gc", "gcg"])
def test_the_gpu_and_the_host_encode_with_the_same_bits(
    job: Callable[..., Job], seed: int, kinds: str
) -> None:
    by_gpu = values(job(kinds, bound=200), lossy_sums, seed)
    by_host = values(job(kinds, bound=200, prepare=without_kernels), lossy_sums, seed)
    assert all(each == by_gpu[0] for each in [*by_gpu, *by_host]), f"seed {seed}"


def sums_without_loss(rank: int, size: int, seed: int) -> list[list[float]]:
    """Sums without a codec, and without loss."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(size, 300_007, generator=generator)
    found = []
    for codec in ("none", "lossless"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            total = parts[rank].to(home(), dtype, copy=True)
            with hetcomm.codec(codec):
                dist.all_reduce(total)
            found.append(total.cpu().float().tolist())
    return found


@pytest.mark.parametrize("kinds", ["gc", "gcg"])
def test_the_gpu_encodes_without_loss(job: Callable[..., Job], seed: int, kinds: str) -> None:
    for found in values(job(kinds, bound=200), sums_without_loss, seed):
        assert found[:3] == found[3:], f"seed {seed}"


def gpu_tensor_on_a_cpu_rank(rank: int, size: int) -> None:
    dist.all_reduce(torch.ones(3, device="cuda"))


def test_a_gpu_tensor_on_a_cpu_rank_is_rejected(job: Callable[..., Job]) -> None:
    (outcome,) = launch(job("c"), gpu_tensor_on_a_cpu_rank)
    assert "InvalidArgumentError" in outcome.error, outcome.describe()
    for words in ("rank 0", "vendor cpu", "HETCOMM_VENDOR"):
        assert words in outcome.text, outcome.text


def tensors_apart(rank: int, size: int) -> None:
    dist.all_gather_into_tensor(torch.ones(3 * size), torch.ones(3, device="cuda"))


def test_tensors_on_two_devices_are_rejected(job: Callable[..., Job]) -> None:
    (outcome,) = launch(job("g"), tensors_apart)
    assert "InvalidArgumentError" in outcome.error, outcome.describe()
    assert "one device" in outcome.text and "cuda:0" in outcome.text, outcome.text
