"""DistributedDataParallel over GPU ranks, and with CPU ranks, has the losses of gloo."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from ranks import Job, values
from test_gpu_collectives import home
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 8


class Block(nn.Module):
    """A layer of a small transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        y = self.before_attention(x)
        x = x + self.attention(y, y, y, attn_mask=future, need_weights=False)[0]
        return x + self.network(self.before_network(x))


def _train(rank: int, device: str, group: dist.ProcessGroup) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(rank)  # DDP must begin from rank 0's parameters
    network = nn.Sequential(nn.Embedding(50, 64), Block(64), Block(64), nn.Linear(64, 50)).to(
        device
    )
    model = DistributedDataParallel(network, process_group=group, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = torch.Generator().manual_seed(100 + rank)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 50, (8, 33), generator=data).cumsum(1).remainder(50).to(device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()]).cpu()


def train(rank: int, size: int) -> tuple[list[float], list[float], bytes, float]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    ours, parameters = _train(rank, home(), dist.group.WORLD)
    theirs, reference = _train(rank, "cpu", dist.new_group(backend="gloo"))
    difference = (parameters - reference).abs().max().item()
    return ours, theirs, parameters.numpy().tobytes(), difference


@pytest.mark.parametrize("kinds", ["g", "gg", "gc", "ggcc"])
def test_losses_equal_gloo(job: Callable[..., Job], kinds: str) -> None:
    results = values(job(kinds, bound=200), train)
    for rank, (ours, theirs, parameters, difference) in enumerate(results):
        assert ours == pytest.approx(theirs, rel=1e-3), f"rank {rank}"
        assert difference < 1e-3, f"rank {rank}: parameters {difference} apart"
        # The gradients have equal bits. Steps of the optimizer round alike on equal devices only.
        if "c" not in kinds:
            assert parameters == results[0][2], f"rank {rank}'s parameters differ from rank 0's"
    assert results[0][0][-1] < results[0][0][0], "nothing was learned"
