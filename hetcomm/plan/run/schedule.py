"""Schedules of torch.distributed.pipelining for a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from hetcomm import _core
from hetcomm.partitioning import agreement
from hetcomm.partitioning.partition import Partition
from hetcomm.plan.run.chunks import check_chunks
from hetcomm.plan.run.tied import Tied

if TYPE_CHECKING:
    from hetcomm.plan.layout import Layout
    from hetcomm.plan.run.job import Job, Neighbours

NAMES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero_bubble": "ScheduleInterleavedZeroBubble",
}


class Stage(PipelineStage):
    """A chunk in torch's pipeline.

    torch's stage finds partners by rank in a group, which torch sorts. So it knows neither ranks in
    other orders nor stages of unlike sizes. This one takes the partners of the job, and sends in
    the default group. Shapes are given, so torch runs no pass of its own to infer them.
    """

    def __init__(
        self,
        chunk: nn.Module,
        index: int,
        job: Job,
        given: torch.Tensor,
        made: torch.Tensor,
        partition: Partition | None,
    ) -> None:
        stages = job.layout.stages
        super().__init__(
            chunk,
            index,
            len(stages) * len(stages[0].chunks),
            _device(chunk),
            input_args=(given,),
            output_args=(made,),
            group=job.pipeline_group,
        )
        self.group_rank = job.stage
        self._job, self._partition = job, partition

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """Keeps gradients on this rank until the step's last micro-batch.

        If weights have backward passes of their own, the optimizer's step reduces gradients.
        """
        reduces = named.get("full_backward", True) and named.get("last_backward", False)
        with self._keeping(not reduces):
            return super().backward_one_chunk(bwd_chunk_id, *given, **named)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        with self._keeping(True):
            return super().backward_weight_one_chunk(bwd_chunk_id, *given, **named)

    def _keeping(self, keeps: bool) -> AbstractContextManager[None]:
        return self._partition.no_sync() if keeps and self._partition else nullcontext()

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _receive(super().get_fwd_recv_ops(fwd_chunk_id), self._job.previous)

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return _send(super().get_fwd_send_ops(fwd_chunk_id), self._job.next)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _receive(super().get_bwd_recv_ops(bwd_chunk_id), self._job.next)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return _send(super().get_bwd_send_ops(bwd_chunk_id), self._job.previous)

    def _warmup_forward_vote(self, *_: Any, **__: Any) -> torch.Tensor:
        """The vote of later torches on who infers shapes: none, because all shapes are given."""
        return torch.ones(1, dtype=torch.int32)

    _warmup_backward_result = _warmup_forward_vote


class _Scaled(torch.autograd.Function):
    """A loss of which backward() computes a fraction of the gradients."""

    @staticmethod
    def forward(context: Any, loss: torch.Tensor, divisor: float) -> torch.Tensor:
        context.divisor = divisor
        return loss.clone()  # zero bubble refuses a view

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient / context.divisor, None


def schedule(
    chunks: Sequence[nn.Module],
    job: Job,
    loss: Callable[[Any, torch.Tensor], torch.Tensor],
    example: torch.Tensor,
    partition: Partition | None = None,
) -> Any:
    """The layout's schedule of torch.distributed.pipelining, for the chunks of split().

    A collective of all ranks. Each chunk runs once, without gradients, so that ranks learn the
    shapes of activations. Call `step(share)` on the first stage and `step()` on the others; the
    last stage gives `target=` too, and a list as `losses=`. Gradients of a step are this replica's
    own. Their mean over data_groups is that of the whole batch's mean loss: a replica's gradients
    are those of the sum of its micro-batches' losses, over the replicas' mean number of these.
    Without a partition, a step also sums the gradients of tied parameters over their stages.

    Args:
        chunks: of this rank, on their device.
        loss: the mean loss of the model's output and a target.
        example: an input of one micro-batch, (micro_batch, ...). Its values do not matter.
        partition: of the chunks, if there is one. Gradients are then reduced once a step.

    Raises:
        hetcomm.InvalidArgumentError: `chunks` is not the list of split(), this torch lacks the
            schedule or refuses the layout's number of micro-batches, or a chunk cannot run. All
            ranks raise it.
    """
    layout = job.layout
    kind = agreement.gather(lambda: _kind(layout, chunks, example))[0]
    shapes = _shapes(chunks, job, example)
    stages = [
        Stage(chunk, index, job, shapes[index], shapes[index + 1], partition)
        for index, chunk in zip(_indices(job), chunks, strict=True)
    ]

    own, mean = layout.micro_batches[job.replica], sum(layout.micro_batches) / layout.replicas

    def scaled(output: Any, target: torch.Tensor) -> torch.Tensor:
        return _Scaled.apply(loss(output, target), mean)

    tied = Tied(chunks, job) if partition is None else None
    if tied:
        kind = _summing(kind, tied)
    several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    found: list[Any] = []

    def make() -> None:
        try:
            found.append(
                kind(
                    stages if several else stages[0],
                    n_microbatches=own,
                    loss_fn=scaled,
                    scale_grads=False,
                )
            )
        except ValueError as error:
            raise _core.InvalidArgumentError(
                f"layout: expected micro-batches that {kind.__name__} takes, got {own} for "
                f"{len(layout.stages)} stages ({error}); change the batch, the micro-batch, the "
                "shares or the schedule"
            ) from None

    agreement.gather(make)
    return found[0]


def _summing(kind: Any, tied: Tied) -> Any:
    """A schedule whose steps end with the sums of tied parameters' gradients."""

    class Summing(kind):
        def step(self, *given: Any, **named: Any) -> Any:
            with tied.summed() if self._has_backward else nullcontext():
                return super().step(*given, **named)

    Summing.__name__ = kind.__name__
    return Summing


def _kind(layout: Layout, chunks: Any, example: torch.Tensor) -> Any:
    """The schedule's class, for arguments that fit."""
    check_chunks(chunks, layout)
    if len(example) != layout.micro_batch:
        raise _core.InvalidArgumentError(
            f"example: expected the {layout.micro_batch} samples of a micro-batch of the layout, "
            f"got {len(example)}"
        )
    name = NAMES[layout.schedule]
    kind = getattr(pipelining, name, None)
    if kind is None:
        raise _core.InvalidArgumentError(
            f"layout.schedule: expected a schedule of torch {torch.__version__}, but it has no "
            f'{name} for "{layout.schedule}"; choose another schedule, or take a later torch'
        )
    return kind


def _indices(job: Job) -> list[int]:
    """The places of this rank's chunks among all chunks of the model."""
    stages = job.layout.stages
    return [chunk * len(stages) + job.stage for chunk in range(len(stages[0].chunks))]


def _device(chunk: nn.Module) -> torch.device:
    return next((p.device for p in chunk.parameters()), torch.device("cpu"))


def _shapes(chunks: Sequence[nn.Module], job: Job, example: torch.Tensor) -> list[torch.Tensor]:
    """The input of each of the model's chunks, and the last one's output, without memory."""
    own = dict(zip(_indices(job), chunks, strict=True))
    found = [example.to("meta")]
    stages = job.layout.stages
    for index in range(len(stages) * len(stages[0].chunks)):

        def look(index: int = index) -> tuple[torch.Size, torch.dtype] | None:
            chunk = own.get(index)
            if chunk is None:
                return None
            device = _device(chunk)
            with torch.no_grad(), torch.random.fork_rng([device] if device.type != "cpu" else []):
                output = chunk(torch.zeros_like(found[index], device=device))
            if not isinstance(output, torch.Tensor):
                raise _core.InvalidArgumentError(
                    f"chunk {index}: expected one tensor as its output, got {type(output).__name__}"
                )
            return output.shape, output.dtype

        every = agreement.gather(look)
        made = every[stages[index % len(stages)].replicas[0].ranks[0]]
        assert made is not None
        shape, dtype = made
        found.append(torch.empty(shape, dtype=dtype, device="meta").requires_grad_())
    return found


def _receive(ops: list[dist.P2POp], neighbours: Neighbours) -> list[dist.P2POp]:
    return [dist.P2POp(op.op, op.tensor, neighbours.source) for op in ops]


def _send(ops: list[dist.P2POp], neighbours: Neighbours) -> list[dist.P2POp]:
    return [dist.P2POp(op.op, op.tensor, to) for op in ops for to in neighbours.targets]
