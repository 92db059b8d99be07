"""Residuals of error feedback as tensors that torch.save() stores and torch.load() reads.

A rank keeps residuals of the segments that it encodes. The others are zeros, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import hetcomm
from hetcomm import _core

_BLOCK = 16384  # elements; zeros are left out by whole blocks


def check_codec(codec: str) -> None:
    """Raises hetcomm.InvalidArgumentError if there is no such codec."""
    _core.CallCodec(codec)


def pack(feedback: hetcomm.Feedback) -> dict[str, dict[str, Any]]:
    """The residuals by key: their count, and the blocks that are not zero."""
    return {key: _pack(values) for key, values in feedback.views().items()}


def unpack(feedback: hetcomm.Feedback, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the residuals by those that pack() returned."""
    feedback.clear()
    for key, value in state.items():
        feedback.add(key, _unpack(value).numpy())


def bytes_held(feedback: hetcomm.Feedback) -> int:
    """Bytes of the blocks that are not zero. The system gives other blocks no memory."""
    return sum(4 * _BLOCK * len(_places(values)) for values in feedback.views().values())


def _places(values: Any) -> list[int]:
    """Where the blocks begin that are not zero. values: a NumPy view of float32."""
    return [at for at in range(0, len(values), _BLOCK) if values[at : at + _BLOCK].any()]


def _pack(values: Any) -> dict[str, Any]:
    """values: a NumPy view of float32. Copies blocks that are not zero."""
    places = _places(values)
    blocks = torch.zeros(len(places), _BLOCK)
    for block, at in zip(blocks, places, strict=True):
        part = torch.from_numpy(values[at : at + _BLOCK])
        block[: len(part)] = part
    numbers = torch.tensor([at // _BLOCK for at in places], dtype=torch.int64)
    return {"count": len(values), "places": numbers, "blocks": blocks}


def _unpack(state: Mapping[str, Any]) -> torch.Tensor:
    values = torch.zeros(-(-state["count"] // _BLOCK), _BLOCK)
    values[state["places"]] = state["blocks"]
    return values.view(-1)[: state["count"]]
