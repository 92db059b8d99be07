"""Every row of base/dtype.h is one dtype to kernels, NumPy, torch and native libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hetcomm
from hetcomm import _core

DTYPES = _core.Dtype.__members__
every_dtype = pytest.mark.parametrize("name", DTYPES)
SMALL = np.array([0.0, 1.0, 2.0, 1.5, 0.25, 0.0, 1.0], np.float64)  # exact in every format


def reduces(name: str) -> bool:
    return bool(_core.reducible(DTYPES[name], _core.ReduceOp.sum))


def of_torch(name: str) -> Any:
    """torch's dtype of a row; None if torch has none or only moves it."""
    return getattr(torch, name.replace("boolean", "bool"), None)


def numpy_array(name: str) -> np.ndarray | None:
    """An array of the dtype; None for a type of ml_dtypes."""
    try:
        return np.zeros(12, DTYPES[name].numpy)
    except TypeError:
        return None


def operations(run: Any, communicator: Any) -> list[str]:
    communicator.begin_trace()
    run()
    return [trace.operation for trace in communicator.end_trace()]


@every_dtype
def test_kernels_round_trip(name: str) -> None:
    dtype = DTYPES[name]
    stored = np.zeros(SMALL.size * dtype.size, np.uint8)
    if dtype.floating:
        back = np.empty_like(SMALL)
        _core.cast(dtype, stored, DTYPES["float64"], SMALL)
        _core.cast(DTYPES["float64"], back, dtype, stored)
        np.testing.assert_array_equal(back, SMALL)
    else:
        stored[:: dtype.size] = [0, 1, 1, 0, 0, 1, 1]
    for op in _core.ReduceOp.__members__.values():
        if _core.reducible(dtype, op):
            target = np.full_like(stored, 0xA5)
            _core.reduce(dtype, op, target, [stored])
            np.testing.assert_array_equal(target, stored, op.name)


@every_dtype
def test_device_kernel_text_has_the_type(name: str) -> None:
    assert f"struct {name} : " in _core.device_text()


@every_dtype
def test_numpy_round_trip(name: str) -> None:
    sent = numpy_array(name)
    if sent is None:  # like arrays of ml_dtypes: no buffer, but a dtype of this name
        assert not DTYPES[name].numpy[1:].isdigit()
        return
    assert sent.itemsize == DTYPES[name].size
    sent.view(np.uint8)[:] = np.arange(sent.nbytes) % 2
    with_core = hetcomm.Communicator(_core.LocalStore(), 0, 1)
    got = np.zeros_like(sent)
    ran = operations(lambda: with_core.all_gather(sent, got), with_core._communicator)
    assert len(ran) == 1 and f" {name} " in ran[0], ran
    assert got.tobytes() == sent.tobytes()


@pytest.fixture(scope="module")
def backend() -> Iterator[Any]:
    dist.init_process_group("hetcomm", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@every_dtype
def test_torch_round_trip(name: str, backend: Any) -> None:
    """A dtype of torch belongs to the row of its name. A dtype without row is moved by its size."""
    dtype = of_torch(name)
    if not DTYPES[name].torch:
        assert dtype is None or not reduces(name)
        return
    assert dtype is not None and dtype.itemsize == DTYPES[name].size
    sent = torch.tensor([1, 0, 1, 1], dtype=torch.float32).to(dtype)
    got = [torch.zeros_like(sent)]
    with hetcomm.trace() as traces:
        dist.all_gather(got, sent)
    assert [f" {name} " in trace.operation for trace in traces] == [True]
    assert got[0].view(torch.uint8).tolist() == sent.view(torch.uint8).tolist()


@every_dtype
def test_native_libraries_reduce_dtypes_with_a_number(name: str) -> None:
    numbered = DTYPES[name].ccl >= 0
    assert _core.ccl_reduces(DTYPES[name], _core.ReduceOp.sum) == (numbered and reduces(name))
    same = [other for other in DTYPES if numbered and DTYPES[other].ccl == DTYPES[name].ccl]
    assert {DTYPES[other].size for other in same} <= {DTYPES[name].size}
