"""A link uses the cheapest transport that both ranks have."""

from __future__ import annotations

import numpy as np
import pytest
from communicators import results_of, run_ranks

from hetcomm import _core
from hetcomm._core import Communicator, Dtype


def exchange(communicator: Communicator) -> list[str]:
    """Sums over all ranks. Returns the transports of this rank's links."""
    size, rank = communicator.size, communicator.rank
    data = np.full(100_000, rank + 1, np.int64)
    spec = _core.Spec(_core.Collective.all_reduce, Dtype.int64, count=data.size, in_place=True)
    communicator.submit(spec, data, will_wait=True).wait()
    assert (data == size * (size + 1) // 2).all()
    paths = [communicator.path_to(peer) for peer in range(size) if peer != rank]
    return [path for path in paths if path != "not connected yet"]


def carriers(kinds: list[list[str]]) -> set[str]:
    executors = [_core.Executor(of_rank) for of_rank in kinds]
    hosts = "abcdefghijklmnop"[: len(kinds)]
    return set().union(*results_of(run_ranks(hosts, exchange, executors=executors)))


def test_twelve_ranks_of_loopback_use_loopback_alone() -> None:
    assert carriers([["loopback"]] * 12) == {"loopback"}


@pytest.mark.parametrize("kinds", [["loopback", "ucx"], ["ucx", "loopback"]])
def test_cheapest_common_transport_is_used(kinds: list[str]) -> None:
    assert carriers([kinds, kinds]) == {"loopback"}


def test_order_of_names_does_not_decide() -> None:
    assert carriers([["ucx", "loopback"], ["loopback", "ucx"]]) == {"loopback"}


def test_only_common_transports_are_used() -> None:
    (carrier,) = carriers([["ucx", "loopback"], ["ucx"]])
    assert carrier.startswith("tcp over ")


def test_ranks_without_a_common_transport_get_an_error() -> None:
    executors = [_core.Executor(["loopback"]), _core.Executor(["ucx"])]
    for result in run_ranks("ab", exchange, executors=executors):
        assert isinstance(result, _core.TransportError)
    message = str(result)
    # Either rank may notice first, and every rank reports the first cause.
    ends = ("ucx here and loopback there", "loopback here and ucx there")
    assert "expected a transport that both ranks have; got" in message
    assert any(end in message for end in ends), message
    assert "HETCOMM_UCX_LIBRARY" in message
