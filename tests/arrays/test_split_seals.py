"""With a job key the colors of split() carry seals."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from control_peers import OpenStore

import hetcomm

BOUND = 60.0
TIMEOUT = 10.0  # rank 1 waits for it where rank 0 refuses


@pytest.mark.parametrize("forged", [False, True])
def test_a_forged_color_is_refused(forged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_JOB_KEY", "0123456789abcdef" * 4)
    shared: dict[str, bytes] = {}

    def change(rank: int, key: str, value: bytes) -> bytes:
        return b"7 0" if forged and (rank, key) == (0, "split/0/1") else value

    found: list[Any] = [None, None]

    def run(rank: int) -> None:
        with hetcomm.Communicator(
            OpenStore(shared, rank, change), rank, 2, timeout=TIMEOUT
        ) as comm:
            try:
                part = comm.split(0)
                assert part is not None
                found[rank] = part.size
            except hetcomm.Error as error:
                found[rank] = error
                comm.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    if not forged:
        assert found == [2, 2]
        return
    assert isinstance(found[0], hetcomm.InvalidArgumentError), found
    assert 'the store\'s value "split/0/1": expected a seal' in str(found[0])
    assert isinstance(found[1], hetcomm.Error)
