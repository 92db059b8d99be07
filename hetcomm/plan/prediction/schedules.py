"""The order of forward and backward passes on each stage of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from hetcomm.plan.refuse import refuse, whole


class Pass(NamedTuple):
    """One pass of a chunk: "forward", "backward", or "weights" (zero_bubble's second half)."""

    what: str
    micro_batch: int
    chunk: int = 0


@lru_cache(maxsize=256)
def order(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> list[list[Pass]]:
    """The passes of each stage, in order.

    gpipe (Huang et al. 2019, arXiv 1811.06965): all forward, then all backward. 1f1b (PipeDream's
    flush, Narayanan et al. 2021, arXiv 2006.09503): stage s has stages - s micro-batches in flight
    at most. interleaved (arXiv 2104.04473, section 2.2): 1f1b over chunks, in groups of `stages`
    micro-batches. zero_bubble: ZB-H1 of Qi et al. 2024 (arXiv 2401.10241): the backward pass for
    weights fills waiting time, with the memory of 1f1b.

    Raises hetcomm.InvalidArgumentError for interleaved with micro-batches not in whole groups.
    """
    whole("stages", stages, 1)
    whole("micro_batches", micro_batches, 1)
    whole("chunks", chunks, 1)
    if schedule == "interleaved" and chunks > 1:
        return [_interleaved(micro_batches, stages, chunks, s) for s in range(stages)]
    if schedule == "gpipe" and chunks == 1:
        return [_gpipe(micro_batches) for _ in range(stages)]
    if schedule in ("1f1b", "interleaved") and chunks == 1:
        return [_one_f_one_b(micro_batches, stages - s) for s in range(stages)]
    if schedule == "zero_bubble" and chunks == 1:
        return [_zero_bubble(micro_batches, stages - s, s) for s in range(stages)]
    expected = "interleaved; or gpipe, 1f1b or zero_bubble with one chunk"
    refuse("schedule", expected, f"{schedule} of {chunks} chunks", "choose one of these")


def most_held(
    schedule: str, stages: int, micro_batches: int, stage: int, sizes: Sequence[float]
) -> float:
    """The most that a stage keeps at once of what its forward passes leave for later ones.

    sizes: of one micro-batch, for each chunk. A stage keeps it until the backward pass, with
    zero_bubble until the pass for weights.
    """
    last = "weights" if schedule == "zero_bubble" else "backward"
    held = most = 0.0
    for each in order(schedule, stages, micro_batches, len(sizes))[stage]:
        if each.what == "forward":
            held += sizes[each.chunk]
            most = max(most, held)
        elif each.what == last:
            held -= sizes[each.chunk]
    return most


def _gpipe(micro_batches: int) -> list[Pass]:
    forward = [Pass("forward", m) for m in range(micro_batches)]
    return forward + [Pass("backward", m) for m in range(micro_batches)]


def _one_f_one_b(micro_batches: int, depth: int) -> list[Pass]:
    warm = min(depth, micro_batches)
    passes = [Pass("forward", m) for m in range(warm)]
    for m in range(micro_batches):
        passes.append(Pass("backward", m))
        if m + warm < micro_batches:
            passes.append(Pass("forward", m + warm))
    return passes


def _interleaved(micro_batches: int, stages: int, chunks: int, stage: int) -> list[Pass]:
    if micro_batches % stages:
        refuse("interleaved: micro-batches", f"a multiple of {stages} stages", micro_batches,
               "change the batch or the micro-batch")  # fmt: skip
    total = micro_batches * chunks

    def forward(i: int) -> Pass:
        group, rest = divmod(i, stages * chunks)
        return Pass("forward", group * stages + rest % stages, rest // stages)

    def backward(i: int) -> Pass:
        _, m, chunk = forward(i)
        return Pass("backward", m, chunks - 1 - chunk)

    warm = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    passes = [forward(i) for i in range(warm)]
    for i in range(total - warm):
        passes += [forward(warm + i), backward(i)]
    return passes + [backward(i) for i in range(total - warm, total)]


def _zero_bubble(micro_batches: int, depth: int, stage: int) -> list[Pass]:
    """1f1b, with the weights' pass of a micro-batch `stage` backward passes later."""
    passes: list[Pass] = []
    due = 0
    for each in _one_f_one_b(micro_batches, depth):
        passes.append(each)
        if each.what == "backward" and each.micro_batch >= stage:
            passes.append(Pass("weights", due))
            due += 1
    return passes + [Pass("weights", m) for m in range(due, micro_batches)]
