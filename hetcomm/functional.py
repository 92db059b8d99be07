"""Collectives of torch tensors with a codec between hosts: hetcomm.functional.

Each is torch.distributed's collective inside `with hetcomm.codec(...)`. Inside an island nothing is
rounded: the sum of an island's ranks is exact before the codec encodes the sum. All ranks of the
group name the same codec. docs/codecs.md has the codecs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

import hetcomm
from hetcomm import _core

# The second names are deprecated since torch 2.13.
all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


def all_gather(
    output: torch.Tensor,
    input: torch.Tensor,
    *,
    codec: str = "int8",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Gathers the ranks' inputs, which have equal sizes: torch's all_gather_into_tensor().

    Of weights, this is ZeRO++'s quantised all-gather. All ranks get the same bits, of their own
    input too.

    Returns:
        A Work if async_op is true, otherwise None.

    Raises:
        hetcomm.InvalidArgumentError: there is no such codec, it does not encode the dtype, or the
            group is another backend's.
    """
    with _codec(codec, input, group):
        return all_gather_single(output, input, group=group, async_op=async_op)


def reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,
    op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.AVG,
    *,
    codec: str = "int4",
    group: dist.ProcessGroup | None = None,
    feedback: hetcomm.Feedback | None = None,
    key: str = "",
    async_op: bool = False,
) -> dist.Work | None:
    """Reduces the inputs, and gives each rank its block: torch's reduce_scatter_tensor().

    Of gradients, this is ZeRO++'s quantised reduce-scatter. Each host sums its ranks exactly, and
    each sum is rounded once.

    Args:
        feedback: keeps what the codec loses, for the next call with the same key.
        key: names the tensor; needed with feedback.

    Returns:
        A Work if async_op is true, otherwise None.

    Raises:
        hetcomm.InvalidArgumentError: there is no such codec, it does not encode the dtype, the
            group is another backend's, the key is missing, or its tensor had another size.
    """
    with _codec(codec, input, group, feedback, key):
        return reduce_scatter_single(output, input, op, group=group, async_op=async_op)


def all_reduce(
    tensor: torch.Tensor,
    op: dist.ReduceOp | dist.ReduceOp.RedOpType = dist.ReduceOp.AVG,
    *,
    codec: str = "int8",
    group: dist.ProcessGroup | None = None,
    feedback: hetcomm.Feedback | None = None,
    key: str = "",
    async_op: bool = False,
) -> dist.Work | None:
    """Reduces the tensor in place. Arguments, result and errors are those of reduce_scatter()."""
    with _codec(codec, tensor, group, feedback, key):
        return dist.all_reduce(tensor, op, group=group, async_op=async_op)


def _codec(
    codec: str,
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None,
    feedback: hetcomm.Feedback | None = None,
    key: str = "",
) -> AbstractContextManager[None]:
    """hetcomm.codec(), for a call of hetcomm's: others would ignore the codec."""
    serving: Any = group or dist.group.WORLD
    name = serving._get_backend(tensor.device).name()
    if name != "hetcomm":
        raise _core.InvalidArgumentError(
            f"group: expected one of hetcomm for {tensor.device.type} tensors, got {name}; make "
            'the group with backend="hetcomm"'
        )
    if serving in dist.distributed_c10d._world.pg_coalesce_state:
        raise _core.InvalidArgumentError(
            "expected no call with a codec inside torch's coalescing manager, which starts calls "
            "later and without the codec; make the call outside"
        )
    if feedback is not None and not key:
        raise _core.InvalidArgumentError(
            "feedback: expected a key that names the tensor, got none; pass key="
        )
    return hetcomm.codec(codec, feedback=feedback, key=key)
