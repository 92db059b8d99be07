"""Launches of kernels on a device: blocks, arguments, and rejected requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from hetcomm import _core

DTYPES = _core.Dtype.__members__


def test_launches_use_vectors_where_addresses_allow() -> None:
    """Only the ragged ends use no vectors. The arguments are count, head and vectors."""
    operation = (DTYPES["float16"], _core.ReduceOp.sum)

    def cut(target: int, *sources: int) -> list[int]:
        arguments = _core.reduce_launch(*operation, target, list(sources), 1000)[3]
        return np.frombuffer(arguments[3], np.uint64).tolist()

    assert cut(1 << 20, 2 << 20) == [1000, 0, 125]
    assert cut((1 << 20) + 6, (2 << 20) + 6) == [1000, 5, 124]
    assert cut((1 << 20) + 6, (2 << 20) + 4) == [1000, 0, 0]


def test_launches_are_bounded() -> None:
    blocks = _core.reduce_launch(DTYPES["int8"], _core.ReduceOp.sum, 0, [0], 1 << 40)[1]
    assert blocks == 1 << 20
    assert _core.reduce_launch(DTYPES["int8"], _core.ReduceOp.sum, 0, [0], 0)[1] == 0


@pytest.mark.parametrize(
    ("group", "elements"),
    [(32, 256), (64, 512), (256, 512), (512, 512), (1024, 1024), (2048, 2048)],
)
def test_a_team_encodes_its_elements(group: int, elements: int) -> None:
    """32 threads encode so many elements at a time, as in the text of the kernel."""
    count = 1 << 20
    ((_, blocks, threads, _),) = _core.encode_launches(
        f"int8:{group}", DTYPES["float32"], 0, 0, 0, count
    )
    assert blocks * threads == count // elements * 32


def test_impossible_launches_are_rejected() -> None:
    float32, add = DTYPES["float32"], _core.ReduceOp.sum
    cases: list[tuple[str, Callable[..., object], Sequence[object]]] = [
        ("1 to 256 sources; got 257", _core.reduce_launch, (float32, add, 0, [0] * 257, 4)),
        ("1 to 256 sources; got 0", _core.reduce_launch, (float32, add, 0, [], 4)),
        ("multiples of 4; got one that is 2", _core.reduce_launch, (float32, add, 2, [0], 4)),
        ("got band of float32", _core.reduce_launch, (float32, _core.ReduceOp.band, 0, [0], 4)),
        ("multiples of 16", _core.encode_launches, ("int8", float32, 8, 0, 0, 4)),
        ("multiples of 4", _core.encode_launches, ("int8", float32, 0, 2, 0, 4)),
        ("multiples of 4", _core.encode_launches, ("int8", float32, 0, 0, 2, 4)),
        ("multiples of 16", _core.decode_launch, ("int8", float32, 0, 0, [4], 4)),
        ("multiples of 4", _core.decode_launch, ("int8", float32, 2, 0, [0], 4)),
        ("1 to 256 sources; got 0", _core.decode_launch, ("int8", float32, 0, 0, [], 4)),
        ("encodes; got float64", _core.encode_launches, ("int8", DTYPES["float64"], 0, 0, 0, 4)),
        ("name of a codec; got .none.", _core.encode_launches, ("none", float32, 0, 0, 0, 4)),
        ("adds nothing", _core.decode_launch, ("lossless", float32, 0, 0, [0, 0], 4)),
        ("adds nothing", _core.decode_launch, ("lossless", float32, 0, 16, [0], 4)),
    ]
    for message, call, arguments in cases:
        with pytest.raises(_core.InvalidArgumentError, match=message):
            call(*arguments)
