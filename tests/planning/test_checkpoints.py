"""A checkpoint of a pipeline loads into other layouts, and into the whole model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpt
import pytest
import staged
import torch
import torch.distributed.checkpoint as dcp
from ranks import Job, values
from staged import OVERLAPPED, layout
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from hetcomm import plan

SAVED = layout([[2, 6]], replicas=2, order=[3, 0, 2, 1], **OVERLAPPED)
INTERLEAVED = layout([[1, 2], [4, 6]], schedule="interleaved", micro_batch=3)
OTHERS = {
    "four stages": layout([[1, 2, 4, 6]], order=[1, 0, 3, 2]),
    "interleaved": INTERLEAVED,
    "one stage": layout([[6]], replicas=3, **OVERLAPPED),
}


def run(rank: int, size: int, path: Path, saved: Path, save: bool, tied: bool) -> list[float]:
    """Trains, saves and trains on; or loads and trains. The losses of the second training."""
    job = plan.load(path)
    chunks = plan.split(staged.model(4, tied), job)
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
                parameter.zero_()
        state = partition.state_dict()
        dcp.load(state, checkpoint_id=saved)
        partition.load_state_dict(state)
    return staged.steps(job, schedule, optimizer)


def run_plain(rank: int, size: int, saved: Path, tied: bool) -> list[float]:
    model = staged.model(4, tied)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
    weights, states = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=saved)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    losses = []
    for tokens, targets in staged.batches():
        loss = gpt.loss_of(model(tokens), targets)
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
