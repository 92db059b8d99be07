"""Checkpoints of a partition load into other partitions and into the plain module."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import gpt
import hypothesis.strategies as st
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import given
from partitioned import adam, train_by_hand, train_partitioned
from ranks import Job, check_texts, refusal, values
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import hetcomm
from hetcomm.partitioning.pieces import Piece, boxes

Levels = tuple[str, str, str]
OVERLAPPED = ("rank", "cluster", "cluster")


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = gpt.Gpt(2)
    model.register_buffer("scale", torch.full((3,), float(seed)))
    model.blocks[0].wide.requires_grad_(False)
    model.head.weight = model.embedding.weight
    return model


def _partition(levels: Levels, seed: int = 7) -> tuple[nn.Module, Any, Any]:
    model = _model(seed)
    optimizer = adam(model.parameters())
    overlap = levels == OVERLAPPED
    return model, optimizer, hetcomm.partition(model, optimizer, *levels, overlap=overlap)


def _losses(model: nn.Module) -> list[float]:
    """The losses of all ranks' data, each on the whole batches."""
    model.eval()
    with torch.no_grad():
        data = [batch for _, batch in zip(range(2), gpt.batches(), strict=False)]
        return [gpt.loss_of(model(tokens), targets).item() for tokens, targets in data]


def save(rank: int, size: int, levels: Levels, path: Path) -> tuple[list[float], list[float]]:
    model, optimizer, partition = _partition(levels)
    train_partitioned(model, optimizer, partition)
    dcp.save(partition.state_dict(), checkpoint_id=path)
    before = _losses(model)
    model.train()
    train_partitioned(model, optimizer, partition)
    return before, _losses(model)


def load(rank: int, size: int, levels: Levels, path: Path) -> tuple[list[float], list[float]]:
    model, optimizer, partition = _partition(levels, seed=8)
    if rank == 0:
        optimizer.param_groups[0]["lr"] = 123.0
    state = partition.state_dict()
    dcp.load(state, checkpoint_id=path)
    partition.load_state_dict(state)
    before = _losses(model)
    assert model.scale[0] == 7.0 and optimizer.param_groups[0]["lr"] == 0.01
    model.train()
    train_partitioned(model, optimizer, partition)
    return before, _losses(model)


def _plain() -> tuple[nn.Module, Any, dict[str, Any]]:
    """A module, its optimizer, and the state of both."""
    model = _model(8)
    optimizer = adam(p for p in model.parameters() if p.requires_grad)
    weights, states = get_state_dict(model, optimizer)
    return model, optimizer, {"model": weights, "optimizer": states}


def load_plain(rank: int, size: int, path: Path) -> tuple[list[float], list[float]]:
    model, optimizer, state = _plain()
    dcp.load(state, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    before = _losses(model)
    model.train()
    train_by_hand(model, optimizer, dist.group.WORLD)
    return before, _losses(model)


CASES: list[tuple[Levels, list[tuple[str, Levels]]]] = [
    (
        ("host", "host", "cluster"),
        [("abab", ("cluster", "cluster", "cluster")), ("ab", OVERLAPPED)],
    ),
    (
        ("rank", "rank", "rank"),
        [("abab", ("rank", "host", "cluster")), ("a", ("rank", "rank", "rank"))],
    ),
    (OVERLAPPED, [("ab", OVERLAPPED)]),
]


@pytest.mark.parametrize(("levels", "others"), CASES)
def test_training_resumes_under_other_levels_and_ranks(
    job: Callable[..., Job], tmp_path: Path, levels: Levels, others: list[tuple[str, Levels]]
) -> None:
    path = tmp_path / "checkpoint"
    before, after = values(job("aabb"), save, levels, path)[0]
    assert before[0] != after[0], "nothing was learned"
    for layout, other in others:
        loaded, resumed = values(job(layout), load, other, path)[0]
        assert loaded == pytest.approx(before, rel=1e-6), (layout, other)
        # Data are divided among all ranks, so the mean over them is the same.
        assert resumed == pytest.approx(after, rel=2e-6), (layout, other)
    loaded, resumed = values(job("ab"), load_plain, path)[0]
    assert loaded == pytest.approx(before, rel=1e-6)
    assert resumed == pytest.approx(after, rel=2e-6)


def whole(rank: int, size: int) -> list[Any]:
    model, optimizer, partition = _partition(("host", "host", "cluster"))
    train_partitioned(model, optimizer, partition)
    full = partition.full_state_dict()
    every = [full]
    dist.broadcast_object_list(every, 0)
    other, _, target = _partition(("rank", "host", "host"), seed=8)
    target.load_state_dict({"model": every[0]})
    with partition.gathered():
        weights = {name: value.clone() for name, value in model.state_dict().items()}
    equal = all(torch.equal(weights[name], every[0][name]) for name in weights)
    return [equal, sorted(weights) == sorted(every[0]), len(full), _losses(model), _losses(other)]


def save_in_other_ways(rank: int, size: int, path: Path) -> list[bool]:
    """Saves by a thread, and by torch's protocol of objects with a state, and loads again."""
    model, optimizer, partition = _partition(("cluster", "cluster", "cluster"))
    train_partitioned(model, optimizer, partition)
    saved = partition.full_state_dict()
    dcp.async_save(partition.state_dict(), checkpoint_id=path / "thread").result(60)
    dcp.save({"training": partition}, checkpoint_id=path / "object")
    equal = []
    for kind in ("thread", "object"):
        train_partitioned(model, optimizer, partition)
        changed = partition.full_state_dict()
        if kind == "thread":
            state = partition.state_dict()
            dcp.load(state, checkpoint_id=path / kind)
            partition.load_state_dict(state)
        else:
            dcp.load({"training": partition}, checkpoint_id=path / kind)
        loaded = partition.full_state_dict()
        equal.append(all(torch.equal(loaded[name], saved[name]) for name in saved))
        equal.append(all(torch.equal(loaded[name], changed[name]) for name in saved))
    return equal


def test_checkpoints_of_threads_and_objects_load(job: Callable[..., Job], tmp_path: Path) -> None:
    first, *_ = values(job("ab", backend="cpu:hetcomm"), save_in_other_ways, tmp_path)
    assert first == [True, False, True, False]


def test_full_state_dict_loads_into_any_partition(job: Callable[..., Job]) -> None:
    for rank, result in enumerate(values(job("abab"), whole)):
        equal, same_names, names, losses, others = result
        assert equal and same_names
        assert (names > 0) == (rank == 0)
        assert losses == others


def load_wrong(rank: int, size: int) -> list[str]:
    _, _, partition = _partition(("host", "host", "cluster"))
    _, _, other = _partition(("rank", "rank", "rank"))
    names, shapes, groups = (partition.state_dict() for _ in range(3))
    names["model"]["other"] = names["model"].pop("positions")
    shapes["model"]["positions"] = torch.ones(3)
    groups["optimizer"]["param_groups"] = []
    states = partition.state_dict()
    states["optimizer"] = other.state_dict()["optimizer"]
    weights = other.full_state_dict()  # of rank 0 alone
    texts = []
    for state in (
        names,
        shapes,
        groups,
        states,
        other.state_dict(),
        {"model": weights},
        {"positions": torch.ones(12, 32)},
    ):
        try:
            partition.load_state_dict(state)
            texts.append("no error")
        except hetcomm.InvalidArgumentError as error:
            texts.append(str(error))
    return texts


def test_states_of_other_modules_and_partitions_are_refused(job: Callable[..., Job]) -> None:
    expected = [
        r"missing are \['positions'\], unknown are \['other'\]",
        r"positions: expected shape \(12, 32\), got \(3,\)",
        "expected 1 parameter groups, got 0",
        "expected a state of this partition",
        "got another partition's piece",
        r"^rank 1: model: expected the module's names, missing are \['blocks.0.before_",
        'expected a dictionary with "model" and perhaps "optimizer", got the keys .*positions',
    ]
    for texts in values(job("abab"), load_wrong):
        for text, message in zip(expected, texts, strict=True):
            assert re.search(text, message), message


def load_wrong_states(rank: int, size: int) -> list[str]:
    _, _, partition = _partition(("host", "host", "cluster"))
    _, optimizer, state = _plain()
    numbered = {**state, "optimizer": optimizer.state_dict()}
    renamed, shaped, few = (copy.deepcopy(state) for _ in range(3))
    renamed["optimizer"]["state"]["other"] = renamed["optimizer"]["state"].pop("positions")
    shaped["optimizer"]["state"]["positions"]["exp_avg"] = torch.ones(3)
    few["optimizer"] = partition.state_dict()["optimizer"]
    few["optimizer"]["state"].popitem()
    return [
        refusal(lambda state=state: partition.load_state_dict(state))
        for state in (numbered, renamed, shaped, few)
    ]


def test_states_of_other_optimizers_are_refused(job: Callable[..., Job]) -> None:
    expected = [
        r"by the parameters' names, missing are \['.*'\], unknown are \[0, 1, 2\]; use Partition",
        r"unknown are \['other'\]",
        r"positions: expected exp_avg of shape \(12, 32\), or one element, got \(3,\)",
        r"missing are \['[a-z0-9_.]*'\], unknown are \[\]",
    ]
    check_texts(values(job("abab"), load_wrong_states), expected)


def load_few_states(rank: int, size: int) -> list[dict[str, float]]:
    """This rank's counts of steps by parameter: trained, then after each load."""
    model, optimizer, partition = _partition(("host", "host", "cluster"))
    train_partitioned(model, optimizer, partition)
    _, _, state = _plain()
    states = state["optimizer"]["state"]
    states["blocks.0.wide.weight"] = {"step": torch.ones(())}  # frozen, as Adagrad may have
    del states["positions"]
    empty = {**state, "optimizer": {**state["optimizer"], "state": {}}}
    found = []
    for each in (None, state, empty):
        if each is not None:
            partition.load_state_dict(each)
        own = partition.state_dict()["optimizer"]["state"]
        found.append({name: values["step"].item() for name, values in own.items()})
    return found


def test_parameters_without_a_saved_state_start_afresh(job: Callable[..., Job]) -> None:
    holders = 0
    for trained, loaded, emptied in values(job("abab"), load_few_states):
        assert set(trained.values()) == {3.0} and set(emptied.values()) == {0.0}
        assert loaded == {name: float(name != "positions") for name in trained}
        holders += "positions" in trained
    assert holders


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    start = draw(st.integers(0, prod(shape)))
    return start, draw(st.integers(start, prod(shape))), shape


@given(ranges())
def test_boxes_cover_a_flat_range_once_and_in_order(case: tuple[int, int, tuple[int, ...]]) -> None:
    start, end, shape = case
    found = boxes(start, end, shape)
    assert len(found) <= max(2 * len(shape) - 1, 1)
    numbers = torch.arange(prod(shape)).view(shape)
    covered = [
        numbers[tuple(slice(o, o + s) for o, s in zip(*box, strict=True))].reshape(-1)
        for box in found
    ]
    assert torch.cat([*covered, torch.empty(0, dtype=torch.int64)]).tolist() == list(
        range(start, end)
    )


def test_arithmetic_on_a_piece_is_refused() -> None:
    piece = Piece(torch.ones(3), 2, torch.Size([2, 4]))
    assert piece.shape == (2, 4) and piece.clone().own.sum() == 3
    with pytest.raises(hetcomm.InvalidArgumentError, match="expected a whole tensor"):
        piece + 1
