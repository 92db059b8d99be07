"""A checkpoint of a pipeline loads into other layouts, and into the whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import divisible
import gpt
import pytest
import staged
import torch
import torch.distributed.checkpoint as dcp
from ranks import Job, values
from staged import OVERLAPPED, layout
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from hetcomm import plan
from hetcomm.partitioning import local

SAVED = layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], **OVERLAPPED)
INTERLEAVED = layout([[1, 2], [4, 6]], schedule="interleaved", micro_batch=3)
OTHERS = {
    "four stages": layout([[1, 2, 4, 6]], order=[1, 0, 3, 2]),
    "interleaved": INTERLEAVED,
    "one stage": layout([[6]], replicas=3, **OVERLAPPED),
}


def model(tied: bool, divided: bool) -> Any:
    """divided: one whose layers tensor ranks can divide."""
    return divisible.model(tied) if divided else staged.model(4, tied)


def run(
    rank: int,
    size: int,
    path: Path,
    saved: Path,
    save: bool,
    tied: bool,
    divided: bool = False,
) -> list[float]:
    """Trains, saves and trains on; or loads and trains. The losses of the second training."""
    job = plan.load(path)
    chunks = plan.split(model(tied, divided), job, divisible.by_names() if divided else None)
    parameters = [p for chunk in chunks for p in chunk.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01, eps=1e-3)
    partition = plan.partition(chunks, optimizer, job)
    example = next(staged.batches())[0][: job.layout.micro_batch]
    schedule = plan.schedule(chunks, job, gpt.loss_of, example, partition)
    if save:
        staged.steps(job, schedule, optimizer)
        dcp.save(partition.state_dict(), checkpoint_id=saved)
    else:
        with torch.no_grad():
            for parameter in parameters:
                local.values(parameter).zero_()
        state = partition.state_dict()
        dcp.load(state, checkpoint_id=saved)
        partition.load_state_dict(state)
    return staged.steps(job, schedule, optimizer)


def run_plain(rank: int, size: int, saved: Path, tied: bool, divided: bool = False) -> list[float]:
    whole = model(tied, divided)
    optimizer = torch.optim.Adam(whole.parameters(), lr=0.01, eps=1e-3)
    weights, states = get_state_dict(whole, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=saved)
    set_state_dict(
        whole, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    losses = []
    for tokens, targets in staged.batches():
        loss = gpt.loss_of(whole(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_training_resumes_by_other_layouts(
    job: Callable[..., Job], tmp_path: Path, tied: bool
) -> None:
    path, saved = tmp_path / "layout.json", tmp_path / "checkpoint"
    SAVED.save(path)
    after = values(job("a" * 4, backend="gloo"), run, path, saved, True, tied)[2]
    assert len(after) == staged.STEPS
    for name, other in OTHERS.items():
        other.save(path)
        ranks = "a" * len(other.ranks)
        found = values(job(ranks, backend="gloo"), run, path, saved, False, tied)
        (resumed, *_) = filter(None, found)
        assert resumed == pytest.approx(after, rel=2e-6), name
    (plain,) = values(job("a", backend="gloo"), run_plain, saved, tied)
    assert plain == pytest.approx(after, rel=2e-6)


def test_a_checkpoint_of_one_stage_loads_into_several(
    job: Callable[..., Job], tmp_path: Path
) -> None:
    """Tied embeddings have one state of the optimizer there, and one on each of two stages here."""
    path, saved = tmp_path / "layout.json", tmp_path / "checkpoint"
    layout([[6]], replicas=2, **OVERLAPPED).save(path)
    after, _ = values(job("aa", backend="gloo"), run, path, saved, True, True)
    SAVED.save(path)
    found = values(job("aaaa", backend="gloo"), run, path, saved, False, True)
    assert next(filter(None, found)) == pytest.approx(after, rel=2e-6)


# Saved by one layout, loaded by the others.
DIVIDED = {
    "two of two": layout([[3, 6]], tensor=[2, 2], **OVERLAPPED),
    "two": layout([[6]], replicas=2, tensor=[2], optimizer_states="cluster"),
    "one, then two": layout([[2, 6]], tensor=[1, 2]),
    "one": layout([[6]], replicas=2, **OVERLAPPED),
}


@pytest.mark.parametrize("first", ["two of two", "one"])
def test_training_resumes_by_other_tensor_degrees(
    job: Callable[..., Job], tmp_path: Path, first: str
) -> None:
    path, saved = tmp_path / "layout.json", tmp_path / "checkpoint"

    def trained(chosen: str, save: bool) -> list[float]:
        DIVIDED[chosen].save(path)
        ranks = job("a" * len(DIVIDED[chosen].ranks), backend="gloo")
        found: list[list[float]] = values(ranks, run, path, saved, save, False, True)
        return next(filter(None, found))

    after = trained(first, True)
    for other in DIVIDED.keys() - {first}:
        assert trained(other, False) == pytest.approx(after, rel=2e-6), other
    (plain,) = values(job("a", backend="gloo"), run_plain, saved, False, True)
    assert plain == pytest.approx(after, rel=2e-6)
