"""DDP that survives dead ranks in its processes, and takes replacements between two steps.

    python rejoin.py serve --port 29500                      # the store; it outlives all workers
    python rejoin.py train --store HOST:29500 --workers 4    # four times, and again for a dead one

Ranks that train together form a generation. A rank that fails ends the generation: the others form
the next one, and repeat the step. A replacement asks for the next generation, which begins after
the current step. A generation takes the state of the rank with the most steps. So no checkpoint is
read, and a step has the same result whichever ranks take part in it.

A generation needs more than half of the ranks of the one before. So no two generations train at
the same time. If more ranks die at once, the rest end with an error: restart from a checkpoint.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 8  # samples of a step, whatever the number of ranks
PATIENCE = 2.0  # seconds that a generation waits for further ranks
TIMEOUT = 60.0  # seconds of any other wait


class Generations:
    """How ranks find each other after each change. `last`: of this rank; 0: none yet."""

    def __init__(self, store: dist.Store, workers: int) -> None:
        """workers: ranks of the first generation."""
        self.store, self.workers, self.last = store, workers, 0

    def join(self) -> tuple[int, int]:
        """Waits for the next generation. Returns this rank and the number of ranks in it."""
        end = time.monotonic() + TIMEOUT
        number = self.last + 1
        while True:
            while self.store.check([f"{number}/size"]):
                number += 1
            place = self.store.add(f"{number}/places", 1)
            self.store.set(f"{number}/last/{place}", str(self.last))
            size = self._closed(number, end)
            if place <= size:
                self.last = number
                return place - 1, size

    def wanted(self) -> bool:
        """Whether a rank waits for the next generation."""
        return self.store.check([f"{self.last + 1}/last/1"])

    def _closed(self, number: int, end: float) -> int:
        """Waits until a generation has enough ranks, and no more come. Any of its ranks closes it:
        the first one to store the size. Returns the size."""
        seen, since = 0, time.monotonic()
        while not self.store.check([f"{number}/size"]):
            if time.monotonic() > end:
                raise TimeoutError(
                    f"generation {number}: expected {self._expected(number)} within {TIMEOUT:g} s, "
                    f"got {seen} ranks in all; restart the job from a checkpoint"
                )
            count = self.store.add(f"{number}/places", 0)
            if count != seen:
                seen, since = count, time.monotonic()
            if time.monotonic() - since > PATIENCE and self._enough(number, seen):
                self.store.compare_set(f"{number}/size", "", str(seen))
            time.sleep(0.01)
        return int(self.store.get(f"{number}/size"))

    def _enough(self, number: int, count: int) -> bool:
        if number == 1:
            return count >= self.workers
        keys = [f"{number}/last/{place}" for place in range(1, count + 1)]
        stayed = sum(int(self.store.get(key)) == number - 1 for key in keys)
        return 2 * stayed > int(self.store.get(f"{number - 1}/size"))

    def _expected(self, number: int) -> str:
        if number == 1:
            return f"{self.workers} ranks"
        return f"more than half of the {int(self.store.get(f'{number - 1}/size'))} ranks before"


def batch(step: int) -> torch.Tensor:
    return torch.randn(BATCH, 6, generator=torch.Generator().manual_seed(step))


def loss_of(model: Callable[..., torch.Tensor], inputs: torch.Tensor, size: int) -> torch.Tensor:
    """The part of a rank in the batch's mean loss. DDP divides sums over ranks by their number."""
    return ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).sum() / BATCH * size


class Trainer:
    """A model, its optimizer, and the losses of its steps."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.losses: list[float] = []

    def state(self) -> dict[str, Any]:
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        return {"model": model, "optimizer": optimizer, "losses": self.losses}

    def catch_up(self) -> None:
        """Takes the state of the rank with the most steps."""
        steps: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(steps, len(self.losses))
        ahead = steps.index(max(steps))
        states = [self.state() if dist.get_rank() == ahead else None]
        dist.broadcast_object_list(states, src=ahead)
        assert states[0] is not None
        self.model.load_state_dict(states[0]["model"])
        self.optimizer.load_state_dict(states[0]["optimizer"])
        self.losses = list(states[0]["losses"])

    def run(self, steps: int, generations: Generations) -> None:
        """Trains in one generation until its end: the last step, a wish to join, or an error."""
        self.catch_up()
        network = DistributedDataParallel(self.model)
        rank, size = dist.get_rank(), dist.get_world_size()
        while len(self.losses) < steps:
            inputs = batch(len(self.losses))
            share = inputs[rank * BATCH // size : (rank + 1) * BATCH // size]
            loss = loss_of(network, share, size)
            self.optimizer.zero_grad()
            loss.backward()
            # The last message of a step, so a rank that has it knows that all gradients arrived.
            both = torch.tensor([loss.item() / size, float(generations.wanted())])
            dist.all_reduce(both)
            self.optimizer.step()
            self.losses.append(both[0].item())
            if both[1] > 0:
                return


def train(store: dist.Store, workers: int, steps: int) -> list[float]:
    """Trains to the last step, in as many generations as it takes. Returns the losses."""
    torch.set_num_threads(1)
    generations, trainer = Generations(store, workers), Trainer()
    while len(trainer.losses) < steps:
        rank, size = generations.join()
        inside = dist.PrefixStore(f"generation {generations.last}", store)
        try:
            dist.init_process_group(
                "hetcomm", store=inside, rank=rank, world_size=size,
                timeout=timedelta(seconds=TIMEOUT),
            )  # fmt: skip
            trainer.run(steps, generations)
        except RuntimeError as error:  # every error of hetcomm is one
            print(f"rank {rank} of generation {generations.last}: {error}", flush=True)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return trainer.losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["serve", "train"])
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--store", default="127.0.0.1:29500", help="HOST:PORT")
    parser.add_argument("--workers", type=int, default=2, help="of the first generation")
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    if arguments.action == "serve":
        dist.TCPStore("0.0.0.0", arguments.port, is_master=True, wait_for_workers=False)
        print("serving; end with Ctrl-C", flush=True)
        while True:
            time.sleep(60)
    host, _, port = arguments.store.rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=TIMEOUT))
    losses = train(store, arguments.workers, arguments.steps)
    print(f"{arguments.steps} steps, last loss {losses[-1]:.4f}", flush=True)


if __name__ == "__main__":
    main()
