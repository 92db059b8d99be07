"""examples/recovery/elastic.py, whose last rank dies once, in the middle of step CRASH.

crashing_trainer.py FOLDER
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/recovery"))
import elastic

CRASH = 3


def main(folder: Path) -> None:
    loss_of = elastic.loss_of

    def crash(
        model: Callable[..., torch.Tensor], step: int, rank: int, size: int
    ) -> torch.Tensor:  # fmt: skip
        loss = loss_of(model, step, rank, size)
        if step == CRASH and rank == size - 1 and not (folder / "crashed").exists():
            (folder / "crashed").touch()
            os._exit(13)
        return loss

    elastic.loss_of = crash
    elastic.train(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
