"""Ranks of one group that are threads of one process, and share nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from communicators import BOUND, executor, results_of, run_ranks
from silence import without_silence

import hetcomm
from hetcomm import _core
from hetcomm._core import Dtype


def in_threads(size: int, program: Callable[[int], Any]) -> list[Any]:
    """The results of `program` on each rank."""
    found: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            found[rank] = program(rank)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * BOUND)
        assert not thread.is_alive(), "a rank hangs"
    return results_of(found)


def use(group: hetcomm.Communicator) -> None:
    """Runs a collective, and large messages around the ring."""
    rank, size = group.rank, group.size
    assert group.all_reduce(np.full(1000, rank + 1.0))[-1] == size * (size + 1) / 2
    got = np.zeros(300_000)
    receive = group.recv(got, (rank - 1) % size, async_op=True)
    group.send(np.full(300_000, float(rank)), (rank + 1) % size)
    receive.wait()
    assert (got == (rank - 1) % size).all()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_communicators_run_as_threads(size: int) -> None:
    stores = [_core.LocalStore() for _ in range(3)]
    everyone = threading.Barrier(size)

    def program(rank: int) -> None:
        groups = [hetcomm.Communicator(store, rank, size, timeout=BOUND) for store in stores[:2]]
        for group in groups:
            use(group)
        everyone.wait(BOUND)
        groups[0].close()
        with hetcomm.Communicator(stores[2], size - 1 - rank, size, timeout=BOUND) as reversed_:
            use(reversed_)
            use(groups[1])
            everyone.wait(BOUND)
        groups[1].close()

    in_threads(size, program)


def test_groups_may_be_set_up_concurrently() -> None:
    stores = [_core.LocalStore() for _ in range(4)]

    def program(place: int) -> None:
        rank, which = place % 2, place // 2
        with hetcomm.Communicator(stores[which], rank, 2, timeout=BOUND) as group:
            use(group)

    in_threads(8, program)


@pytest.mark.parametrize("hosts", ["ab", "aab"])
def test_threads_communicate_over_links(hosts: str) -> None:
    store = _core.LocalStore()

    def program(rank: int) -> list[str]:
        group = _core.Communicator(store, rank, len(hosts), BOUND, "links", host=hosts[rank])
        data = np.full(100_000, rank + 1, np.int64)
        spec = _core.Spec(_core.Collective.all_reduce, Dtype.int64, count=data.size, in_place=True)
        group.submit(spec, data, will_wait=True).wait()
        assert (data == sum(range(1, len(hosts) + 1))).all()
        paths = [group.path_to(peer) for peer in range(len(hosts)) if peer != rank]
        group.leave()
        return paths

    found = in_threads(len(hosts), program)
    assert any(path != "not connected yet" for paths in found for path in paths), found


def test_threads_split_a_group() -> None:
    store = _core.LocalStore()

    def program(rank: int) -> None:
        with hetcomm.Communicator(store, rank, 4, timeout=BOUND) as group:
            part = group.split(rank % 2)
            assert part is not None
            with part:
                use(part)
            use(group)

    in_threads(4, program)


def test_two_ranks_on_one_executor_are_rejected() -> None:
    results = run_ranks("ab", use, executors=[executor(0), executor(0)], timeout=BOUND)
    for result in results:
        assert isinstance(result, _core.Error), result
        assert "expected an executor of its own for each rank" in str(result)


def test_the_process_ends_in_good_order() -> None:
    program = """
import threading
import hetcomm, numpy
from hetcomm import _core
store = _core.LocalStore()
def run(rank):
    group = groups[rank] = hetcomm.Communicator(store, rank, 3)
    group.all_reduce(numpy.ones(8))
groups = {}
threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("through")
"""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=BOUND
    )
    assert (ended.returncode, ended.stdout) == (0, "through\n")
    assert without_silence(ended.stderr) == ""
