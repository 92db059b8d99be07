"""Groups of the same ranks, concurrent and successive, have links of their own.

Groups may use, leave and fail in any order.
"""

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
from communicators import BOUND, results_of, run_ranks

from hetcomm import _core
from hetcomm._core import Communicator, Dtype

LARGE = 1_000_000  # elements: a rendezvous, which needs the receiver's end of the link too
HOSTS = "xy"


@pytest.fixture(scope="module")
def executors() -> list[_core.Executor]:
    """Executors of this module alone, without links of other modules."""
    return [_core.Executor() for _ in HOSTS]


def exchange(communicator: Communicator, seed: int, count: int = LARGE) -> Callable[[], None]:
    """Starts a message both ways. Calling the result completes and checks the messages."""
    rank, peer = communicator.rank, 1 - communicator.rank
    sent, wanted = (
        np.random.default_rng([seed, which]).integers(0, 1 << 30, count) for which in (rank, peer)
    )
    got = np.zeros_like(sent)
    works = [
        communicator.recv(got, Dtype.int64, peer, seed),
        communicator.send(sent, Dtype.int64, peer, seed),
    ]

    def end() -> None:
        for work in works:
            work.wait()
        assert (got == wanted).all()

    return end


def another(
    executors: list[_core.Executor], store: _core.Store, rank: int, name: str
) -> Communicator:
    return Communicator(
        store, rank, len(HOSTS), BOUND, name, executors[rank], HOSTS[rank], "cpu", -1
    )


@pytest.mark.parametrize("leaves", [0, 1])
def test_groups_may_be_used_in_different_orders(
    executors: list[_core.Executor], leaves: int
) -> None:
    store, everyone = _core.LocalStore(), threading.Barrier(2)

    def program(first: Communicator) -> None:
        groups = [first, another(executors, store, first.rank, "second")]
        order = [0, 1] if first.rank == 0 else [1, 0]
        for end in [exchange(groups[which], 5) for which in order]:
            end()
        everyone.wait(BOUND)
        groups[leaves].leave()
        everyone.wait(BOUND)
        exchange(groups[1 - leaves], 6)()
        everyone.wait(BOUND)

    results_of(run_ranks(HOSTS, program, executors=executors))


def test_a_group_follows_one_used_by_one_side_only(executors: list[_core.Executor]) -> None:
    store, everyone = _core.LocalStore(), threading.Barrier(2)

    def program(failed: Communicator) -> None:
        if failed.rank == 0:
            works = [failed.send(np.zeros(count), Dtype.float64, 1, 1) for count in (1, LARGE)]
        everyone.wait(BOUND)
        failed.abort("the test wants it")
        if failed.rank == 0:
            with pytest.raises(_core.AbortedError):
                works[1].wait()
        everyone.wait(BOUND)
        later = another(executors, store, failed.rank, "later")
        exchange(later, 7)()
        everyone.wait(BOUND)

    results_of(run_ranks(HOSTS, program, executors=executors))


def test_groups_may_be_set_up_concurrently(executors: list[_core.Executor]) -> None:
    """Ranks set up groups in different orders, repeatedly. The two ends of each link still
    match."""
    many = 4
    stores: list[_core.Store] = []
    everyone = threading.Barrier(2)

    def program(communicator: Communicator) -> None:
        made: list[Communicator | BaseException] = [communicator] * many

        def make(which: int) -> None:
            try:
                made[which] = another(executors, stores[which], communicator.rank, str(which))
            except BaseException as error:
                made[which] = error

        threads = [threading.Thread(target=make, args=(which,)) for which in range(many)]
        for thread in threads if communicator.rank == 0 else reversed(threads):
            thread.start()
        for thread in threads:
            thread.join(2 * BOUND)
        for end in [exchange(group, 8, 100_000) for group in results_of(made)]:
            end()
        everyone.wait(BOUND)
        for group in made[::2]:
            group.leave()
        everyone.wait(BOUND)
        for group in made[1::2]:
            exchange(group, 9)()
        everyone.wait(BOUND)

    for _ in range(5):
        stores[:] = [_core.LocalStore() for _ in range(many)]
        results_of(run_ranks(HOSTS, program, executors=executors))


def test_slots_of_closed_groups_are_reused(executors: list[_core.Executor]) -> None:
    """Otherwise the first group that uses the link would connect all of them."""
    stores = [_core.LocalStore() for _ in range(100)]

    def program(communicator: Communicator) -> None:
        for number, store in enumerate(stores[:-1]):
            another(executors, store, communicator.rank, str(number)).leave()
        before = len(os.listdir("/proc/self/fd"))
        last = another(executors, stores[-1], communicator.rank, "last")
        exchange(last, 1)()
        assert len(os.listdir("/proc/self/fd")) - before < 100

    results_of(run_ranks(HOSTS, program, executors=executors))
