"""Residuals of error feedback as tensors that torch.save() stores and torch.load() reads.

A rank keeps residuals of the segments that it encodes. The others are zeros, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import hetcomm
from hetcomm import _core

_BLOCK = 1024  # elements; zeros are left out by whole blocks


def check_codec(codec: str) -> None:
    """Raises hetcomm.InvalidArgumentError if there is no such codec."""
    _core.CallCodec(codec)


def pack(feedback: hetcomm.Feedback) -> dict[str, dict[str, Any]]:
    """The residuals by key: their count, and the blocks that are not zero."""
    return {key: _pack(torch.from_numpy(value)) for key, value in feedback.state_dict().items()}


def unpack(feedback: hetcomm.Feedback, state: Mapping[str, Mapping[str, Any]]) -> None:
    """Replaces the residuals by those that pack() returned."""
    feedback.load_state_dict({key: _unpack(value).numpy() for key, value in state.items()})


def _pack(values: torch.Tensor) -> dict[str, Any]:
    padded = torch.nn.functional.pad(values, (0, -len(values) % _BLOCK)).view(-1, _BLOCK)
    held = padded.any(1).nonzero().view(-1)
    return {"count": len(values), "places": held, "blocks": padded[held]}


def _unpack(state: Mapping[str, Any]) -> torch.Tensor:
    values = torch.zeros(-(-state["count"] // _BLOCK), _BLOCK)
    values[state["places"]] = state["blocks"]
    return values.view(-1)[: state["count"]]
