"""Partitioned training with lossy codecs: equal weights on all ranks, losses near exact ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from partitioned import adam
from ranks import Job, values
from torch import nn

import hetcomm

# Long enough for messages of 16 KiB, which a codec encodes.
WIDTH, STEPS = 128, 25


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(2)
        )
    )


def train(
    rank: int,
    size: int,
    levels: tuple[str, str, str],
    codecs: dict[str, str | None],
    dtype: torch.dtype | None,
) -> tuple[float, int]:
    """The mean of the ranks' last losses, and a checksum of the weights."""
    model = network()
    optimizer = adam(model.parameters())
    partition = hetcomm.partition(model, optimizer, *levels, dtype=dtype, codecs=codecs)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        x = torch.randn(16, WIDTH, generator=generator)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    with partition.gathered():
        whole = torch.cat([each.detach().flatten() for each in model.parameters()])
    return mean.item(), zlib.crc32(whole.view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize(
    ("levels", "codecs"),
    [
        (("cluster", "cluster", "cluster"), {"weights": "int8", "gradients": "int4"}),
        (("host", "host", "cluster"), {"gradients": "int8", "updates": "int8"}),
        (("rank", "rank", "rank"), {"gradients": "fp8_e5m2"}),
    ],
)
@pytest.mark.parametrize("hosts", ["aabb", "abab"])
def test_codecs_keep_weights_equal_and_losses_near(
    job: Callable[..., Job],
    hosts: str,
    levels: tuple[str, str, str],
    codecs: dict[str, str | None],
) -> None:
    dtype = torch.bfloat16 if "updates" in codecs else None
    exact = values(job(hosts), train, levels, dict.fromkeys(codecs, "none"), dtype)
    found = values(job(hosts), train, levels, codecs, dtype)
    assert len(set(found)) == 1, "ranks have different weights"
    assert found[0][1] != exact[0][1], "the codec did nothing"
    assert found[0][0] == pytest.approx(exact[0][0], rel=0.05)
