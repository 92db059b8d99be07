"""Gradients of the demo's GPT, as data for measurements of codecs.

    python -m hetcomm.demo.gradients --output gradients.npz

One process trains the model on the demo's text. The file has an array of float32 for each step
asked for, named "step10": the gradients of all parameters, one after the other.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hetcomm.demo.trainer import (
    BATCH,
    CONTEXT,
    DEPTH,
    HEADS,
    LEARNING_RATE,
    WIDTH,
    build_model,
    cross_entropy,
    sample,
    standard_library,
)


def gradients(steps: list[int], seed: int = 0) -> dict[str, np.ndarray]:
    """The gradients of the steps by their names, each of shape (parameters,), in float32."""
    model = build_model(WIDTH, DEPTH, HEADS, CONTEXT, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    text = standard_library()
    found = {}
    for step in range(max(steps) + 1):
        windows = sample(text, BATCH, CONTEXT, seed, step)
        cross_entropy(model(windows[:, :-1]), windows[:, 1:]).backward()
        if step in steps:
            parts = [part.grad.flatten() for part in model.parameters() if part.grad is not None]
            found[f"step{step}"] = torch.cat(parts).numpy()
        optimizer.step()
        optimizer.zero_grad()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 100, 500])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, help="the file to write, .npz")
    arguments = parser.parse_args()
    if min(arguments.steps) < 0:
        parser.error(f"--steps: expected steps from 0 on, got {min(arguments.steps)}")
    arrays: dict[str, Any] = dict(gradients(arguments.steps, arguments.seed))
    np.savez(arguments.output, **arrays)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
