"""FSDP2 with quantised weights and gradients, and a secondary shard within the host (ZeRO++)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, check_texts, refusal, values
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import hetcomm

WIDTH = 256
STEPS = 6


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        for layer in list(self.layers)[skip:]:
            x = torch.tanh(layer(x))
        return self.last(x)


def sharded(mesh: DeviceMesh, **options: Any) -> Network:
    model = Network()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def mesh_of(*shape: int) -> DeviceMesh:
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * (step % 3) + rank)
    x = torch.randn(16, WIDTH, generator=generator)
    return x, x[:, :4].argmax(1)


def train(
    rank: int,
    model: Network,
    steps: range = range(STEPS),
    state: dict[str, Any] | None = None,
) -> tuple[list[float], list[torch.Tensor], dict[str, Any]]:
    """Losses, whole parameters, and the optimizer's state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    if state is not None:
        optimizer.load_state_dict(deepcopy(state))  # torch keeps its tensors
    losses = []
    for step in steps:
        x, target = batch(rank, step)
        loss = nn.functional.cross_entropy(model(x).float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = [each.full_tensor().detach().clone() for each in model.parameters()]
    return losses, whole, deepcopy(optimizer.state_dict())


BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)


def near(
    rank: int, size: int, shape: tuple[int, ...], within: bool, policies: list[MixedPrecisionPolicy]
) -> list[dict[str, Any]]:
    found = []
    for policy in policies:
        mesh = mesh_of(*shape)
        options: dict[str, Any] = {"mp_policy": policy}
        wanted, reference, _ = train(rank, sharded(mesh, **options))
        if within:
            options["reshard_after_forward"] = hetcomm.hooks.ranks_of_host(mesh)
        exact = sharded(mesh, **options)
        hetcomm.hooks.compress_fsdp(exact, "none", "none")
        model = sharded(mesh, **options)
        hetcomm.hooks.compress_fsdp(model)
        losses, parameters, _ = train(rank, model)
        digests = [None] * size
        dist.all_gather_object(digests, [each.double().sum().item() for each in parameters])
        found.append(
            {
                "distance": max(abs(a - b) for a, b in zip(losses, wanted, strict=True)),
                "learned": wanted[0] - wanted[-1],
                "exact": equal(train(rank, exact)[1], reference),
                "rounded": not equal(parameters, reference),
                "together": all(each == digests[0] for each in digests),
            }
        )
    return found


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize(
    ("hosts", "shape", "within"),
    [
        pytest.param("aabb", (4,), True, id="in order"),
        pytest.param("abab", (4,), False, id="interleaved"),
        pytest.param("abab", (2, 2), False, id="HSDP, hosts share shards"),
        pytest.param("aabb", (2, 2), True, id="HSDP, hosts are replicas"),
    ],
)
def test_losses_stay_near(
    job: Callable[..., Job], hosts: str, shape: tuple[int, ...], within: bool
) -> None:
    policies = [MixedPrecisionPolicy(), BFLOAT16] if within and shape == (4,) else [BFLOAT16]
    for found in values(job(hosts), near, shape, within, policies):
        for each in found:
            assert each["learned"] > 0.05, each
            assert each["distance"] < 0.03, each
            assert each["exact"] and each["together"], each
            # Replicas on hosts have no sharded traffic between hosts.
            assert each["rounded"] == (hosts == "abab" or shape == (4,)), each


def gradients(rank: int, size: int, shape: tuple[int, ...], codec: str) -> float:
    """The greatest error of a gradient, over the greatest gradient of its parameter. The mean over
    all ranks is expected."""
    model = sharded(mesh_of(*shape))
    hetcomm.hooks.compress_fsdp(model, "none", codec)
    x, target = batch(rank, 0)
    nn.functional.cross_entropy(model(x), target).backward()
    errors = []
    whole = Network()
    xs, targets = zip(*(batch(each, 0) for each in range(size)), strict=True)
    nn.functional.cross_entropy(whole(torch.cat(xs)), torch.cat(targets)).backward()
    for found, wanted in zip(model.parameters(), whole.parameters(), strict=True):
        error = (found.grad.full_tensor() - wanted.grad).abs().max() / wanted.grad.abs().max()
        errors.append(error.item())
    return max(errors)


@pytest.mark.parametrize(
    ("hosts", "shape"), [("aabb", (4,)), ("abab", (4,)), ("abab", (2, 2)), ("aab", (3,))]
)
def test_gradients_are_means_over_all_ranks(
    job: Callable[..., Job], hosts: str, shape: tuple[int, ...]
) -> None:
    assert max(values(job(hosts), gradients, shape, "none")) < 1e-4
    rounded = max(values(job(hosts), gradients, shape, "int4"))
    assert 1e-3 < rounded < 2 * 2.02 / 14  # two hosts, each rounds its sum once


def resumed(rank: int, size: int) -> list[bool]:
    mesh = mesh_of(size)

    def compressed() -> tuple[Network, hetcomm.hooks.CompressedFsdp]:
        model = sharded(mesh, reshard_after_forward=hetcomm.hooks.ranks_of_host(mesh))
        return model, hetcomm.hooks.compress_fsdp(model)

    model, state = compressed()
    _, _, optimizer = train(rank, model, range(4))
    saved = {name: each.detach().clone() for name, each in model.state_dict().items()}
    residuals = state.state_dict()
    _, wanted, _ = train(rank, model, range(4, 7), optimizer)
    found = []
    for residual in (residuals, None):
        again, state = compressed()
        again.load_state_dict(saved)
        if residual is not None:
            state.load_state_dict(residual)
        found.append(equal(train(rank, again, range(4, 7), optimizer)[1], wanted))
    return found


def test_training_resumes_with_the_same_bits(job: Callable[..., Job]) -> None:
    assert values(job("aabb"), resumed) == [[True, False]] * 4


def unused(rank: int, size: int) -> bool:
    """A step without gradients of a layer, between steps with all."""
    model = sharded(mesh_of(size))
    hetcomm.hooks.compress_fsdp(model)
    for step in range(4):
        model(batch(rank, step)[0], step % 2 == 1).sum().backward()
    return all(each.grad is not None for each in model.parameters())


def test_a_step_may_leave_parameters_out(job: Callable[..., Job]) -> None:
    assert values(job("ab"), unused) == [True] * 2


def bad_input(rank: int, size: int) -> list[str]:
    found = []

    def note(call: Callable[[], object]) -> None:
        found.append(refusal(call))

    mesh = mesh_of(size)
    model = sharded(mesh)
    note(lambda: hetcomm.hooks.compress_fsdp(model, all_gather="zip"))
    note(lambda: hetcomm.hooks.compress_fsdp(model, reduce_scatter="zip"))
    note(lambda: hetcomm.hooks.compress_fsdp(Network()))
    note(lambda: hetcomm.hooks.compress_fsdp(DistributedDataParallel(Network())))
    state = hetcomm.hooks.compress_fsdp(model)
    note(lambda: hetcomm.hooks.compress_fsdp(model))
    note(lambda: state.load_state_dict({"codec": "int8", "residuals": {}}))
    note(lambda: hetcomm.hooks.ranks_of_host(mesh))
    mixed = Network()
    mixed.last.bfloat16().requires_grad_(False)
    fully_shard(mixed, mesh=mesh)
    hetcomm.hooks.compress_fsdp(mixed)
    note(lambda: mixed(torch.ones(2, WIDTH)))
    return found


def test_bad_input_is_refused(job: Callable[..., Job]) -> None:
    texts = [
        'unknown codec: expected one of .*; got "zip"',
        'unknown codec: expected one of .*; got "zip"',
        "got Network without an FSDPModule; call fully_shard",
        "got DistributedDataParallel without an FSDPModule",
        "is compressed already",
        "expected one of codec 'int4', got 'int8'",
        "expected shards over several ranks of each host, got 2 shards over host 0, host 1",
        "expected floating-point parameters, got torch.uint8",
    ]
    check_texts(values(job("ab"), bad_input), texts)


# Meshes of ranks 0 to 3 of one host and 4 to 6 of another.
COUNTS = [
    ([0, 1, 4, 5], 2),
    ([0, 1, 2], 3),
    ([[0, 1], [4, 5]], 2),
    ([[0, 1], [2, 3]], 2),
]
APART = [[0, 4, 1, 5], [0, 4, 5], [0, 1, 4], [0, 4, 5, 1], [[0, 4], [1, 5]]]


def counted(rank: int, size: int) -> list[int | str]:
    found: list[int | str] = []
    for ranks in [*(ranks for ranks, _ in COUNTS), *APART]:
        mesh = DeviceMesh("cpu", ranks)
        if mesh.get_coordinate() is None:
            continue
        try:
            found.append(hetcomm.hooks.ranks_of_host(mesh))
        except hetcomm.InvalidArgumentError as error:
            found.append(str(error))
    return found


def test_ranks_of_a_host_are_counted_if_they_stand_together(job: Callable[..., Job]) -> None:
    found = values(job("aaaabbb"), counted)[0]
    assert found[: len(COUNTS)] == [count for _, count in COUNTS]
    for text in found[len(COUNTS) :]:
        assert "next to each other" in str(text), text
    assert len(found) == len(COUNTS) + len(APART)


def of_replicas(rank: int, size: int) -> float:
    """The greatest difference of a gradient that a codec of the replicas' groups makes."""
    found = []
    for codec in ("none", "int8"):
        options = hetcomm.Options(bridge_codec=codec)
        names = ("replicas", "shards")
        mesh = init_device_mesh(
            "cpu", (2, 2), mesh_dim_names=names, backend_override={"replicas": ("hetcomm", options)}
        )
        backend = mesh.get_group("replicas")._get_backend(torch.device("cpu"))
        assert backend.options._timeout == timedelta(minutes=30)  # the options have none
        model = sharded(mesh)
        x, target = batch(rank, 0)
        nn.functional.cross_entropy(model(x), target).backward()
        found.append([each.grad.full_tensor() for each in model.parameters()])
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(*found, strict=True))


def test_replicas_on_hosts_have_the_codec_of_their_group(job: Callable[..., Job]) -> None:
    assert all(1e-4 < error < 0.02 for error in values(job("aabb"), of_replicas))
