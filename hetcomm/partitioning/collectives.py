"""The collectives of a partition. Every one of them starts here, with its codec if it has one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hetcomm import _core, codecs
from hetcomm.functional import all_gather_single, reduce_scatter_single
from hetcomm.partitioning.grid import Dimension

TRAFFIC = ("weights", "gradients", "updates")


@dataclass(frozen=True)
class Encoding:
    """How sums are encoded between hosts. codec: None for that of the group. feedback: keeps what a
    lossy codec loses, or None."""

    codec: str | None
    feedback: codecs.Feedback | None = None


def encoded(
    codec: str | None, feedback: codecs.Feedback | None = None, key: str = ""
) -> AbstractContextManager[Any]:
    """The context in which collectives use a codec; no context for None."""
    return nullcontext() if codec is None else codecs.codec(codec, feedback=feedback, key=key)


def is_lossy(codec: str | None) -> bool:
    return codec is not None and not _core.is_lossless(codec)


def check_codecs(given: dict[str, str | None], group: Any) -> None:
    """Raises InvalidArgumentError for unknown traffic, unknown codecs and other backends."""
    for traffic, codec in given.items():
        if traffic not in TRAFFIC:
            raise _core.InvalidArgumentError(
                f"codecs: expected keys of {', '.join(TRAFFIC)}; got {traffic!r}"
            )
        if codec is None:
            continue
        backend = dist.get_backend(group)
        if backend != "hetcomm":
            raise _core.InvalidArgumentError(
                f'codecs: expected the backend "hetcomm", got "{backend}"; leave codecs '
                'out, or use init_process_group("hetcomm")'
            )
        with encoded(codec):  # refuses unknown names
            pass


def gather(out: torch.Tensor, part: torch.Tensor, along: Dimension, codec: str | None) -> Any:
    """Starts to gather the parts of all ranks along a dimension. Returns a Work, or None for one
    rank. `part` may lie in `out`, at its own place."""
    if along.size == 1:
        if out.data_ptr() != part.data_ptr():
            out.copy_(part)
        return None
    with encoded(codec):
        return all_gather_single(out, part, group=along.group, async_op=True)


def scatter_sum(
    out: torch.Tensor, whole: torch.Tensor, along: Dimension, encoding: Encoding, key: str
) -> Any:
    """Starts to sum `whole` of all ranks along a dimension; each rank gets its part as `out`.

    key: names the tensor for feedback. One sum of a key is in flight at a time.
    """
    with encoded(encoding.codec, encoding.feedback, key):
        return reduce_scatter_single(out, whole, group=along.group, async_op=True)


def all_sum(tensor: torch.Tensor, along: Dimension, encoding: Encoding, key: str) -> Any:
    """Starts to sum `tensor` of all ranks along a dimension, in place. key: as of scatter_sum()."""
    with encoded(encoding.codec, encoding.feedback, key):
        return dist.all_reduce(tensor, group=along.group, async_op=True)


def wait(work: Any) -> None:
    """Waits for a Work, at most for the timeout of its group. None is complete."""
    if work is not None:
        work.wait()
