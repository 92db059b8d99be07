"""Random collectives and messages of one rank, each compared with NumPy."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

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


class Vote:
    """Whether a rank wants no further calls, so that all ranks stop at the same call."""

    def __init__(self, communicator: Communicator, over: bool) -> None:
        self.votes = np.array([over], np.float32)
        spec = Spec(Collective.all_reduce, count=1, in_place=True)
        self.work = communicator.submit(spec, self.votes)

    def check(self) -> None:
        self.work.wait()
        self.over = bool(self.votes[0])


def begin(
    communicator: Communicator, chance: random.Random, seed: int, large: float = LARGE
) -> Checked:
    """The next call. `chance` is equal on all ranks."""
    size, kind = communicator.size, chance.random()
    if kind < MESSAGES:
        count = chance.choice((1, 100, 5000, chance.randrange(1, 1 << 20)))
        return Messages(communicator, seed, count)
    if kind < MESSAGES + large:
        count = chance.randrange(100_000, 500_000)
        return Call(communicator, Spec(Collective.all_reduce, count=count), seed, False)
    topology = communicator.topology
    native = any(topology.rank(r).memory == _core.Memory.device for r in range(size))
    name = chance.choice(COLLECTIVES).name
    spec = (native_spec if native else random_spec)(chance, size, name)
    return Call(communicator, spec, seed, chance.random() < 0.5)


def work(
    communicator: Communicator,
    seed: int,
    calls: int,
    file: str = "",
    late: int = -1,
    seconds: float = 0.0,
    large: float = LARGE,
) -> dict[str, Any]:
    """Makes the calls, and goes on while the file exists. Another file, with the rank behind its
    name, shows that the first call is submitted. Rank `late` makes one of the first calls so many
    seconds late. `large`: the share of large sums.

    Returns the span of each call from its submission to its checked result, and the begin of the
    pause, by time.monotonic()."""
    chance, pending = random.Random(seed), deque[tuple[Checked, float]]()
    spans: list[tuple[float, float]] = []
    pause, paused, over = chance.randrange(calls), None, False

    def check_oldest() -> bool:
        """Whether the ranks have agreed to stop."""
        call, submitted = pending.popleft()
        call.check()
        spans.append((submitted, time.monotonic()))
        return isinstance(call, Vote) and call.over

    for number in itertools.count():
        if number == pause and communicator.rank == late:
            paused = time.monotonic()
            time.sleep(seconds)
        pending.append((begin(communicator, chance, seed + number, large), time.monotonic()))
        if number == 0 and file:
            with contextlib.suppress(OSError):  # no descriptor may be left
                Path(f"{file}-{communicator.rank}").touch()
        if number % calls == calls - 1:
            pending.append((Vote(communicator, not os.path.exists(file)), time.monotonic()))
        while len(pending) >= PENDING:
            over |= check_oldest()
        if over:
            break
    while pending:
        check_oldest()
    return {"spans": spans, "paused": paused}
