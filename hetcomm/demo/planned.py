"""The demo's model on hetcomm.plan: layers to measure, and steps of any layout."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hetcomm import plan
from hetcomm.demo.trainer import build_model, cross_entropy


def layers(model: plan.Model) -> Sequence[nn.Module]:
    """The demo's GPT with a model's sizes, for `hetcomm profile --layers`."""
    return list(build_model(model.hidden, model.blocks, model.heads, model.sequence, seed=0))


class PlannedTraining:
    """Runs the layout of a file. Each rank keeps its own layers of the model."""

    def __init__(
        self, model: nn.Sequential, file: Path, context: int, learning_rate: float
    ) -> None:
        self.job = plan.load(file)
        chunks = plan.split(model, self.job)
        parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, lr=learning_rate)
        partition = plan.partition(chunks, self.optimizer, self.job)
        example = torch.zeros(self.job.layout.micro_batch, context, dtype=torch.long)
        self.schedule = plan.schedule(chunks, self.job, cross_entropy, example, partition)
        self.writes_metrics = self.job.is_last and self.job.replica == 0

    def step(self, windows: Tensor) -> float:
        """One optimizer step; the mean loss over all ranks, on the last stage (else 0)."""
        share, losses = self.job.share(windows), list[Tensor]()
        given = (share[:, :-1],) if self.job.is_first else ()
        last = {"target": share[:, 1:], "losses": losses} if self.job.is_last else {}
        self.schedule.step(*given, **last)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not self.job.is_last:
            return 0.0
        total = torch.stack(losses).sum()
        dist.all_reduce(total, group=self.job.data_group)
        return total.item() / sum(self.job.layout.micro_batches)
