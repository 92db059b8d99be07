"""The flight recorder of communicators whose ranks are threads."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from communicators import BOUND, Call, results_of, run_ranks
from undisturbed import undisturbed

import hetcomm
from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec


def spans_of(trace: str, group: str) -> dict[int, list[dict[str, Any]]]:
    """The events of each rank of a group, without the names."""
    events = json.loads(trace)["traceEvents"]
    ranks = {}
    for event in events:
        if event["name"] == "process_name" and f" of {group}" in event["args"]["name"]:
            ranks[event["pid"]] = int(event["args"]["name"].split()[1])
    found: dict[int, list[dict[str, Any]]] = {rank: [] for rank in ranks.values()}
    for event in events:
        if event["ph"] == "X" and event["pid"] in ranks:
            found[ranks[event["pid"]]].append(event)
    return found


def calls_of(spans: list[dict[str, Any]]) -> list[int]:
    """The numbers of the collectives, in order. Each rank that is a thread asked."""
    numbers = [re.search(r"#(\d+)$", span["name"]) for span in spans if "outcome" in span["args"]]
    return sorted({int(number[1]) for number in numbers if number})


def dumped(communicator: Communicator, ready: threading.Barrier) -> tuple[str, str]:
    """The dump by rank 0, while no rank is in an operation, with the answers of all ranks."""
    found = ("", "")
    ready.wait(BOUND)
    if communicator.rank == 0:
        dump = lambda: _core.dump("test", True)  # noqa: E731
        found = undisturbed(dump, lambda found: "does not answer within" not in found[0])
    ready.wait(BOUND)
    return found


@pytest.mark.parametrize(("setting", "kept"), [("8", 8), ("5", 8), ("0", 0), ("", 100)])
def test_the_last_operations_stay(monkeypatch: pytest.MonkeyPatch, setting: str, kept: int) -> None:
    monkeypatch.setenv("HETCOMM_RECORDER", setting)
    ready = threading.Barrier(2)

    def program(communicator: Communicator) -> tuple[str, str]:
        for seed in range(100):
            Call(communicator, Spec(Collective.all_reduce, count=8), seed, True).check()
        return dumped(communicator, ready)

    text, trace = results_of(run_ranks("ab", program, name="wraps"))[0]
    assert "2 ranks" in text and "no rank has waited for a second" in text
    spans = spans_of(trace, "wraps")
    assert sorted(spans) == [0, 1]
    for rank in spans:
        assert calls_of(spans[rank]) == list(range(100 - kept, 100))


def test_steps_of_long_plans_stay_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_RECORDER", "4")  # and 64 events of steps
    ready = threading.Barrier(4)
    spec = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=3_000_000)

    def program(communicator: Communicator) -> tuple[tuple[str, str], int]:
        for seed in range(3):
            Call(communicator, spec, seed, True).check()
        steps = len(_core.Planner(communicator.topology).plan(spec, communicator.rank).steps)
        return dumped(communicator, ready), steps

    results = results_of(run_ranks("aabb", program, name="long"))
    assert results[0][1] > 1
    for spans in spans_of(results[0][0][1], "long").values():
        steps = [span for span in spans if "over" in span["args"]]
        assert calls_of(spans) == [0, 1, 2]
        assert 0 < len(steps) <= 4 * 64  # as told to four ranks
        assert all(span["args"]["over"] for span in steps)


def test_messages_and_failures_are_recorded() -> None:
    ready = threading.Barrier(2)

    def program(communicator: Communicator) -> tuple[str, str]:
        peer, data = 1 - communicator.rank, bytearray(64)
        if communicator.rank == 0:
            communicator.send(data, Dtype.uint8, peer, 7).wait()
        else:
            communicator.recv(data, Dtype.uint8, peer, 7).wait()
        return dumped(communicator, ready)

    text, trace = results_of(run_ranks("ab", program, name="messages"))[0]
    assert "the last over is send uint8 x 64 with rank 1 tag 7" in text, text
    assert "the last over is recv uint8 x 64 with rank 0 tag 7" in text, text
    for spans in spans_of(trace, "messages").values():
        assert len({span["name"] for span in spans}) == 1


def test_the_only_step_of_a_collective_has_its_peer_and_bytes() -> None:
    ready = threading.Barrier(2)

    def program(communicator: Communicator) -> tuple[str, str]:
        Call(communicator, Spec(Collective.broadcast, count=8), 0, True).check()
        return dumped(communicator, ready)

    _, trace = results_of(run_ranks("ab", program, name="single"))[0]
    (recv,) = {
        (span["name"], span["args"]["bytes"])
        for span in spans_of(trace, "single")[1]
        if "outcome" not in span["args"]
    }
    assert recv == ("recv #0.0", 32)
    assert '"recv from rank 0"' in trace


def test_dumps_while_ranks_work() -> None:
    """Several threads dump at once. No rank stops for a dump."""
    over = threading.Event()
    size = 3
    everyone_is_there = threading.Barrier(size)
    dumped: list[str] = []

    def program(communicator: Communicator) -> int:
        calls = 0
        everyone_is_there.wait(BOUND)
        if communicator.rank == 0:
            threads = [threading.Thread(target=dump_often) for _ in range(2)]
            for thread in threads:
                thread.start()
        while not over.is_set() or calls < 10:
            ends = bytearray(4)
            Call(communicator, Spec(Collective.all_reduce, count=20_000), calls, True).check()
            calls += 1
            # All ranks stop after the same call.
            spec = Spec(Collective.broadcast, Dtype.uint8, count=4, in_place=True)
            ends[0] = over.is_set() if communicator.rank == 0 else 0
            communicator.submit(spec, ends, will_wait=True).wait()
            if ends[0]:
                break
        if communicator.rank == 0:
            for thread in threads:
                thread.join(BOUND)
        return calls

    def dump_often() -> None:
        try:
            for _ in range(10):
                dumped.append(hetcomm.dump())
                assert "hetcomm_operations_total" in hetcomm.metrics()
        finally:
            over.set()

    assert len(set(results_of(run_ranks("aab", program, name="busy")))) == 1
    assert len(dumped) == 20
    for text in dumped:
        assert text.count(f"of {size} ranks") >= size, text


def test_a_process_without_groups_says_so() -> None:
    program = "import hetcomm; print(hetcomm.dump())"
    import subprocess
    import sys

    found = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=BOUND
    )
    assert "this process has no group of several ranks" in found.stdout, found
