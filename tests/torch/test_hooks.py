"""Compressed communication hooks of DDP: losses, equal parameters, resumed training, errors."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Job, check_texts, launch, refusal, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from vendors import environments

import hetcomm

WIDTH = 160  # a layer has more than 16 KiB, so the codec rounds
STEPS = 12


class Network(nn.Module):
    """Equal layers, of which a step may leave one out. The last layer is registered first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.last = nn.Linear(WIDTH, 4)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, skip: bool = False) -> torch.Tensor:
        for layer in list(self.layers)[skip:]:
            x = torch.tanh(layer(x))
        return self.last(x)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * (step % 3) + rank)
    x = torch.randn(16, WIDTH, generator=generator)
    return x, x[:, :4].argmax(1)


def train(
    rank: int,
    hook: hetcomm.hooks.Compressed | None,
    steps: range = range(STEPS),
    state: dict[str, Any] | None = None,
    skips: bool = False,
    accumulated: int = 1,
    **options: Any,
) -> tuple[list[float], list[torch.Tensor], dict[str, Any]]:
    """Losses, parameters, and a state to go on with."""
    options = {"bucket_cap_mb": 0.2, "gradient_as_bucket_view": True} | options
    network = Network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.8)
    if state is not None:
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        hook.load_state_dict(state["hook"])
    model = DistributedDataParallel(network, **options)
    if hook is not None:
        hook.register(model)
    losses = []
    for step in steps:
        for part in range(accumulated):
            x, target = batch(rank, accumulated * step + part)
            # Parts before the last one stay on their rank.
            model.require_backward_grad_sync = part == accumulated - 1
            loss = nn.functional.cross_entropy(model(x, skips and (rank + step) % 3 == 0), target)
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    saved = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
    if hook is not None:
        saved["hook"] = hook.state_dict()
    return losses, [each.detach().clone() for each in network.parameters()], saved


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no views": {"gradient_as_bucket_view": False},
    "unused": {"find_unused_parameters": True, "skips": True},
    "static": {"static_graph": True},
    "accumulated": {"accumulated": 3},
}


def close(rank: int, size: int) -> list[tuple[str, float, float, bool, bool]]:
    """The distance of the losses from those of torch's own averages, for every mode: with a codec
    and without; whether all ranks have equal parameters, and whether the codec did something."""
    found = []
    for name, mode in MODES.items():
        wanted, reference, _ = train(rank, None, **mode)
        exact = train(rank, hetcomm.hooks.compressed("none"), **mode)[1]
        losses, parameters, _ = train(rank, hetcomm.hooks.compressed("int8"), **mode)
        flat = torch.cat([each.reshape(-1) for each in parameters])
        everyone = [torch.empty_like(flat) for _ in range(size)]
        dist.all_gather(everyone, flat)
        found.append(
            (
                name,
                max(abs(a - b) for a, b in zip(losses, wanted, strict=True)),
                losses[0] - losses[-1],
                all(torch.equal(flat, each) for each in everyone),
                any(not torch.equal(a, b) for a, b in zip(parameters, reference, strict=True)),
            )
        )
        # Sums of four ranks are halved twice, so every bit is torch's.
        assert all(torch.equal(a, b) for a, b in zip(exact, reference, strict=True)), name
    return found


@pytest.mark.parametrize(
    ("hosts", "vendors"),
    [
        ("aabb", "cccc"),
        ("abab", "cccc"),
        pytest.param("abab", "nana", marks=pytest.mark.needs("emulated vendors")),
    ],
)
def test_losses_stay_near_and_ranks_stay_equal(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    for found in values(job(hosts, environments=environments(vendors)), close):
        for name, distance, learned, equal, rounded in found:
            assert distance < 0.001, name
            assert learned > 0.1, f"{name}: nothing was learned"
            assert equal, f"{name}: ranks have different parameters"
            assert rounded, f"{name}: the codec did nothing"


def resumed(rank: int, size: int) -> list[bool]:
    """Whether training goes on with the same bits from a saved state, by mode; whether it needs
    the state."""
    found = []
    for mode in ({}, MODES["static"], MODES["unused"]):
        _, _, saved = train(rank, hetcomm.hooks.compressed("int4"), range(4), **mode)
        file = io.BytesIO()
        torch.save(saved, file)
        _, wanted, _ = train(rank, hetcomm.hooks.compressed("int4"), range(9), **mode)
        file.seek(0)
        state = torch.load(file)
        # A second checkpoint on the way.
        _, _, state = train(rank, hetcomm.hooks.compressed("int4"), range(4, 6), state, **mode)
        _, again, _ = train(rank, hetcomm.hooks.compressed("int4"), range(6, 9), state, **mode)
        empty = {**state, "hook": hetcomm.hooks.compressed("int4").state_dict()}
        _, fresh, _ = train(rank, hetcomm.hooks.compressed("int4"), range(6, 9), empty, **mode)
        found.append(all(torch.equal(a, b) for a, b in zip(again, wanted, strict=True)))
        found.append(any(not torch.equal(a, b) for a, b in zip(fresh, wanted, strict=True)))
    return found


@pytest.mark.parametrize(
    "vendors", ["cccc", pytest.param("nana", marks=pytest.mark.needs("emulated vendors"))]
)
def test_training_resumes_with_the_same_bits(job: Callable[..., Job], vendors: str) -> None:
    assert values(job("abab", environments=environments(vendors)), resumed) == [[True] * 6] * 4


def layouts(rank: int, size: int) -> tuple[bool, bool, int]:
    """Whether DDP cut the buckets anew, whether every parameter is in one bucket, and the bytes of
    residuals: those of old buckets are gone."""
    hook = hetcomm.hooks.compressed("int8")
    first = train(rank, hook, range(1))[2]["hook"]["buckets"]
    hook = hetcomm.hooks.compressed("int8")
    later = train(rank, hook, range(3))[2]["hook"]["buckets"]
    once = sorted(number for bucket in later for number in bucket) == list(range(10))
    return first != later, once, sum(feedback.bytes() for _, feedback in hook._buckets)


def test_residuals_follow_the_buckets(job: Callable[..., Job]) -> None:
    elements = sum(each.numel() for each in Network().parameters())
    assert values(job("ab"), layouts) == [(True, True, 4 * elements)] * 2


def mean_errors(rank: int, size: int) -> list[float]:
    """The relative error of the mean of 30 averages of the same gradients: without a codec, in
    bfloat16, with a codec, and with feedback too."""
    generator = torch.Generator().manual_seed(5)
    gradients = torch.randn(size, 200, 200, generator=generator)
    exact = gradients.double().mean(0)
    found = []
    for codec, feedback, dtype in (
        ("none", False, None),
        ("none", False, torch.bfloat16),
        ("int4", False, None),
        ("int4", True, None),
    ):
        layer = nn.Linear(200, 200, bias=False)
        model = DistributedDataParallel(layer)
        hook = hetcomm.hooks.compressed(codec, feedback, dtype, model.process_group)
        model.register_comm_hook(hook, hetcomm.hooks.average)
        mean = torch.zeros(200, 200, dtype=torch.float64)
        for _ in range(30):
            layer.weight.grad = None
            model(torch.eye(200)).backward(gradients[rank].T)
            mean += layer.weight.grad / 30
        found.append(((mean - exact).norm() / exact.norm()).item())
    return found


@pytest.mark.parametrize("hosts", ["ab", "aab", "abab"])
def test_averages_are_over_all_ranks(job: Callable[..., Job], hosts: str) -> None:
    for plain, bfloat16, rounded, with_feedback in values(job(hosts), mean_errors):
        assert plain < 1e-6
        assert 1e-6 < bfloat16 < 0.01
        assert 0.03 < rounded < 0.3
        assert with_feedback < rounded / 10


def bad_input(rank: int, size: int) -> list[str]:
    found = []

    def note(call: Callable[[], object]) -> None:
        found.append(refusal(call))

    hook = hetcomm.hooks.compressed()
    model = DistributedDataParallel(Network())
    note(lambda: hetcomm.hooks.compressed("zip"))
    note(lambda: hetcomm.hooks.compressed(dtype=torch.int8))
    note(lambda: hook.register(Network()))
    hook.register(model)
    note(lambda: hook.register(DistributedDataParallel(Network())))
    note(lambda: hetcomm.hooks.compressed().register(model))
    note(lambda: hook.load_state_dict({"codec": "int4", "buckets": [], "residuals": []}))
    return found


def test_bad_input_is_refused(job: Callable[..., Job]) -> None:
    texts = [
        'unknown codec: expected one of none, auto, lossless, .*int8.*; got "zip"',
        "dtype: expected a floating-point torch.dtype, or None; got torch.int8",
        "expected a DistributedDataParallel, got Network; wrap the model first",
        "this one is registered already",
        "expected a model without a communication hook",
        'expected one of codec "int8", got "int4"',
    ]
    check_texts(values(job("ab"), bad_input), texts)


def other_model(rank: int, size: int) -> None:
    state = train(rank, hetcomm.hooks.compressed(), range(2))[2]["hook"]
    model = DistributedDataParallel(nn.Linear(200, 200))
    hook = hetcomm.hooks.compressed()
    hook.load_state_dict(state)
    hook.register(model)
    model(torch.ones(1, 200)).sum().backward()


def test_the_state_of_another_model_is_an_error(job: Callable[..., Job]) -> None:
    for outcome in launch(job("ab"), other_model):
        assert "a model with the same parameters" in outcome.text, outcome.describe()
