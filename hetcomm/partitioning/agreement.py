"""Arguments of all ranks, and errors that all ranks raise together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from hetcomm import _core

Facts = TypeVar("Facts")


def gather(look: Callable[[], Facts], group: Any = None) -> list[Facts]:
    """What `look` returns on each rank of a group, by rank in the group. A collective of its ranks.

    group: None is the default group.

    Raises:
        hetcomm.InvalidArgumentError: `look` raised an error on a rank. All ranks raise it.
    """
    facts: Facts | None = None
    problem, cause = "", None
    try:
        facts = look()
    except _core.InvalidArgumentError as error:
        problem = str(error)
    except Exception as error:  # the other ranks must not wait for this one
        problem, cause = f"{type(error).__name__}: {error}", error
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    every: list[tuple[str, Facts]] = [None] * len(ranks)  # type: ignore[list-item]
    dist.all_gather_object(every, (problem, facts), group=group)
    for rank, (text, _) in zip(ranks, every, strict=True):
        if text:
            raise _core.InvalidArgumentError(f"rank {rank}: {text}") from cause
    return [each for _, each in every]


def require_equal(what: str, values: list[object], remedy: str) -> None:
    """Raises InvalidArgumentError if a rank's value differs from rank 0's."""
    for rank, value in enumerate(values):
        if value != values[0]:
            raise _core.InvalidArgumentError(
                f"{what}: expected the same on all ranks; got {values[0]!r} on rank 0 and "
                f"{value!r} on rank {rank}; {remedy}"
            )
