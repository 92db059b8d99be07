"""A store without keys of earlier attempts.

torchrun keeps one store for all attempts of a restarted job, unless
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. The environment does not number the attempts of a job: agents
count those of their own node. So a rank may read a key of a dead rank.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable
from typing import Any

import hetcomm._core as _core
from hetcomm.bounded_call import ANSWER_SECONDS, BoundedCall

_PAUSE_SECONDS = 0.005  # between two reads of the store
_COMPLETE = "complete"  # the outcome of an attempt with all ranks


def store_of_attempt(store: Any, rank: int, size: int, timeout: float, group: str) -> Any:
    """The store of a group; under torchrun a part of it without keys of earlier attempts.

    Rank 0 names the part. It publishes the name with a new random word of each rank. A rank that
    finds its own word knows that the name belongs to this attempt. Rank 0 then publishes that all
    ranks have the name, or the first missing rank, so that ranks with the name do not wait.

    Raises:
        hetcomm.TimeoutError: a rank did not come within `timeout` seconds, or the store does not
            answer.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or size == 1:
        return store
    from torch.distributed import PrefixStore

    def agree(_: threading.Event) -> str:
        if rank == 0:
            return _publish(store, size, timeout, group)
        return _confirm(store, rank, size, timeout, group)

    # torch's calls have no bound where the server stands still.
    name = BoundedCall(agree).result(timeout + ANSWER_SECONDS, "torch's store")
    return PrefixStore(f"attempt/{name}", store)


def _read(store: Any, key: str) -> str:
    """The value of a key; empty without one."""
    return store.get(key).decode() if store.check([key]) else ""


def _publish(store: Any, size: int, timeout: float, group: str) -> str:
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
            missing = _unconfirmed(store, name, missing)
            _pause(end, missing, group, size, timeout)
    except _core.TimeoutError as error:
        store.set(f"outcome/{name}", str(error))
        raise
    store.set(f"outcome/{name}", _COMPLETE)
    return name


def _unconfirmed(store: Any, name: str, ranks: Iterable[int]) -> list[int]:
    return [each for each in ranks if not store.check([f"heard/{name}/{each}"])]


def _confirm(store: Any, rank: int, size: int, timeout: float, group: str) -> str:
    word = secrets.token_hex(8)
    store.set(f"word/{rank}", word)
    end = time.monotonic() + timeout
    while True:
        name, *words = _read(store, "words").split(",")
        if len(words) == size - 1 and words[rank - 1] == word:
            break
        _pause(end, [0], group, size, timeout)
    store.set(f"heard/{name}/{rank}", "")
    while not (outcome := _read(store, f"outcome/{name}")):
        expired = time.monotonic() > end  # rank 0 waits for missing ranks
        missing = _unconfirmed(store, name, range(1, size)) if expired else []
        _pause(end, missing or [0], group, size, timeout)
    if outcome != _COMPLETE:
        raise _core.TimeoutError(outcome)
    return name


def _pause(end: float, missing: list[int], group: str, size: int, timeout: float) -> None:
    if missing and time.monotonic() > end:
        raise _core.TimeoutError(
            f'rank {missing[0]} of {size} did not come to group "{group}" within '
            f"{_core.format_seconds(timeout)}; see that it runs, or raise the timeout"
        )
    time.sleep(_PAUSE_SECONDS * max(1, size / 32) if missing else 0)
