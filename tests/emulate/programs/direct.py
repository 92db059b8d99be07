"""Collectives and messages of ranks on device memory against NumPy.

argv: a folder for the store; "all", or "moves" to leave out reductions; the timeout of an
operation. Each rank is an island of its own, so all data goes through messages. Prints the ranks
with which the rank stages.
"""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["HETCOMM_ISLAND"] = f"island{RANK}"
os.environ["HETCOMM_DIRECT_BYTES"] = "0"  # short messages are direct, too
sys.path.insert(0, str(Path(__file__).parents[2] / "core"))

from communicators import COLLECTIVES, REDUCTIONS, Call, random_spec  # noqa: E402

from hetcomm import _core  # noqa: E402

FOLDER, WHAT, TIMEOUT = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
MESSAGE = 3_000_001


class FolderStore(_core.Store):
    def set(self, key: str, value: bytes) -> None:
        part = FOLDER / f"part{RANK}"
        part.write_bytes(value)
        part.rename(FOLDER / key.replace("/", "_"))

    def get(self, key: str, timeout: timedelta) -> bytes:
        end = time.monotonic() + timeout.total_seconds()
        while not (path := FOLDER / key.replace("/", "_")).exists():
            if time.monotonic() > end:
                raise TimeoutError(key)
            time.sleep(0.005)
        return path.read_bytes()


def messages(communicator: _core.Communicator) -> None:
    """A message from each rank to the next, and one back, in one piece or in parts if an end is
    staged."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for step, (to, source) in enumerate([(after, before), (before, after)]):
        sent = np.arange(MESSAGE, dtype=np.int32) + RANK
        got = np.zeros(MESSAGE, np.int32)
        works = [
            communicator.recv(got, _core.Dtype.int32, source, step),
            communicator.send(sent, _core.Dtype.int32, to, step),
        ]
        for work in works:
            work.wait()
        assert (got == np.arange(MESSAGE, dtype=np.int32) + source).all()


communicator = _core.Communicator(FolderStore(), RANK, SIZE, TIMEOUT, "direct")
topology = communicator.topology
messages(communicator)
rng = random.Random(f"{WHAT}/{SIZE}")
for seed in range(3):
    for collective in COLLECTIVES:
        spec = random_spec(rng, SIZE, collective.name)
        adds = collective.name in (*REDUCTIONS, "barrier")
        while adds and not _core.ccl_reduces(spec.dtype, spec.op):
            spec = random_spec(rng, SIZE, collective.name)
        if WHAT == "all" or not adds:
            Call(communicator, spec, seed, rng.random() < 0.5).check()
staged = [peer for peer in range(SIZE) if peer != RANK and topology.staged(RANK, peer)]
print(f"right; staged with {staged}; {topology.rank(RANK).libraries.get('messages', 'host')}")
communicator.leave()
