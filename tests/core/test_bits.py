"""Reductions have the same bits on every rank and at any timing.

The documented order is that of members in each island, then that of islands. Each sum is rounded
once.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from communicators import results_of, run_ranks
from islands import FACTOR, STORAGE, narrow, random_values, reduced, widen

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

SEED = random.SystemRandom().randrange(2**31)
DTYPES = ("float16", "bfloat16", "float32", "float64", "float8_e5m2")
OPS = ("sum", "average", "product", "premul_sum", "max")
COUNTS = (1, 3, 61, 1021, 30_011, 140_001)
CALLS = 6
# Ranks of a letter share a host: equal and unequal sizes, in order and mixed.
LAYOUTS = ("aaaa", "abbaba", "cabbac", "abcdab", "bccccc", "abacdaa")
IN_ISLAND_ORDER = ("hierarchical_direct", "hierarchical_scatter")
ALGORITHMS = (
    "auto",
    "hierarchical_ring",
    "hierarchical_doubling",
    "hierarchical_halving",
    *IN_ISLAND_ORDER,
)

Make = Callable[[int], np.ndarray]


def contribution(spec: Spec, rank: int, size: int, seed: int) -> np.ndarray:
    """Numbers of very different magnitudes, so that a sum in another order has other bits."""
    rng = np.random.default_rng([seed, rank])
    dtype, count = spec.dtype.name, spec.buffer_counts(rank, size)[0]
    values = widen(dtype, random_values(rng, dtype, count)).astype(np.float64)
    if spec.op == ReduceOp.product:
        return narrow(dtype, 1 + values / 16)
    return narrow(dtype, values * 2.0 ** rng.integers(-4, 5, count))


def in_documented_order(spec: Spec, islands: list[list[int]], inputs: list[np.ndarray]) -> bytes:
    dtype, op = spec.dtype.name, spec.op.name
    if len(islands) == 1:
        return reduced(dtype, op, inputs).tobytes()
    inner = "sum" if op == "average" else op
    outer = "sum" if op in ("average", "premul_sum") else op
    of_islands = [reduced(dtype, inner, [inputs[rank] for rank in ranks]) for ranks in islands]
    total = reduced(dtype, outer, of_islands)
    if op == "average":
        wide = widen(dtype, total)
        wide = wide.astype(np.float32) if dtype == "float16" else wide
        total = narrow(dtype, wide / wide.dtype.type(len(inputs)))
    return total.tobytes()


def specs(rng: random.Random, size: int) -> list[Spec]:
    found = []
    for _ in range(CALLS):
        op = rng.choice(OPS)
        scatters = rng.random() < 0.3
        count = rng.choice(COUNTS)
        found.append(
            Spec(
                Collective.reduce_scatter if scatters else Collective.all_reduce,
                getattr(Dtype, rng.choice(DTYPES)),
                getattr(ReduceOp, op),
                count=-(-count // size) if scatters else count,
                factor=FACTOR if op == "premul_sum" else 1,
            )
        )
    return found


def whole_result(communicator: Communicator, spec: Spec, seed: int) -> bytes:
    """The result of an all_reduce, or of a reduce_scatter whose blocks are then gathered."""
    rank, size = communicator.rank, communicator.size
    storage = STORAGE[spec.dtype.name]
    output = np.zeros(spec.buffer_counts(rank, size)[1], storage)
    communicator.submit(spec, contribution(spec, rank, size, seed), output, True).wait()
    if spec.collective == Collective.all_reduce:
        return output.tobytes()
    blocks = np.zeros(spec.count * size, storage)
    gathering = Spec(Collective.all_gather, spec.dtype, count=spec.count)
    communicator.submit(gathering, output, blocks, True).wait()
    return blocks.tobytes()


def results(hosts: str, seed: str, timing: int) -> list[list[bytes]]:
    """Results by rank and call. Ranks start each call up to 2 ms apart, in an order by `timing`."""

    def program(communicator: Communicator) -> list[bytes]:
        late = random.Random(f"{seed}/{timing}/{communicator.rank}")
        found = []
        for number, spec in enumerate(specs(random.Random(seed), communicator.size)):
            time.sleep(late.choice((0, 0, 0.002)))
            found.append(whole_result(communicator, spec, number))
        return found

    return results_of(run_ranks(hosts, program))


def algorithms_for(hosts: str) -> tuple[str, ...]:
    islands = len(set(hosts))
    if islands <= 2:
        return ("auto",)  # only one applies
    halves = islands & (islands - 1) == 0
    return tuple(name for name in ALGORITHMS if halves or name != "hierarchical_halving")


@pytest.mark.parametrize(
    ("hosts", "algorithm"),
    [(hosts, algorithm) for hosts in LAYOUTS for algorithm in algorithms_for(hosts)],
)
def test_bits_are_equal_on_every_rank_and_at_any_timing(
    hosts: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    islands = [[r for r, host in enumerate(hosts) if host == h] for h in dict.fromkeys(hosts)]
    monkeypatch.setenv("HETCOMM_SELECT", f"all_reduce:0-inf={algorithm}")
    seed = f"{SEED}/{hosts}/{algorithm}"
    first, second = results(hosts, seed, 1), results(hosts, seed, 2)
    size = len(hosts)
    for number, spec in enumerate(specs(random.Random(seed), size)):
        where = f"seed {seed}, call {number}: {spec}"
        everywhere = {found[number] for found in first + second}
        assert len(everywhere) == 1, where
        scatters = spec.collective == Collective.reduce_scatter
        if scatters or len(islands) < 3 or algorithm in IN_ISLAND_ORDER:
            inputs = [contribution(spec, rank, size, number) for rank in range(size)]
            assert everywhere == {in_documented_order(spec, islands, inputs)}, where


class FloatingPointState:
    """The state of the calling thread: one word of glibc's fenv_t."""

    # The word, its flags of earlier exceptions and its default; bits that flush subnormal results
    # and operands; bits that round up.
    WORD, FLAGS, DEFAULT, FLUSH, ROUND_UP = {
        "x86_64": (7, 0x3F, 0x1F80, 0x8040, 0x4000),  # MXCSR
        "aarch64": (0, 0, 0, 1 << 24, 1 << 22),  # FPCR
    }[os.uname().machine]

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libm.so.6")

    def control(self) -> int:
        """The word without the flags of earlier exceptions."""
        return self._get()[self.WORD] & ~self.FLAGS

    def add(self, bits: int) -> None:
        words = self._get()
        words[self.WORD] |= bits
        self._library.fesetenv(words)

    def reset(self) -> None:
        words = self._get()
        words[self.WORD] = self.DEFAULT
        self._library.fesetenv(words)

    def _get(self) -> ctypes.Array[ctypes.c_uint32]:
        words = (ctypes.c_uint32 * 8)()
        self._library.fegetenv(words)
        return words


@pytest.mark.parametrize("bits", [FloatingPointState.FLUSH, FloatingPointState.ROUND_UP])
@pytest.mark.parametrize("scaled", [False, True])
def test_floating_point_state_changes_no_bit_and_is_kept(bits: int, scaled: bool) -> None:
    hosts, state = "aab", FloatingPointState()
    op = ReduceOp.average if scaled else ReduceOp.sum
    spec = Spec(Collective.all_reduce, Dtype.float32, op, count=1000)
    subnormal = np.full(spec.count, 3e-39, np.float32)
    subnormal[::2] = np.float32(1) / 3

    def program(communicator: Communicator) -> bytes:
        output = np.zeros_like(subnormal)
        try:
            if communicator.rank == 1:
                state.add(bits)
            before = state.control()
            communicator.submit(spec, subnormal, output, True).wait()
            assert state.control() == before
        finally:
            state.reset()
        return output.tobytes()

    found = results_of(run_ranks(hosts, program))
    pair = subnormal + subnormal
    total = pair + subnormal
    assert set(found) == {(total / np.float32(3) if scaled else total).tobytes()}


def test_a_setting_other_than_0_or_1_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_DETERMINISTIC", "1")
    assert _core.deterministic()
    monkeypatch.setenv("HETCOMM_DETERMINISTIC", "yes")
    with pytest.raises(_core.InvalidArgumentError, match="HETCOMM_DETERMINISTIC"):
        _core.deterministic()
