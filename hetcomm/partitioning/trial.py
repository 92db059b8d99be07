"""Tries whether an optimizer works element by element, and what state it keeps."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hetcomm import _core

ROWS, COLUMNS, CUT = 3, 4, 5
State = dict[str, Any]


def _copy(optimizer: Optimizer, group: dict[str, Any], parameters: list[nn.Parameter]) -> Optimizer:
    """A new optimizer of the same class, with one group's settings."""
    kind = type(optimizer)
    known = inspect.signature(kind.__init__).parameters
    keywords = {key: value for key, value in optimizer.defaults.items() if key in known}
    settings = {k: v for k, v in group.items() if k not in ("params", "param_names")}
    if "lr" in settings:
        settings["lr"] = 0.01  # a schedule may begin with 0
    return kind([{**settings, "params": parameters}], **keywords)


def check(optimizer: Optimizer, device: torch.device) -> None:
    """Steps a matrix, and the same elements as two flat pieces, and compares.

    Raises:
        hetcomm.InvalidArgumentError: the results differ, or the optimizer cannot step either.
    """
    for group in optimizer.param_groups:
        try:
            same = _agrees(optimizer, group, device)
        except Exception as error:
            raise _refusal(optimizer, f"its trial raised {type(error).__name__}: {error}") from None
        if not same:
            raise _refusal(optimizer, "its step differs between a matrix and pieces of it")


def _refusal(optimizer: Optimizer, why: str) -> _core.InvalidArgumentError:
    return _core.InvalidArgumentError(
        f"optimizer: expected one that treats each element alone, but for "
        f"{type(optimizer).__name__} {why}; take one such as SGD, Adam, AdamW, RMSprop or Adagrad"
    )


def _agrees(optimizer: Optimizer, group: dict[str, Any], device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(5)
    draws = [torch.randn(ROWS * COLUMNS, generator=generator).to(device) for _ in range(3)]
    start, gradients = draws[0], draws[1:]
    matrix = nn.Parameter(start.clone().view(ROWS, COLUMNS))
    pieces = [nn.Parameter(start[:CUT].clone()), nn.Parameter(start[CUT:].clone())]
    whole, parts = _copy(optimizer, group, [matrix]), _copy(optimizer, group, pieces)
    for gradient in gradients:
        matrix.grad = gradient.clone().view(ROWS, COLUMNS)
        pieces[0].grad, pieces[1].grad = gradient[:CUT].clone(), gradient[CUT:].clone()
        whole.step()
        parts.step()
    joined = torch.cat([piece.detach() for piece in pieces])
    return torch.allclose(matrix.detach().reshape(-1), joined, rtol=1e-4, atol=1e-6)


def fresh_state(
    optimizer: Optimizer, group: dict[str, Any], elements: int, dtype: torch.dtype, device: Any
) -> State:
    """The state before the first step of `elements` elements: what load_state_dict() fills."""
    parameter = nn.Parameter(torch.zeros(2, dtype=dtype, device=device))
    parameter.grad = torch.zeros_like(parameter)
    trial = _copy(optimizer, group, [parameter])
    trial.step()
    state = {}
    for key, value in trial.state[parameter].items():
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
            value = value[:1].expand(elements).clone()
        elif key == "step":
            value = value * 0
        state[key] = value
    return state
