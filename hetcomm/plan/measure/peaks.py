"""What a device does at most, and what an optimizer's step takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hetcomm.plan.measure.layers import Make, layers_of, plain
from hetcomm.plan.measure.timing import FEWEST, Clock, fastest, medians
from hetcomm.plan.model import Model
from hetcomm.plan.refuse import refuse

SIZES = tuple(1 << power for power in range(9, 15))  # of square matrices
COPIED = 256 << 20  # bytes; larger than caches
MOST_PARAMETERS = 1 << 26  # of an optimizer's step; larger than caches
ADAM = 8  # bytes of a parameter's states, and 4 more for a copy of the weight in float32


def peak_operations(clock: Clock, dtype: torch.dtype, room: float, bound: float) -> float:
    """Floating-point operations per second of the fastest square matrix product. Sizes grow until
    a few products take long beside `bound` seconds, or `room` bytes."""
    best = 0.0
    for size in SIZES:
        if best and 3 * size * size * dtype.itemsize > room:
            break
        left, right = (torch.randn(size, size, device=clock.device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)

        def multiply(left=left, right=right, out=out) -> None:  # type: ignore[no-untyped-def]
            torch.mm(left, right, out=out)

        seconds = fastest(clock, multiply, bound)
        best = max(best, 2.0 * size**3 / seconds)
        if FEWEST * seconds > bound / 4:
            break
    return best


def memory_bandwidth(clock: Clock, room: float, bound: float) -> float:
    """Bytes per second that a copy reads and writes. room: bytes for it, at most."""
    size = min(COPIED, max(int(room / 2), 1))
    source = torch.ones(size, dtype=torch.uint8, device=clock.device)
    target = torch.zeros_like(source)
    return 2 * size / fastest(clock, lambda: target.copy_(source), bound)


def step_seconds(
    model: Model,
    clock: Clock,
    dtype: torch.dtype,
    room: float,
    bound: float,
    make: Make = plain,
) -> float:
    """Seconds of AdamW for each parameter, over the model's blocks or as many as `room` bytes hold.

    Raises hetcomm.InvalidArgumentError for states that are not Adam's.
    """
    states = model.state_bytes
    copies = model.weight_bytes < 4 and states == ADAM + 4
    if not copies and states != 2 * model.weight_bytes:
        usual = f"{2 * model.weight_bytes} bytes of Adam's states"
        expected = usual if model.weight_bytes == 4 else f"{usual}, or {ADAM + 4} with a copy"
        refuse("model.state_bytes", expected, states, "change the model's file")
    each = model.parameters("block")
    room /= model.weight_bytes + model.gradient_bytes + states + ADAM
    count = max(1, min(model.blocks, int(min(MOST_PARAMETERS, room)) // each))
    blocks = nn.ModuleList(layers_of(model, "block", count, make)).to(clock.device, dtype)
    parameters = list(blocks.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step = _step_of_copies(parameters) if copies else torch.optim.AdamW(parameters).step
    (seconds,) = medians(clock, (step,), bound)
    return seconds / sum(parameter.numel() for parameter in parameters)


def _step_of_copies(parameters: list[nn.Parameter]) -> Callable[[], None]:
    """A step on copies of the weights in float32, as mixed precision takes it."""
    masters = [nn.Parameter(parameter.detach().float()) for parameter in parameters]
    optimizer = torch.optim.AdamW(masters)

    def step() -> None:
        for master, parameter in zip(masters, parameters, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters, strict=True):
                parameter.copy_(master)

    return step
