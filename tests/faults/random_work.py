"""Random collectives and messages of one rank, each compared with NumPy."""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Protocol

sys.path.append(str(Path(__file__).parents[1] / "core"))

import numpy as np
from communicators import COLLECTIVES, Call, native_spec, random_spec

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, Spec

# Loads the rest of NumPy, which a rank without descriptors could not.
np.testing.assert_allclose(0.0, 0.0)

PENDING = 3  # calls under way at a time
MESSAGES = 0.2  # share of calls that are messages
LARGE = 0.1  # share of calls that are a large sum


class Checked(Protocol):
    def check(self) -> None: ...


class Messages:
    """A message to the next rank, and one from the rank before."""

    def __init__(self, communicator: Communicator, seed: int, count: int) -> None:
        rank, size = communicator.rank, communicator.size
        after, before = (rank + 1) % size, (rank - 1) % size
        self.wanted = np.random.default_rng([seed, before]).bytes(count)
        mine = bytearray(np.random.default_rng([seed, rank]).bytes(count))
        self.got = bytearray(count)
        self.works = [
            communicator.recv(self.got, Dtype.uint8, before),
            communicator.send(mine, Dtype.uint8, after),
        ]

    def check(self) -> None:
        for work in self.works:
            work.wait()
        assert self.got == self.wanted, f"a message of {len(self.wanted)} bytes"


def begin(communicator: Communicator, chance: random.Random, seed: int) -> Checked:
    """The next call. `chance` is equal on all ranks."""
    size, kind = communicator.size, chance.random()
    if kind < MESSAGES:
        count = chance.choice((1, 100, 5000, chance.randrange(1, 1 << 20)))
        return Messages(communicator, seed, count)
    if kind < MESSAGES + LARGE:
        count = chance.randrange(100_000, 500_000)
        return Call(communicator, Spec(Collective.all_reduce, count=count), seed, False)
    topology = communicator.topology
    native = any(topology.rank(r).memory == _core.Memory.device for r in range(size))
    name = chance.choice(COLLECTIVES).name
    spec = (native_spec if native else random_spec)(chance, size, name)
    return Call(communicator, spec, seed, chance.random() < 0.5)


def work(communicator: Communicator, seed: int, calls: int, late: int, seconds: float) -> int:
    """Makes the calls. Rank `late` makes one of them so many seconds late."""
    chance, pending = random.Random(seed), deque[Checked]()
    paused = chance.randrange(calls)
    for number in range(calls):
        if number == paused and communicator.rank == late:
            time.sleep(seconds)
        pending.append(begin(communicator, chance, seed + number))
        while len(pending) >= PENDING:
            pending.popleft().check()
    while pending:
        pending.popleft().check()
    return calls
