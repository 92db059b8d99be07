"""A store without keys of earlier attempts.

torchrun keeps one store for all attempts of a restarted job, unless
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. The environment does not number the attempts of a job: agents
count those of their own node. So a rank may read a key of a dead rank.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from typing import Any

import hetcomm._core as _core

_PAUSE = 0.005  # seconds between two reads of the store
_COMPLETE = "complete"


def fresh(store: Any, rank: int, size: int, timeout: float, group: str) -> Any:
    """The store of a group; under torchrun a part of it without keys of earlier attempts.

    Rank 0 names the part. It publishes the name with a fresh random word of each rank. A rank that
    finds its own word there knows that the name belongs to this attempt. Then rank 0 publishes that
    all ranks have the name, or which rank is missing. Otherwise the ranks with the name would wait
    for rank 0.

    Raises:
        hetcomm.TimeoutError: a rank did not come within `timeout` seconds.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or size == 1:
        return store
    from torch.distributed import PrefixStore

    name = (_lead if rank == 0 else _follow)(store, rank, size, timeout, group)
    return PrefixStore(f"attempt/{name}", store)


def _read(store: Any, key: str) -> str:
    """The value of a key; empty without one."""
    return store.get(key).decode() if store.check([key]) else ""


def _lead(store: Any, rank: int, size: int, timeout: float, group: str) -> str:
    name = secrets.token_hex(8)
    words, missing, published = [""] * size, list(range(1, size)), ""
    end = time.monotonic() + timeout
    try:
        while missing:
            for each in missing:
                words[each] = _read(store, f"word/{each}")
            if (text := ",".join([name, *words[1:]])) != published:
                store.set("words", text)
                published = text
            missing = _unheard(store, name, missing)
            _pause_until(end, missing, group, size, timeout)
    except _core.TimeoutError as error:
        store.set(f"outcome/{name}", str(error))
        raise
    store.set(f"outcome/{name}", _COMPLETE)
    return name


def _unheard(store: Any, name: str, ranks: Iterable[int]) -> list[int]:
    return [each for each in ranks if not store.check([f"heard/{name}/{each}"])]


def _follow(store: Any, rank: int, size: int, timeout: float, group: str) -> str:
    word = secrets.token_hex(8)
    store.set(f"word/{rank}", word)
    end = time.monotonic() + timeout
    while True:
        name, *words = _read(store, "words").split(",")
        if len(words) == size - 1 and words[rank - 1] == word:
            break
        _pause_until(end, [0], group, size, timeout)
    store.set(f"heard/{name}/{rank}", "")
    while not (outcome := _read(store, f"outcome/{name}")):
        expired = time.monotonic() > end  # rank 0 waits for missing ranks
        missing = _unheard(store, name, range(1, size)) if expired else []
        _pause_until(end, missing or [0], group, size, timeout)
    if outcome != _COMPLETE:
        raise _core.TimeoutError(outcome)
    return name


def _pause_until(end: float, missing: list[int], group: str, size: int, timeout: float) -> None:
    if missing and time.monotonic() > end:
        raise _core.TimeoutError(
            f'rank {missing[0]} of {size} did not come to group "{group}" within '
            f"{_core.format_seconds(timeout)}; see that it runs, or raise the timeout"
        )
    time.sleep(_PAUSE * max(1, size / 32) if missing else 0)
