"""Parameters that several stages hold, such as tied embeddings of the first and the last stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from hetcomm import _core
from hetcomm.partitioning import agreement, local

if TYPE_CHECKING:
    from hetcomm.plan.layout import Layout
    from hetcomm.plan.run.job import Job


def parameters(chunks: Sequence[Any]) -> dict[str, nn.Parameter]:
    """The parameters of split()'s chunks that other stages hold too, by their first names."""
    return {
        first: chunk.get_parameter(name)
        for chunk in chunks
        for first, name in getattr(chunk, "tied", {}).items()
    }


class Tied:
    """Keeps such parameters equal in chunks without a partition, as Megatron-LM does.

    All stages that hold a parameter add up its gradients, each replica by itself.
    """

    def __init__(self, chunks: Sequence[nn.Module], job: Job) -> None:
        """Gives the first stage's values to the others. A collective of all ranks.

        Raises hetcomm.InvalidArgumentError if the stages of a replica have unlike numbers of ranks.
        """
        own = parameters(chunks)
        every = agreement.gather(lambda: {n: local.division(p) for n, p in own.items()})
        self._held: list[tuple[nn.Parameter, Any]] = []
        for name in sorted({name for names in every for name in names}):
            holders = [rank for rank, names in enumerate(every) if name in names]
            _check_division(name, {every[rank][name] for rank in holders})
            lines = list(_lines(name, job.layout, holders))
            groups = job.groups(lines)
            if name in own:
                (line,) = (line for line in lines if job.rank in line)
                dist.broadcast(local.values(own[name]), line[0], group=groups[0])
                if own[name].requires_grad:
                    self._held.append((own[name], groups[0]))

    def __bool__(self) -> bool:
        return bool(self._held)

    @contextmanager
    def summed(self) -> Iterator[None]:
        """Gradients that come inside are summed at the end, and added to those from before."""
        before = [parameter.grad for parameter, _ in self._held]
        for parameter, _ in self._held:
            parameter.grad = None
        yield
        for (parameter, group), earlier in zip(self._held, before, strict=True):
            own = local.gradient(parameter)
            if own is None:
                own = torch.zeros_like(local.values(parameter))
            dist.all_reduce(own, group=group)
            gradient = local.divided_as(parameter, own)
            parameter.grad = gradient if earlier is None else earlier.add_(gradient)


def _check_division(name: str, divisions: set[str]) -> None:
    if len(divisions) > 1:
        raise _core.InvalidArgumentError(
            f"{name}: expected one way to divide this tied parameter among tensor ranks in all "
            f"stages that hold it, got {sorted(divisions)}; divide an embedding by RowwiseParallel "
            "and its head by ColwiseParallel, or untie them"
        )


def _lines(name: str, layout: Layout, holders: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The ranks of equal places in the stages of each replica, the first stage's first."""
    stages = sorted({layout.place(rank)[0] for rank in holders})
    for r in range(layout.replicas):
        every = [layout.stages[stage].replicas[r].ranks for stage in stages]
        if len({len(ranks) for ranks in every}) > 1:
            raise _core.InvalidArgumentError(
                f"{name}: expected equally many ranks in the stages {stages} of replica {r} that "
                f"hold this parameter, got {[len(ranks) for ranks in every]}; choose equal tensor "
                "degrees, or untie the parameter (tie_word_embeddings=False)"
            )
        yield from zip(*every, strict=True)
