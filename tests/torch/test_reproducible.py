"""Results have the same bits on every rank and in every run of a job.

With HETCOMM_DETERMINISTIC this holds also if another run finds other links.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, values

RING = "all_reduce:0-inf=hierarchical_ring"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64)


def reductions(rank: int, size: int, seed: int, timing: int) -> str:
    """A digest of the results of random reductions. Ranks start them in an order by `timing`."""
    shared, late = random.Random(seed), random.Random(f"{timing}/{rank}")
    mine = torch.Generator().manual_seed(seed + rank)
    digest = hashlib.sha256()
    for _ in range(12):
        dtype, count = shared.choice(DTYPES), shared.choice((1, 17, 5003, 300_007))
        kind = shared.choice(("all_reduce", "blocks", "coalesced"))
        op = shared.choice((dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.SUM))
        whole = torch.randn(count * size, dtype=dtype, generator=mine)
        time.sleep(late.choice((0, 0, 0.003)))
        if kind == "all_reduce":
            dist.all_reduce(whole, op)
        elif kind == "blocks" and not dtype.is_complex:
            block = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(block, whole, op)
            dist.all_gather_into_tensor(whole, block)
        else:
            parts = list(whole.split(count))
            works = [dist.all_reduce(part, op, async_op=True) for part in parts]
            for work in works:
                work.wait()
        real = torch.view_as_real(whole) if dtype.is_complex else whole
        digest.update(real.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("layout", ["aa", "abba", "abc"])
def test_a_repeated_job_has_the_same_bits(job: Callable[..., Job], layout: str, seed: int) -> None:
    runs = [values(job(layout), reductions, seed, timing) for timing in (1, 2)]
    assert len(set(runs[0] + runs[1])) == 1


def speeds(folder: Path, layout: str, gbits: dict[str, int]) -> list[dict[str, str]]:
    """The environment of each rank, so that its host has a loopback of that speed."""
    for host, gbit in gbits.items():
        interface = folder / host / "class/net/lo"
        interface.mkdir(parents=True)
        (interface / "speed").write_text(f"{1000 * gbit}\n")
        (interface / "type").write_text("772\n")
        (folder / host / "addresses").write_text("lo 127.0.0.1/8\n")
    return [{"HETCOMM_SYSFS_ROOT": str(folder / h), "HETCOMM_SELECT": RING} for h in layout]


@pytest.mark.parametrize("deterministic", ["0", "1"])
@pytest.mark.parametrize("layout", ["abc", "abcabc", "abcd"])
def test_other_links_change_bits_without_deterministic(
    job: Callable[..., Job], tmp_path: Path, seed: int, layout: str, deterministic: str
) -> None:
    found = []
    for gbits in (
        {"a": 10, "b": 1, "c": 25, "d": 5},
        {"a": 1, "b": 25, "c": 10, "d": 5},
    ):
        environments = speeds(tmp_path / f"speeds{len(found)}", layout, gbits)
        for environment in environments:
            environment["HETCOMM_DETERMINISTIC"] = deterministic
        results = values(job(layout, environments=environments), reductions, seed, 1)
        assert len(set(results)) == 1, "ranks differ"
        found.append(results[0])
    assert (found[0] == found[1]) == (deterministic == "1")


def nothing(rank: int, size: int) -> None:
    pass


def test_different_settings_of_deterministic_are_an_error(job: Callable[..., Job]) -> None:
    environments = [{"HETCOMM_DETERMINISTIC": "1"}, {}, {"HETCOMM_DETERMINISTIC": "1"}]
    for outcome in launch(job("aab", environments=environments), nothing):
        assert "HETCOMM_DETERMINISTIC differs: rank" in outcome.text, outcome.describe()
        assert "set the same on every rank" in outcome.text
