"""Error feedback of a partition: what codecs lose of one step comes later, also after a restart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from partitioned import adam
from ranks import Job, values
from torch import nn

import hetcomm
from hetcomm.partitioning import LoadPlanner, collectives
from hetcomm.partitioning.collectives import Encoding
from hetcomm.partitioning.grid import Dimension
from hetcomm.partitioning.reductions import Reductions

Levels = tuple[str, str, str]

# Each has sums over hosts along another dimension: weights, gradients, optimizer states, replicas.
LEVELS: list[Levels] = [
    ("cluster", "cluster", "cluster"),
    ("rank", "cluster", "cluster"),
    ("host", "host", "cluster"),
    ("rank", "host", "host"),
]
WIDTH, STEPS = 256, 20


def equal_on_all_ranks(tensor: torch.Tensor) -> bool:
    first = tensor.clone()
    dist.broadcast(first, 0)
    equal = torch.tensor(float(torch.equal(first, tensor)))
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    return bool(equal)


def errors(rank: int, size: int, cases: list[dict[str, Any]]) -> list[tuple[float, bool]]:
    """Of each case, the weights' distance from exact ones after STEPS steps with the same gradient,
    over how far the weights moved; whether all ranks have the same weights."""
    generator = torch.Generator().manual_seed(5)
    gradients = torch.randn(size, WIDTH, WIDTH, generator=generator)
    start = torch.randn(WIDTH, WIDTH, generator=generator)
    moved = gradients.double().mean(0) * 0.01 * STEPS
    found = []
    for case in cases:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False))
        model[0].weight.data.copy_(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        settings = {"codecs": case["codecs"], "feedback": case["feedback"]}
        partition = hetcomm.partition(
            model, optimizer, *case["levels"], dtype=case["dtype"], **settings
        )
        for _ in range(STEPS):
            output = model(torch.eye(WIDTH))
            output.backward(gradients[rank].T.to(output.dtype))
            optimizer.step()
            optimizer.zero_grad()
        with partition.gathered():
            weights = model[0].weight.detach().clone()
        distance = (weights.double() - (start.double() - moved)).norm() / moved.norm()
        found.append((distance.item(), equal_on_all_ranks(weights)))
    return found


def with_and_without(job: Job, cases: list[dict[str, Any]]) -> None:
    """Feedback brings the weights ten times nearer to exact ones, in every case."""
    both = [{**case, "feedback": on} for case in cases for on in (False, True)]
    for found in values(job, errors, both):
        for case, (lossy, equal), (better, better_equal) in zip(
            cases, found[::2], found[1::2], strict=True
        ):
            assert equal and better_equal, f"{case}: ranks have different weights"
            assert lossy > 0.03, f"{case}: the codec did nothing"
            assert better < lossy / 10, case


@pytest.mark.parametrize("hosts", ["aabb", "abab"])
def test_feedback_bounds_what_sums_of_gradients_lose(job: Callable[..., Job], hosts: str) -> None:
    case = {"codecs": {"gradients": "int4"}, "dtype": None}
    with_and_without(job(hosts), [{**case, "levels": levels} for levels in LEVELS])


@pytest.mark.parametrize("hosts", ["aabb", "abab"])
def test_feedback_bounds_what_updates_lose(job: Callable[..., Job], hosts: str) -> None:
    case = {"codecs": {"updates": "int4"}, "dtype": torch.bfloat16}
    levels: list[Levels] = [
        ("rank", "rank", "cluster"),
        ("rank", "cluster", "cluster"),
        ("rank", "host", "cluster"),
        ("host", "host", "cluster"),
    ]
    with_and_without(job(hosts), [{**case, "levels": each} for each in levels])


def start_apart(rank: int, size: int) -> bool:
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    partition = hetcomm.partition(
        model,
        adam(model.parameters()),
        dtype=torch.bfloat16,
        codecs={"updates": "int4"},
        feedback=True,
        sync=False,
    )
    with partition.gathered():
        return equal_on_all_ranks(nn.utils.parameters_to_vector(model.parameters()).detach())


def test_differences_begin_with_the_same_weights_on_all_ranks(job: Callable[..., Job]) -> None:
    assert values(job("ab"), start_apart) == [True, True]


def test_sums_of_one_residual_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the order of their encodings, and so the bits, would depend on timing."""
    in_flight: set[str] = set()
    most = 0

    class Sum:
        def __init__(self, key: str) -> None:
            nonlocal most
            assert key not in in_flight, f"two sums of {key} at once"
            self.key = key
            in_flight.add(key)
            most = max(most, len(in_flight))

        def wait(self) -> None:
            in_flight.remove(self.key)

    monkeypatch.setattr(
        collectives, "scatter_sum", lambda out, whole, along, encoding, key: Sum(key)
    )
    along = Dimension(2, 0)
    grid = SimpleNamespace(weights=along, gradients=along)
    flats: list[Any] = [
        SimpleNamespace(
            name=name,
            grid=grid,
            gradient=None,
            length=8,
            dtype=torch.float32,
            take_gradient=lambda: torch.zeros(8),
        )
        for name in "ab"
    ]
    reductions = Reductions(Encoding("int4", hetcomm.Feedback()), bucket=0)
    for number in (0, 1, 1, 0, 0, 0, 1):
        reductions.add(flats[number])
    reductions.finish()
    assert most > 1 and not in_flight


def build(
    levels: Levels, feedback: bool = True, overlap: bool = False
) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(7)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2)))
    optimizer = adam(model.parameters())
    partition = hetcomm.partition(
        model,
        optimizer,
        *levels,
        dtype=torch.bfloat16,
        codecs={"gradients": "int4", "updates": "int4"},
        feedback=feedback,
        overlap=overlap,
    )
    return model, optimizer, partition


def train(model: nn.Module, optimizer: Any, rank: int, steps: range) -> None:
    for step in steps:
        for part in range(2):
            generator = torch.Generator().manual_seed(100 * step + 10 * part + rank)
            x = torch.randn(16, WIDTH, generator=generator)
            (model(x).float() - x.roll(1, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def weights_of(model: nn.Module, partition: Any) -> torch.Tensor:
    """What the ranks hold, then the master weights of this rank."""
    with partition.gathered():
        held = nn.utils.parameters_to_vector(model.parameters()).detach().float()
    return torch.cat([held, *(flat.master for unit in partition.units for flat in unit.trainable)])


def overlapped(rank: int, size: int, levels: Levels) -> bool:
    """Whether updates that overlap give the same bits, also those of checkpoints."""
    ends, states = [], []
    for overlap in (False, True):
        model, optimizer, partition = build(levels, overlap=overlap)
        train(model, optimizer, rank, range(3))
        (saved,) = partition.state_dict()["feedback"].values()
        states.append(torch.cat([each.reshape(-1).float() for each in saved.updates]))
        train(model, optimizer, rank, range(3, 6))
        ends.append(weights_of(model, partition))
    return torch.equal(*ends) and torch.equal(*states)


@pytest.mark.parametrize("levels", [("rank", "host", "cluster"), ("host", "host", "cluster")])
def test_overlapped_updates_keep_the_bits(job: Callable[..., Job], levels: Levels) -> None:
    assert all(values(job("abab"), overlapped, levels))


def loaded(
    levels: Levels, path: Path, planner: Any = None, feedback: bool = True
) -> tuple[nn.Module, Any, Any, list[str]]:
    """A partition from a checkpoint, and its warnings."""
    model, optimizer, partition = build(levels, feedback)
    state = partition.state_dict()
    dcp.load(state, checkpoint_id=path, planner=planner)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        partition.load_state_dict(state)
    return model, optimizer, partition, [str(each.message) for each in said]


def resume(rank: int, size: int, levels: Levels, path: Path) -> dict[str, Any]:
    model, optimizer, partition = build(levels)
    train(model, optimizer, rank, range(3))
    dcp.async_save(partition.state_dict(), checkpoint_id=path).result(60)
    before = partition.memory()
    train(model, optimizer, rank, range(3, 6))
    wanted = weights_of(model, partition)
    found: dict[str, Any] = {}
    for name, planner in (("torch's planner", None), ("our planner", LoadPlanner())):
        model, optimizer, partition, said = loaded(levels, path, planner)
        train(model, optimizer, rank, range(3, 6))
        found[name] = (torch.equal(weights_of(model, partition), wanted), said)
    # A used partition goes back, and forgets the residuals of later steps.
    state = partition.state_dict()
    dcp.load(state, checkpoint_id=path)
    partition.load_state_dict(state)
    found["bytes"] = (partition.memory().feedback == before.feedback, before.feedback)
    train(model, optimizer, rank, range(3, 6))
    found["again"] = torch.equal(weights_of(model, partition), wanted)
    del state["feedback"]
    dcp.load(state, checkpoint_id=path)
    partition.load_state_dict(state)
    train(model, optimizer, rank, range(3, 6))
    found["needed"] = not torch.equal(weights_of(model, partition), wanted)
    return found


@pytest.mark.parametrize("levels", [("rank", "host", "cluster"), ("host", "host", "host")])
def test_training_resumes_with_the_same_bits(
    job: Callable[..., Job], tmp_path: Path, levels: Levels
) -> None:
    for found in values(job("abab"), resume, levels, tmp_path / "saved"):
        assert found["torch's planner"] == found["our planner"] == (True, [])
        assert found["bytes"][0] and found["bytes"][1] > 0
        assert found["again"] and found["needed"]


def save(rank: int, size: int, path: Path) -> None:
    model, optimizer, partition = build(("rank", "host", "cluster"))
    train(model, optimizer, rank, range(3))
    dcp.save(partition.state_dict(), checkpoint_id=path)


def load_elsewhere(rank: int, size: int, path: Path) -> dict[str, Any]:
    levels: Levels = ("host", "host", "cluster")
    try:
        loaded(levels, path)
        refused = ""
    except dcp.CheckpointException as error:
        refused = str(error)
    model, _, partition, said = loaded(levels, path, LoadPlanner())
    full = partition.full_state_dict()
    with partition.gathered():
        held = {name: value.clone() for name, value in model.state_dict().items()}
    *_, silent = loaded(levels, path, feedback=False)
    return {
        "refused": refused,
        "said": said,
        "silent": silent,
        "bytes": partition.memory().feedback,
        "equal": equal_on_all_ranks(nn.utils.parameters_to_vector(held.values())),
        "exact": all(torch.equal(held[name], full[name].bfloat16()) for name in full),
    }


@pytest.mark.parametrize("hosts", ["aabb", "ab"])
def test_residuals_of_another_layout_are_dropped_aloud(
    job: Callable[..., Job], tmp_path: Path, hosts: str
) -> None:
    path = tmp_path / "saved"
    values(job("abab"), save, path)
    for rank, found in enumerate(values(job(hosts), load_elsewhere, path)):
        assert "Missing key in checkpoint state_dict: feedback.rank" in found["refused"]
        assert len(found["said"]) == (rank == 0)
        assert all("residuals start at zero" in text for text in found["said"])
        assert found["silent"] == []
        assert found["bytes"] == 0 and found["equal"] and found["exact"]
