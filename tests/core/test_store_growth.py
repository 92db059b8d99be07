"""The values of finished set-ups leave the store."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from communicators import BOUND, results_of, run_ranks
from control_peers import OpenStore

import hetcomm
from hetcomm import _core, rendezvous

GROUPS = 50
PATTERNS = ["aa", "ab"]


def make_groups(store: Callable[[int], _core.Store], groups: int, hosts: str) -> None:
    """Groups of ranks, made and left one after the other."""
    for number in range(groups):
        parts = [hetcomm.PrefixStore(store(rank), f"{number}/") for rank in range(len(hosts))]
        results_of(run_ranks(hosts, lambda _: None, store=parts.__getitem__))


def settled(count: Callable[[], int], least: int) -> int:
    """The count, once it is at most `least` or the time is over. Nobody waits for deletions."""
    until = time.monotonic() + 5
    while count() > least and time.monotonic() < until:
        time.sleep(0.01)
    return count()


@pytest.mark.parametrize("hosts", PATTERNS)
@pytest.mark.parametrize("key", ["", "0123456789abcdef" * 4], ids=["no-key", "key"])
def test_many_groups_do_not_grow_hetcomms_store(
    hosts: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETCOMM_JOB_KEY", key)
    with contextlib.closing(hetcomm.TcpStoreServer()) as server:
        stores = [hetcomm.TcpStore("127.0.0.1", server.port, BOUND) for _ in hosts]
        stores[0].set("of the user", b"")
        make_groups(stores.__getitem__, GROUPS if hosts == "aa" and key else 5, hosts)
        assert settled(lambda: len(server._values.keys()), 1) == 1, server._values.keys()[:20]


def test_many_groups_do_not_grow_torchs_store() -> None:
    torch = pytest.importorskip("torch")
    shared = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    stores = [
        rendezvous.TorchStore(torch.distributed.TCPStore("127.0.0.1", shared.port))
        for _ in range(2)
    ]
    before = shared.num_keys()
    make_groups(stores.__getitem__, 10, "ab")
    assert settled(shared.num_keys, before) == before


def test_a_store_that_cannot_delete_serves() -> None:
    class Store(_core.Store):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _core.LocalStore()

        def set(self, key: str, value: bytes) -> None:
            self.inner.set(key, value)

        def get(self, key: str, timeout: timedelta) -> bytes:
            return self.inner.get(key, timeout)

    shared = Store()
    make_groups(lambda _: shared, 2, "ab")


def test_a_late_reader_keeps_the_last_values() -> None:
    """Rank 0 does not wait long for a rank that still reads."""
    shared: dict[str, bytes] = {}
    left: list[set[str]] = []

    class Late(OpenStore):
        def set(self, key: str, value: bytes) -> None:
            if key.startswith("over/"):
                time.sleep(3)
                left.append(set(shared))
            super().set(key, value)

        def delete_key(self, key: str) -> None:
            shared.pop(key, None)

    begin = time.monotonic()
    results_of(run_ranks("ab", lambda _: None, store=lambda rank: Late(shared, rank)))
    assert time.monotonic() - begin < 10
    [last] = left
    stages = {key.rpartition("/")[0] for key in last}
    assert len(last) == 2 and len(stages) == 1, last
