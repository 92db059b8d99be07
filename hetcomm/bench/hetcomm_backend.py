"""hetcomm's array API on NumPy."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from hetcomm import _core, codecs
from hetcomm._vendors import vendors
from hetcomm.bench import spans
from hetcomm.bench.backends import Backend, Operation, ping_pong, usual_codec
from hetcomm.bench.case import Case
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.legs import one_clock
from hetcomm.bench.values import ELEMENTS, Array
from hetcomm.communicator import Communicator
from hetcomm.demo.machine import version
from hetcomm.explain_plan import planner_of

SECONDS_TRACED, FEWEST_TRACED, MOST_TRACED = 0.2, 3, 15  # bounds on time and number of calls


class HetcommBackend(Backend):
    """Calls as a user writes them. Predictions are those of `hetcomm explain`."""

    def __init__(self, name: str, which: str, control: ControlChannel, device: str) -> None:
        """which: the codec of every call; "" for usual_codec()."""
        codec = which or usual_codec()
        asked = which or codec.replace("none", "")
        super().__init__(name, f"hetcomm {version('hetcomm') or ''}".strip(), asked)
        self._named = bool(which)
        # The lossy codec of a group leaves calls alone that it cannot encode. A named one fails.
        self._codec = codec if which or codec == "none" else ""
        vendor = os.environ.get("HETCOMM_VENDOR", "")
        if vendor in vendors() or device not in ("", "cpu"):
            raise _core.InvalidArgumentError(
                f"--backend hetcomm measures NumPy's arrays in host memory, got "
                f"{vendor or device}; use --backend torch:hetcomm"
            )
        self._control = control
        self._comm = Communicator(
            control.part(name), control.rank, control.size, name="bench", timeout=control.timeout
        )

    def prepare(self, case: Case, given: Array, got: Array) -> Operation:
        comm, kind, here = self._comm, case.kind, self._comm.rank == case.root
        source, target = _typed(case.dtype, given), _typed(case.dtype, got)
        name = case.collective
        if self._named and name in ("send_recv", "ping_pong", "barrier"):
            raise _core.InvalidArgumentError(
                "messages between two ranks and barriers have no codec; leave --codec out"
            )
        if name == "send_recv":
            return Operation(partial(self._exchange, source, target))
        if name == "ping_pong":
            send, receive = partial(comm.send, source), partial(comm.recv, target)
            return Operation(ping_pong(comm.rank, comm.size, send, receive))
        if name == "barrier":
            return Operation(comm.barrier)
        if case.in_place and name in ("all_gather", "reduce"):
            raise _core.InvalidArgumentError("its output must be separate from its input")
        # The methods of a communicator have these parameters in this order.
        array = target if case.in_place else source
        arguments = [None if kind.rooted_input and not here else array]
        if name != "broadcast":
            arguments.append(None if kind.rooted_output and not here else target)
        arguments += [case.root] * kind.rooted + [case.op] * kind.reduces
        return Operation(partial(getattr(comm, name), *arguments))

    def calling(self) -> AbstractContextManager[None]:
        return codecs.codec(self._codec) if self._codec else nullcontext()

    def _exchange(self, source: Any, target: Any) -> None:
        comm = self._comm
        coming = comm.recv(target, (comm.rank - 1) % comm.size, async_op=True)
        comm.send(source, (comm.rank + 1) % comm.size)
        coming.wait()

    def barrier(self) -> None:
        self._comm.barrier()

    def predicted(self, case: Case) -> dict[str, float] | None:
        topology = self._comm.topology
        parameters = _core.CostParameters(_core.Profile.setting())
        plans = plans_of(case, topology, self._codec)
        cost = _core.predict(topology, plans, parameters)
        legs = ("total", "island", "bridge", "staging")
        found: dict[str, float] = {leg: getattr(cost, leg) * 1e-9 for leg in legs}
        found["bridge_bytes"] = cost.bridge_bytes
        found["scratch_bytes"] = max(plan.scratch_bytes for plan in plans)
        if self.codec:
            plain = _core.predict(topology, plans_of(case, topology, "none"), parameters)
            found["plain_bridge_bytes"] = plain.bridge_bytes
        return found

    def trace_legs(
        self, case: Case, operation: Operation, seconds: float
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        """Of the median of a few calls, by the time of the slowest rank."""
        control, comm = self._control, self._comm
        if case.collective == "ping_pong":
            return None  # not a call of all ranks
        began = time.perf_counter_ns()
        control.gather(None)
        mine = []
        for _ in range(min(max(int(SECONDS_TRACED / seconds), FEWEST_TRACED), MOST_TRACED)):
            comm.barrier()
            with comm.trace() as traces:
                operation.call()
            mine.append(spans.measured(traces, comm.rank, comm.topology))
        by_rank = control.gather([began, mine])
        share_clock = one_clock([(of_rank[0], of_rank[1][0][0]) for of_rank in by_rank])
        calls = [
            [
                spans.Call(start, end, [spans.Step(*step) for step in steps])
                for start, end, steps in one
            ]
            for one in zip(*(of_rank[1] for of_rank in by_rank), strict=True)
        ]
        calls.sort(key=lambda one: max(call.end - call.start for call in one))
        legs = spans.legs_of(calls[len(calls) // 2], comm.rank, share_clock)
        plans = plans_of(case, comm.topology, self._codec)
        planned = spans.predicted(plans, comm.topology)
        return legs, spans.legs_of(planned, comm.rank)

    def close(self) -> None:
        self._comm.close()


def plans_of(case: Case, topology: _core.Topology, codec: str = "") -> list[_core.Plan]:
    """The plans of all ranks for one call; for ping_pong, of one direction. codec: "" for that of
    HETCOMM_BRIDGE_CODEC."""
    if case.collective in ("send_recv", "ping_pong"):
        return [_messages(case, topology, rank) for rank in range(case.ranks)]
    spec = _core.Spec(
        _core.Collective.__members__[case.collective],
        _core.Dtype.__members__[case.dtype],
        _core.ReduceOp.__members__[case.op.replace("avg", "average") or "sum"],
        root=case.root,
        count=case.count,
        in_place=case.in_place,
    )
    spec = spec.with_codec(codec) if codec else spec
    plans: list[_core.Plan] = planner_of(topology).plan_all(spec)
    return plans


def _messages(case: Case, topology: _core.Topology, rank: int) -> _core.Plan:
    """The message that a rank sends and the message that it receives, as one plan."""
    last, directions = case.ranks - 1, _core.Collective
    if case.collective == "send_recv":
        peers = [(directions.send, (rank + 1) % case.ranks)]
        peers.append((directions.recv, (rank - 1) % case.ranks))
    else:
        peers = {0: [(directions.send, last)], last: [(directions.recv, 0)]}.get(rank, [])
    dtype = _core.Dtype.__members__[case.dtype]
    steps: list[_core.Step] = []
    for direction, peer in peers:
        own = _core.message_plan(topology, rank, direction, peer, dtype, case.count).steps
        for step in own:
            step.after = [index + len(steps) for index in step.after]
        steps += own
    spec = _core.Spec(directions.send, dtype, count=case.count)
    members = next(island for island in topology.islands if rank in island)
    return _core.Plan(spec, rank, case.ranks, members=members, steps=steps)


def _typed(dtype: str, kept: Array) -> Any:
    """The NumPy array, or a torch tensor over its memory if NumPy lacks the dtype."""
    if ELEMENTS[dtype].decode is None:
        return kept
    try:
        import torch
    except ImportError:
        raise _core.InvalidArgumentError(
            f"--dtype: expected torch for {dtype}, which NumPy lacks; torch is not installed; "
            "pip install torch"
        ) from None
    return torch.from_numpy(kept).view(getattr(torch, dtype))
