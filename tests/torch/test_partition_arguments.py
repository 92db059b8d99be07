"""hetcomm.partition() refuses wrong arguments on all ranks, and says what to do."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from partitioned import sgd
from ranks import Job, launch, values
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hetcomm
import hetcomm.codecs
from hetcomm.partitioning import grid, levels

Case = Callable[[int], Any]


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def _call(
    model: nn.Module | None = None,
    optimizer: Any = None,
    *levels: Any,
    **settings: Any,
) -> Any:
    model = model or _model()
    return hetcomm.partition(model, optimizer or sgd(model.parameters()), *levels, **settings)


def _mixed_mesh(rank: int) -> Any:
    return _call(None, None, init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b")))


def _twice(rank: int) -> Any:
    model = _model()
    _call(model)
    return _call(model)


def _part_twice(rank: int) -> Any:
    model = _model()
    _call(model)
    return _call(nn.Sequential(model[0]))


def _frozen(rank: int) -> Any:
    return _call(_model().requires_grad_(False), sgd(_model().parameters()))


def _missing(rank: int) -> Any:
    model = _model()
    return _call(model, sgd(model[0].parameters()))


def _foreign(rank: int) -> Any:
    model = _model()
    return _call(model, sgd([*model.parameters(), nn.Parameter(torch.ones(2))]))


class Whitening(torch.optim.Optimizer):
    """Divides each gradient by its norm over the parameter."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] * parameter.grad / parameter.grad.norm()


def _optimizer(kind: Any, rank: int) -> Any:
    model = _model()
    return _call(model, kind(model.parameters()))


def _unlike_modules(rank: int) -> Any:
    return _call(nn.Linear(3, 4 + rank % 2))


def _unlike_ties(rank: int) -> Any:
    model = _model()
    return _call(model, tied={str(rank): model[0].weight})


def _ddp(rank: int) -> Any:
    model = DistributedDataParallel(_model())
    return _call(model)


CASES: dict[str, tuple[Case, str]] = {
    "unknown level": (lambda r: _call(None, None, "rack"), 'weights: expected "rank", "island"'),
    "level of one rank": (
        lambda r: _call(None, None, "rack" if r == 2 else "rank"),
        'rank 2: weights: expected "rank"',
    ),
    "unlike levels": (
        lambda r: _call(None, None, "host" if r else "rank"),
        "weights: expected one level on all ranks",
    ),
    "levels not nested": (
        lambda r: _call(None, None, "host", "rank"),
        "expected each group of weights='host' inside one of gradients='rank'",
    ),
    "outer level not nested": (
        lambda r: _call(None, None, "rank", "cluster", "host"),
        "choose for optimizer_states a level that is as wide or wider",
    ),
    "mesh of two dimensions": (_mixed_mesh, r"take one of them: mesh\['a'\]"),
    "no module": (lambda r: hetcomm.partition(None, None), "expected an nn.Module"),
    "partitioned twice": (_twice, "partitioned or wrapped already"),
    "part of a partitioned module": (_part_twice, "partitioned or wrapped already"),
    "DDP": (_ddp, "wrapped already; give partition"),
    "nothing to train": (_frozen, "expected trainable parameters"),
    "parameters not in the optimizer": (_missing, r"\['1.weight', '1.bias'\] are missing"),
    "parameters of no module": (_foreign, "expected parameters of the module only, got 1 others"),
    "norms": (lambda r: _optimizer(Whitening, r), "for Whitening its step differs"),
    "Adafactor": (lambda r: _optimizer(torch.optim.Adafactor, r), "for Adafactor its step differs"),
    "LBFGS": (lambda r: _optimizer(torch.optim.LBFGS, r), "for LBFGS its trial raised"),
    "SparseAdam": (lambda r: _optimizer(torch.optim.SparseAdam, r), "for SparseAdam its trial"),
    "integers": (lambda r: _call(dtype=torch.int32), "expected a floating-point dtype"),
    "unlike dtypes": (
        lambda r: _call(dtype=torch.bfloat16 if r else None),
        "bucket, overlap and the names of tied: expected the same on all ranks",
    ),
    "unlike prefetch": (
        lambda r: _call(prefetch=r != 2),
        "prefetch, sync, bucket, overlap and the names of tied: expected the same on all ranks",
    ),
    "tied parameters of no module": (
        lambda r: _call(tied={"a": nn.Parameter(torch.ones(2))}),
        r"tied: expected parameters of the module, but \['a'\] is none",
    ),
    "unlike ties": (_unlike_ties, "the names of tied: expected the same on all ranks"),
    "unlike modules": (_unlike_modules, "expected equal parameters, units and groups"),
    "units of no class": (lambda r: _call(units="Linear"), "units: expected a list of module"),
    "units without a match": (lambda r: _call(units=[nn.LSTM]), "found none; leave units out"),
    "a predicate that fails on one rank": (
        lambda r: _call(units=lambda module: 1 // (r - 1)),
        "rank 1: ZeroDivisionError",
    ),
    "traffic": (lambda r: _call(codecs={"weight": None}), "codecs: expected keys of weights"),
    "a bucket of no number": (lambda r: _call(bucket=-1), "bucket: expected a number of elements"),
    "feedback of nothing": (
        lambda r: _call(codecs={"weights": "int8", "gradients": "lossless"}, feedback=True),
        "feedback: expected a lossy codec of gradients or updates",
    ),
    "a bucket with feedback": (
        lambda r: _call(codecs={"gradients": "int8"}, feedback=True, bucket=1),
        "bucket: expected 0 with feedback, got 1",
    ),
    "meta": (lambda r: _call(nn.Linear(2, 2, device="meta")), "on one device with memory"),
}


def _try(cases: dict[str, tuple[Case, str]], rank: int) -> dict[str, tuple[str, str]]:
    """The name and the text of the error of each case."""
    found = {}
    for name, (case, _) in cases.items():
        try:
            case(rank)
            found[name] = ("no error", "")
        except Exception as error:
            found[name] = (type(error).__name__, str(error))
    return found


def _check(results: list[dict[str, tuple[str, str]]], cases: dict[str, tuple[Case, str]]) -> None:
    for name, (_, text) in cases.items():
        for rank, found in enumerate(results):
            kind, message = found[name]
            assert kind == "InvalidArgumentError", (name, rank, found[name])
            assert re.search(text, message), (name, rank, message)


def refuse(rank: int, size: int) -> dict[str, tuple[str, str]]:
    return _try(CASES, rank)


def test_wrong_arguments_are_refused_on_all_ranks(job: Callable[..., Job]) -> None:
    _check(values(job("aabb"), refuse), CASES)


def unequal_hosts(rank: int, size: int) -> None:
    _call(None, None, "host")


def test_hosts_of_unequal_size_are_refused(job: Callable[..., Job]) -> None:
    for outcome in launch(job("aab"), unequal_hosts):
        assert "InvalidArgumentError" in outcome.error, outcome
        assert "expected groups of equal size, got [[0, 1], [2]]" in outcome.text


def _steps(rank: int) -> tuple[nn.Module, Any, Any]:
    model = gpt.Gpt(2)
    optimizer = sgd(model.parameters())
    return model, optimizer, hetcomm.partition(model, optimizer, "host", "host")


def _loss(model: nn.Module) -> torch.Tensor:
    tokens, targets = next(gpt.batches())
    return gpt.loss_of(model(tokens), targets)


def closure(rank: int) -> None:
    model, optimizer, _ = _steps(rank)
    optimizer.step(lambda: _loss(model))


def added_group(rank: int) -> None:
    model, optimizer, _ = _steps(rank)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    _loss(model).backward()
    optimizer.step()


def frozen_later(rank: int) -> None:
    model, optimizer, _ = _steps(rank)
    model.head.requires_grad_(False)
    optimizer.step()


def other_control_flow(rank: int) -> None:
    model, optimizer, _ = _steps(rank)
    if rank == 1:
        model.blocks = nn.ModuleList(reversed(model.blocks))
    _loss(model).backward()
    optimizer.step()


def reentrant(rank: int) -> None:
    model, _, _ = _steps(rank)
    x = torch.randn(2, 3, gpt.WIDTH, requires_grad=True)
    y = model.blocks[1](checkpoint(model.blocks[0], x, use_reentrant=True))
    y.sum().backward()


class Inlined(nn.Module):
    """Uses the parameters of a layer without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 4), nn.Linear(4, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(x, self.layers[0].weight, self.layers[0].bias)
        return self.layers[1](x)


def inlined_while_updating(rank: int) -> None:
    model = Inlined()
    optimizer = sgd(model.parameters())
    hetcomm.partition(model, optimizer, "rank", "cluster", overlap=True)
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def inlined(rank: int) -> None:
    model = Inlined()
    _call(model, None, "host", "host")
    model(torch.ones(2, 3)).sum().backward()


USES: dict[str, tuple[Case, str]] = {
    "module.state_dict()": (lambda r: _steps(r)[0].state_dict(), "Partition.gathered"),
    "state_dict() of a part": (lambda r: _steps(r)[0].head.state_dict(), "Partition.gathered"),
    "module.load_state_dict()": (
        lambda r: _steps(r)[0].load_state_dict(gpt.Gpt(2).state_dict()),
        r"Partition.load_state_dict\(\)",
    ),
    "optimizer.state_dict()": (lambda r: _steps(r)[1].state_dict(), "Partition.state_dict"),
    "optimizer.load_state_dict()": (
        lambda r: _steps(r)[1].load_state_dict(sgd(_model().parameters()).state_dict()),
        "Partition.load_state_dict",
    ),
    "deepcopy": (lambda r: copy.deepcopy(_steps(r)[0]), r"copy before partition\(\)"),
    "module.to()": (lambda r: _steps(r)[0].to(torch.float64), "move the module before"),
    "a negative norm": (
        lambda r: _steps(r)[2].clip_grad_norm_(-1.0),
        "max_norm of at least 0 and norm_type above 0, got -1.0 and 2.0",
    ),
    "closure": (closure, r"call loss.backward\(\) before step"),
    "a later group": (added_group, r"call add_param_group\(\) before"),
    "frozen later": (frozen_later, r"freeze parameters before partition"),
    "other units on one rank": (other_control_flow, "expected all ranks to run the same units"),
    "a unit without calls": (inlined, "layers.0: expected calls of this unit"),
    "a unit without calls while weights arrive": (
        inlined_while_updating,
        "layers.0: expected calls of this unit",
    ),
    "reentrant checkpoint": (reentrant, "use_reentrant=False"),
}


def misuse(rank: int, size: int) -> dict[str, tuple[str, str]]:
    return _try(USES, rank)


def test_wrong_uses_are_refused(job: Callable[..., Job]) -> None:
    _check(values(job("aabb"), misuse), USES)


def record_codecs(rank: int, size: int) -> list[str]:
    """The codecs that the collectives of a step are started in, in order."""
    found: list[str] = []

    @contextmanager
    def codec(name: str, **_: Any) -> Iterator[None]:
        found.append(name)
        yield

    hetcomm.codecs.codec = codec
    model = gpt.Gpt(2)
    optimizer = sgd(model.parameters())
    codecs = {"weights": "int8", "gradients": "int4", "updates": None}
    partition = hetcomm.partition(model, optimizer, "host", "host", codecs=codecs)
    found.clear()
    _loss(model).backward()
    optimizer.step()
    with partition.gathered():
        return found


def test_codecs_are_those_of_the_traffic(job: Callable[..., Job]) -> None:
    # The root and two blocks. The root is gathered once, because it is kept.
    for found in values(job("aabb"), record_codecs):
        assert found[:3] == ["int8"] * 3, "forward pass"
        assert sorted(found[3:8]) == ["int4"] * 3 + ["int8"] * 2, "backward pass"
        assert found[8:] == ["int4"] * 3, "step"


def meshes(rank: int, size: int) -> list[Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("over", "inside"))
    groups = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    odd = groups[0] if rank in (0, 3) else groups[1]
    found = []
    for inner in (mesh["inside"], odd):
        partition = _call(None, None, inner, inner, "cluster")
        found.append([(d.size, d.position) for d in partition.grid.dimensions])
    return found


def test_levels_may_be_meshes_and_groups(job: Callable[..., Job]) -> None:
    for rank, (mesh, group) in enumerate(values(job("aabb"), meshes)):
        assert mesh == [(2, rank % 2), (1, 0), (2, rank // 2), (1, 0)]
        assert group == [(2, int(rank > 1)), (1, 0), (2, int(rank in (1, 3))), (1, 0)]


@pytest.mark.parametrize(
    "partitions",
    [
        [[[0], [1], [2], [3], [4], [5], [6], [7]], [[0, 5], [1, 4], [2, 7], [3, 6]]],
        [[[0, 5], [1, 4], [2, 7], [3, 6]], [[0, 1, 4, 5], [2, 3, 6, 7]]],
        [[[0, 7], [1, 6], [2, 5], [3, 4]], [[0, 3, 4, 7], [1, 2, 5, 6]]],
    ],
)
def test_shards_of_a_level_are_nested_and_cover_the_buffer(
    partitions: list[levels.Groups],
) -> None:
    size, length = 8, 64
    nested = [*partitions, [list(range(size))]]
    lines = grid.lines(nested, size)

    def of(rank: int) -> grid.Grid:
        mine = [next(line for line in each if rank in line) for each in lines]
        return grid.Grid(*(grid.Dimension(len(m), m.index(rank)) for m in mine))

    for depth, groups in enumerate(nested, 1):
        for group in groups:
            shards = sorted(of(rank).shard(length, depth) for rank in group)
            assert [a for a, _ in shards] == [0, *(b for _, b in shards[:-1])]
            assert shards[-1][1] == length
        for rank in range(size):
            start, end = of(rank).shard(length, depth)
            outer_start, outer_end = of(rank).shard(length, depth - 1)
            assert outer_start <= start < end <= outer_end
