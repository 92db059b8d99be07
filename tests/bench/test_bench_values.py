"""The parts of `hetcomm bench` without ranks: cases, random values, checks, rows, schedules."""

from __future__ import annotations

import numpy as np
import pytest

import hetcomm
from hetcomm.bench.case import KINDS, Case, case_of
from hetcomm.bench.check import compare, fill_input
from hetcomm.bench.inputs import Inputs
from hetcomm.bench.legs import Legs
from hetcomm.bench.measure import Effort, schedule_of
from hetcomm.bench.memory import needed
from hetcomm.bench.row import Row, quantile, row_of
from hetcomm.bench.settings import Settings, parse_sizes
from hetcomm.bench.values import CHUNK, ELEMENTS, OPS, elements_of

RANKS = 3
SEED = 5
INPUTS = Inputs(SEED)


def result(case: Case, rank: int) -> np.ndarray:
    """The output of a rank, computed from the whole inputs of all ranks."""
    inputs = []
    for other in range(case.ranks):
        whole = np.zeros(case.blocks(other)[0] * case.count, ELEMENTS[case.dtype].kept)
        fill_input(case, other, INPUTS, whole)
        inputs.append(whole)
    blocks = []
    for block in range(case.blocks(rank)[1]):
        parts = [inputs[who][start:][: case.count] for who, start in case.sources(rank, block)]
        if len(parts) == 1 or not parts:
            blocks.append(parts[0] if parts else np.zeros(case.count, inputs[0].dtype))
            continue
        combined = parts[0].astype(inputs[0].dtype)
        for part in parts[1:]:
            combined = OPS[case.op].combine(combined, part)
        blocks.append(combined / case.ranks if case.op == "avg" else combined)
    kept = ELEMENTS[case.dtype].kept
    return np.concatenate(blocks).astype(kept) if blocks else np.zeros(0, kept)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "barrier"])
def test_correct_results_pass_and_a_wrong_element_is_found(name: str) -> None:
    size = 4 * (CHUNK + 7) * RANKS
    case = case_of(name, size, RANKS, root=1)
    for rank in range(RANKS):
        output = result(case, rank)
        assert compare(case, rank, INPUTS, output).wrong == ""
        if len(output) and case.sources(rank, 0):
            output[CHUNK + 3] += 0.25
            assert f"element {CHUNK + 3} is" in compare(case, rank, INPUTS, output).wrong
            assert compare(case, rank, Inputs(SEED + 1), result(case, rank)).wrong


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint64"])
def test_reductions_of_each_dtype_match_numpy(op: str, dtype: str) -> None:
    element = ELEMENTS[dtype]
    if not (OPS[op].floats if element.floating else OPS[op].integers):
        with pytest.raises(hetcomm.InvalidArgumentError, match=f"--op: {op} is for"):
            case_of("all_reduce", 64, RANKS, dtype=dtype, op=op)
        return
    case = case_of("all_reduce", 64, RANKS, dtype=dtype, op=op)
    output = result(case, 0)
    assert compare(case, 0, INPUTS, output).wrong == ""
    one_missing = Case(**{**vars(case), "ranks": RANKS - 1})
    assert compare(case, 0, INPUTS, result(one_missing, 0)).wrong


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_missing_in_numpy_are_decoded(dtype: str) -> None:
    import torch

    inputs = [elements_of(dtype, SEED, rank, 0, 4096) for rank in range(2)]
    tensors = [torch.from_numpy(bits.copy()).view(getattr(torch, dtype)) for bits in inputs]
    for bits, tensor in zip(inputs, tensors, strict=True):
        numbers = ELEMENTS[dtype].numbers(bits)
        assert (numbers == tensor.double().numpy()).all()
        assert ((numbers >= 0.5) & (numbers < 1.5)).all()
    case = case_of("all_reduce", len(inputs[0]) * ELEMENTS[dtype].size, 2, dtype=dtype)
    total = (tensors[0].float() + tensors[1].float()).to(tensors[0].dtype)
    bits = total.view(torch.uint8).numpy().view(inputs[0].dtype)
    assert compare(case, 0, INPUTS, bits).wrong == ""
    assert compare(case, 0, INPUTS, inputs[0]).wrong


def test_any_part_of_an_input_can_be_made_alone() -> None:
    whole = elements_of("float32", 1, 2, 0, 3 * CHUNK)
    part = elements_of("float32", 1, 2, CHUNK - 5, CHUNK + 10)
    assert (part == whole[CHUNK - 5 : 2 * CHUNK + 5]).all()
    assert (elements_of("float32", 1, 3, 0, 100) != whole[:100]).any()


def test_bus_bandwidth_factors_are_those_of_nccl_tests() -> None:
    def factor(name: str) -> float:
        case = case_of(name, 4096, 4)
        row = Row("b", "b 1", case, 1, [2.0, 1.0, 4.0], [2.0] * 4, True)
        assert row.algbw == case.bytes / 2.0
        return row.busbw / row.algbw

    assert factor("all_reduce") == pytest.approx(2 * 3 / 4)
    for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        assert factor(name) == pytest.approx(3 / 4)
    for name in ("broadcast", "reduce", "send_recv", "ping_pong"):
        assert factor(name) == pytest.approx(1)


def test_rows_survive_json() -> None:
    case = case_of("all_gather", 100, 4, in_place=True)
    legs = Legs([0.5] * 4, [1.0, 0.0, 0.0, 0.0], 7, [{"island": 1.0}, {}, {}, {}], [{}] * 4)
    sent = {"total": 1.0, "bridge_bytes": 2.0, "plain_bridge_bytes": 8.0}
    row = Row("b", "b 1", case, 3, [2.0, 1.0], [1.0] * 4, False, sent, legs, "int8", 0.5)
    assert row_of(row.as_json()) == row and row.fewer_bytes == 4
    assert legs.waited_for == 0
    assert case.bytes == 112  # whole elements in four blocks


def test_quantiles_are_by_nearest_rank() -> None:
    assert quantile(range(1, 101), 0.99) == 99
    assert quantile(range(1, 51), 0.99) == 50
    assert quantile([3.0], 0.99) == 3.0


def test_sizes_are_parsed() -> None:
    assert parse_sizes("8:64") == (8, 16, 32, 64)
    assert parse_sizes("1k:1M:32") == (1024, 32768, 1048576)
    assert parse_sizes("8,3k") == (8, 3072)
    for wrong in ("", "64:8", "8:64:1", "8:64:2:2", "8:64:x", "0", "0:8", "-8", "8,,9", "big"):
        with pytest.raises(hetcomm.InvalidArgumentError, match="--sizes"):
            parse_sizes(wrong)


def test_cases_are_measured_once() -> None:
    settings = Settings(
        ("broadcast", "all_reduce"), ("b",), (1, 2, 8), ops=("sum", "max"), places=(True, False)
    )
    cases = settings.cases(2)
    assert len([case for case in cases if case.collective == "broadcast"]) == 2  # 4 and 8 bytes
    assert len([case for case in cases if case.collective == "all_reduce"]) == 2 * 2 * 2
    assert Settings.from_json(settings.to_json()) == settings


def test_needed_memory_covers_the_buffers() -> None:
    assert needed(case_of("all_reduce", 4096, 4), 0) == 2 * 4096
    assert needed(case_of("all_reduce", 4096, 4, in_place=False), 0) == 3 * 4096
    gather = case_of("gather", 4096, 4)
    assert (needed(gather, 0), needed(gather, 1)) == (2 * 4096 + 1024, 4096 + 1024)


def test_schedules_fit_the_effort() -> None:
    short = schedule_of(1e-5, Effort())
    assert short.calls == 10 and short.samples * short.turns >= 1000
    long = schedule_of(0.5, Effort())
    assert (long.calls, long.samples, long.turns, long.lead) == (1, 1, 7, 0)
    assert long.apart and not short.apart
    whole = schedule_of(1e-5, Effort(), whole=True)
    assert (whole.samples, whole.calls) == (1, short.calls * short.samples)
    given = schedule_of(1e-6, Effort(iterations=20, turns=4))
    assert given.calls * given.samples * given.turns >= 20
