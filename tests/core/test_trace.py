"""Start and end times of steps, of communicators whose ranks are threads."""

from __future__ import annotations

import numpy as np
import pytest
from communicators import Call, results_of, run_ranks

from hetcomm import _core
from hetcomm._core import Collective, Communicator, Dtype, InvalidArgumentError, ReduceOp, Spec

KINDS = [Collective.all_reduce, Collective.all_to_all, Collective.broadcast, Collective.barrier]


@pytest.mark.parametrize("collective", KINDS, ids=lambda each: each.name)
@pytest.mark.parametrize("hosts", ["a", "aa", "abab", "aabbc"])
def test_steps_follow_the_plan(hosts: str, collective: Collective) -> None:
    count = 0 if collective == Collective.barrier else 70_000
    spec = Spec(collective, Dtype.float32, ReduceOp.sum, count=count)

    def program(communicator: Communicator) -> None:
        Call(communicator, spec, 0, True).check()  # not traced
        communicator.begin_trace()
        Call(communicator, spec, 1, True).check()
        (trace,) = communicator.end_trace()
        plan = _core.Planner(communicator.topology).plan(spec, communicator.rank)
        assert (trace.algorithm, len(trace.spans)) == (plan.algorithm, len(plan.steps))
        island_free = 0
        for step, span in zip(plan.steps, trace.spans, strict=True):
            before = [trace.spans[index].end for index in step.after]
            assert trace.started <= span.start <= span.end <= trace.ended
            assert span.kind == step.kind.name and span.start >= max(before, default=0)
            if step.kind.name in ("send", "recv"):
                moved = step.target.count + sum(each.count for each in step.sources)
                assert (span.peers, span.bytes) == ([step.peer], 4 * moved)
            elif step.kind.name.startswith("island"):
                assert sorted([*span.peers, plan.rank]) == list(plan.members)
                assert span.start >= island_free
                island_free = span.end

    results_of(run_ranks(hosts, program))


def test_messages_and_works_have_traces() -> None:
    given = np.arange(5, dtype=np.float32)

    def program(communicator: Communicator) -> None:
        got = np.zeros_like(given)
        peer = 1 - communicator.rank
        communicator.begin_trace()
        coming = communicator.recv(got, Dtype.float32, peer)
        going = communicator.send(given, Dtype.float32, peer)
        for work, kind in ((coming, "recv"), (going, "send")):
            work.wait()
            (span,) = work.trace.spans
            assert (span.kind, span.peers, span.bytes) == (kind, [peer], given.nbytes)
        traces = communicator.end_trace()
        assert [trace.spans[0].kind for trace in traces] == ["recv", "send"]
        assert traces[0].submitted <= traces[1].submitted
        late = communicator.recv(got, Dtype.float32, peer)
        communicator.send(given, Dtype.float32, peer).wait()
        late.wait()
        assert late.trace is None and (got == given).all()

    results_of(run_ranks("ab", program))


def test_tracing_begins_once_and_leaves_out_pending_operations() -> None:
    def program(communicator: Communicator) -> None:
        communicator.begin_trace()
        with pytest.raises(InvalidArgumentError, match="being traced"):
            communicator.begin_trace()
        if communicator.rank == 0:
            waiting = communicator.recv(np.zeros(1, np.float32), Dtype.float32, 1)
            assert communicator.end_trace() == [] and waiting.trace is None
        Call(communicator, Spec(Collective.barrier), 0, True).check()
        if communicator.rank == 1:
            communicator.send(np.ones(1, np.float32), Dtype.float32, 0).wait()
        else:
            waiting.wait()
            assert waiting.trace.spans[0].end <= waiting.trace.ended

    results_of(run_ranks("ab", program))
