"""hetcomm.functional: collectives with a codec, which differ from exact ones by the codec alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, values

import hetcomm
from hetcomm import functional

BLOCK = 20_000  # elements; more than 16 KiB in every dtype


def errors(rank: int, size: int, codec: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest error of each call over the largest element of the result."""
    generator = torch.Generator().manual_seed(9)
    parts = torch.randn(size, size * BLOCK, generator=generator).to(dtype)
    exact, found = parts.double(), {}

    def note(name: str, result: torch.Tensor, wanted: torch.Tensor) -> None:
        found[name] = ((result.double() - wanted).abs().max() / wanted.abs().max()).item()

    for asynchronous in (False, True):
        options: dict[str, Any] = {"codec": codec, "async_op": asynchronous}
        mine = slice(rank * BLOCK, (rank + 1) * BLOCK)
        gathered = torch.empty(size * BLOCK, dtype=dtype)
        work = [functional.all_gather(gathered, parts[rank][:BLOCK].clone(), **options)]
        average, total = torch.empty(BLOCK, dtype=dtype), torch.empty(BLOCK, dtype=dtype)
        work.append(functional.reduce_scatter(average, parts[rank].clone(), **options))
        work.append(
            functional.reduce_scatter(total, parts[rank].clone(), dist.ReduceOp.SUM, **options)
        )
        whole = parts[rank].clone()
        work.append(functional.all_reduce(whole, **options))
        for each in work:
            assert (each is not None) == asynchronous
            if each is not None:
                each.wait()
        note(f"all_gather {asynchronous}", gathered, exact[:, :BLOCK].reshape(-1))
        note(f"average {asynchronous}", average, exact.mean(0)[mine])
        note(f"sum {asynchronous}", total, exact.sum(0)[mine])
        note(f"all_reduce {asynchronous}", whole, exact.mean(0))
    return found


CASES = [  # codec, dtype, least and greatest error
    ("none", torch.float32, 0, 1e-6),
    ("int8", torch.float32, 1e-4, 0.02),
    ("int4", torch.float32, 1e-3, 0.3),
    ("int8", torch.bfloat16, 1e-4, 0.03),
]


def all_errors(rank: int, size: int) -> list[dict[str, float]]:
    return [errors(rank, size, codec, dtype) for codec, dtype, _, _ in CASES]


@pytest.mark.parametrize("hosts", ["aabb", "abab", "aab"])
def test_results_are_near_exact_ones(job: Callable[..., Job], hosts: str) -> None:
    for by_case in values(job(hosts), all_errors):
        for found, (codec, _, least, most) in zip(by_case, CASES, strict=True):
            assert all(least <= error <= most for error in found.values()), (codec, found)


def of_feedback(rank: int, size: int) -> list[float]:
    """The relative error of the mean of 30 results, by call."""
    generator = torch.Generator().manual_seed(9)
    parts = torch.randn(size, size * BLOCK, generator=generator)
    exact = parts.mean(0)
    feedback, found = hetcomm.Feedback(), []
    mean, block_mean = torch.zeros_like(exact), torch.zeros(BLOCK)
    for _ in range(30):
        whole, block = parts[rank].clone(), torch.empty(BLOCK)
        functional.all_reduce(whole, codec="int4", feedback=feedback, key="whole")
        functional.reduce_scatter(block, parts[rank].clone(), feedback=feedback, key="blocks")
        mean += whole / 30
        block_mean += block / 30
    here = exact[rank * BLOCK : (rank + 1) * BLOCK]
    for result, wanted in ((mean, exact), (block_mean, here)):
        found.append(((result - wanted).norm() / wanted.norm()).item())
    return found


def test_feedback_makes_up_for_losses(job: Callable[..., Job]) -> None:
    for found in values(job("abab"), of_feedback):
        assert max(found) < 0.01


def without_key(rank: int, size: int) -> None:
    functional.all_reduce(torch.ones(9), feedback=hetcomm.Feedback())


def unknown_codec(rank: int, size: int) -> None:
    functional.all_gather(torch.ones(18), torch.ones(9), codec="zip")


def another_backend(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    dist.barrier()  # otherwise a rank that ends at once breaks gloo's connections to the other
    functional.all_reduce(torch.ones(9), group=gloo)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (without_key, "a key that names the tensor"),
        (unknown_codec, "unknown codec"),
        (another_backend, "expected one of hetcomm for cpu tensors, got gloo"),
    ],
)
def test_bad_input_is_refused(job: Callable[..., Job], call: Callable, text: str) -> None:
    for outcome in launch(job("ab"), call):
        assert "InvalidArgumentError" in outcome.error, outcome.describe()
        assert text in outcome.text
