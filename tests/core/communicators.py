"""Ranks as threads of this process, random calls of their communicators, and the results by
NumPy."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from islands import FACTOR, STORAGE, narrow, reduced, widen

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

BOUND = 60.0  # seconds; far above the time of any test, so that a hang fails
COLLECTIVES = [c for c in Collective.__members__.values() if c.name not in ("send", "recv")]
IN_PLACE = ("all_reduce", "reduce", "broadcast")
REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter")
EPSILON = {
    "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2, "float16": 2**-10, "bfloat16": 2**-7,
    "float32": 2**-23, "float64": 2**-52,
}  # fmt: skip

# One for each rank that is a thread, made at first use. A process keeps its executors.
_executors: list[_core.Executor] = []


def executor(rank: int) -> _core.Executor:
    while len(_executors) <= rank:
        _executors.append(_core.Executor())
    return _executors[rank]


def run_ranks(
    hosts: Sequence[str],
    program: Callable[[Communicator], Any],
    *,
    store: Callable[[int], _core.Store] | None = None,
    executors: Sequence[_core.Executor] | None = None,
    timeout: float = BOUND,
    name: str = "test",
    vendors: Sequence[str] | None = None,
) -> list[Any]:
    """Runs `program` on every rank, rank r on host hosts[r]. Returns results or exceptions.

    store: gives each rank its own; a LocalStore for all of them by default.
    vendors: of each rank; "cpu" by default.
    """
    shared = _core.LocalStore()
    found: list[Any] = [None] * len(hosts)
    everyone_finished = threading.Barrier(len(hosts))

    def run(rank: int) -> None:
        try:
            communicator = Communicator(
                store(rank) if store else shared,
                rank,
                len(hosts),
                timeout,
                name,
                executors[rank] if executors else executor(rank),
                hosts[rank],
                vendors[rank] if vendors else "cpu",
                rank if vendors else -1,
            )
            found[rank] = program(communicator)
            everyone_finished.wait(BOUND)  # no rank leaves while another one needs it
            communicator.leave()
        except BaseException as error:
            everyone_finished.abort()
            if not isinstance(error, threading.BrokenBarrierError):
                found[rank] = error

    threads = [threading.Thread(target=run, args=(r,), daemon=True) for r in range(len(hosts))]
    for thread in threads:
        thread.start()
    for rank, thread in enumerate(threads):
        thread.join(2 * BOUND)
        assert not thread.is_alive(), f"rank {rank} hangs"
    return found


def results_of(results: Sequence[Any]) -> list[Any]:
    """The results. Raises the first failure of a rank, with the failures of the others as notes."""
    failures = [(r, one) for r, one in enumerate(results) if isinstance(one, BaseException)]
    for rank, failure in failures[1:]:
        failures[0][1].add_note(f"rank {rank}: {failure!r}")
    if failures:
        raise failures[0][1]
    return list(results)


def random_spec(rng: random.Random, size: int, name: str | None = None) -> Spec:
    collective = Collective.__members__[name] if name else rng.choice(COLLECTIVES)
    reduces = collective.name in REDUCTIONS
    dtype, op = Dtype.bytes4, ReduceOp.sum
    while reduces and not (_core.reducible(dtype, op) and dtype != Dtype.boolean):
        dtype = rng.choice(list(Dtype.__members__.values()))
        op = rng.choice([
            ReduceOp.sum, ReduceOp.max, ReduceOp.min, ReduceOp.product,
            ReduceOp.average, ReduceOp.premul_sum,
        ])  # fmt: skip
    if collective.name == "barrier":
        dtype = Dtype.uint8
    elif not reduces:
        dtype = rng.choice(list(Dtype.__members__.values()))
    count = rng.choice([0, 1, size - 1, rng.randrange(64), rng.randrange(5000), 60_001])
    splits: list[int] = []
    if collective.name == "all_to_all" and rng.random() < 0.5:
        count, splits = 0, [rng.choice([0, 1, rng.randrange(3000)]) for _ in range(size * size)]
    return Spec(
        collective,
        dtype,
        op,
        root=rng.randrange(size),
        count=0 if collective.name == "barrier" else count,
        in_place=collective.name in IN_PLACE and rng.random() < 0.5,
        splits=splits,
        factor=FACTOR if op == ReduceOp.premul_sum else 1,
    )


def native_spec(rng: random.Random, size: int, name: str) -> Spec:
    """A random spec. Native libraries have its reduction, if any."""
    while True:
        spec = random_spec(rng, size, name)
        if name not in REDUCTIONS or _core.ccl_reduces(spec.dtype, spec.op):
            return spec


def contribution(spec: Spec, rank: int, size: int, seed: int) -> np.ndarray:
    """The input of `rank`: numbers so small that they combine exactly in any order and dtype."""
    rng = np.random.default_rng([seed, rank])
    count, _ = spec.buffer_counts(rank, size)
    storage = np.dtype(STORAGE[spec.dtype.name])
    if spec.dtype.name.startswith("bytes"):
        return rng.integers(0, 256, count * storage.itemsize, np.uint8).view(storage)
    most = 2 if spec.dtype.name == "float8_e5m2" else 3
    return narrow(spec.dtype.name, rng.integers(most - 2, most, count))


def expected(spec: Spec, rank: int, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The expected output of `rank`; None where the output is not specified."""
    size, name, count = len(inputs), spec.collective.name, spec.count
    block = slice(rank * count, (rank + 1) * count)
    if name == "barrier" or (name in ("reduce", "gather") and rank != spec.root):
        return None
    if name in REDUCTIONS:
        total = reduced(spec.dtype.name, spec.op.name, inputs)
        return total[block] if name == "reduce_scatter" else total
    if name == "broadcast":
        return inputs[spec.root]
    if name == "scatter":
        return inputs[spec.root][block]
    if name in ("all_gather", "gather"):
        return np.concatenate(inputs)
    splits = np.array(spec.splits or [count] * size * size).reshape(size, size)
    parts = []
    for source in range(size):
        start = splits[source, :rank].sum()
        parts.append(inputs[source][start : start + splits[source, rank]])
    return np.concatenate(parts)


class Call:
    """A collective of one rank, submitted by the constructor."""

    def __init__(self, communicator: Communicator, spec: Spec, seed: int, will_wait: bool) -> None:
        self.spec, self.seed = spec, seed
        self.rank, self.size = communicator.rank, communicator.size
        mine = contribution(spec, self.rank, self.size, seed)
        if spec.in_place:
            self.output = mine
        else:
            _, count = spec.buffer_counts(self.rank, self.size)
            self.output = np.zeros(count, STORAGE[spec.dtype.name])
        self.work = communicator.submit(
            spec, mine, None if spec.in_place else self.output, will_wait
        )

    def check(self) -> None:
        self.work.wait()
        inputs = [contribution(self.spec, rank, self.size, self.seed) for rank in range(self.size)]
        wanted = expected(self.spec, self.rank, inputs)
        if wanted is None:
            return
        where = f"{self.spec} at rank {self.rank}"
        if self.spec.op == ReduceOp.average:  # a library may divide before it adds
            dtype = self.spec.dtype.name
            got, want = (widen(dtype, value).astype(float) for value in (self.output, wanted))
            tolerance = (self.size + 2) * EPSILON[dtype] / 2
            np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=where)
        else:
            assert self.output.tobytes() == wanted.tobytes(), where
