"""Tags have twelve bits for message numbers. Long plans use numbers again, one after the other."""

import pytest
from generated import devices

from hetcomm import _core

NUMBERS = 1 << 12
TOPOLOGY = devices(["a/nvidia", "b/amd"])
# Devices that stage send each of hundreds of chunks in several messages.
SPEC = _core.Spec(_core.Collective.broadcast, count=640 << 20)


@pytest.fixture(scope="module")
def plans() -> list[_core.Plan]:
    return _core.Planner(TOPOLOGY).plan_all(SPEC, "hierarchical_direct")


@pytest.mark.parametrize(("kind", "rank"), [("send", 0), ("recv", 1)])
def test_a_message_waits_for_the_one_that_had_its_number(
    plans: list[_core.Plan], kind: str, rank: int
) -> None:
    steps = plans[rank].steps
    indices = {(step.peer, step.tag): i for i, step in enumerate(steps) if step.kind.name == kind}
    again = [key for key in indices if key[1] >= NUMBERS]
    assert again
    for peer, tag in again:
        assert indices[peer, tag - NUMBERS] in steps[indices[peer, tag]].after


def test_the_checker_reports_a_message_that_does_not_wait(plans: list[_core.Plan]) -> None:
    assert _core.check(TOPOLOGY, plans) == []
    steps = plans[0].steps
    late = next(i for i, step in enumerate(steps) if step.tag == NUMBERS)
    early = next(
        i
        for i, step in enumerate(steps)
        if (step.kind, step.peer, step.tag) == (steps[late].kind, steps[late].peer, 0)
    )
    waits = list(steps[late].after)
    set_waits(plans[0], late, [before for before in waits if before != early])
    errors = _core.check(TOPOLOGY, plans)
    set_waits(plans[0], late, waits)
    assert any(f"expected to wait for step {early}, which has its number" in one for one in errors)


def set_waits(plan: _core.Plan, step: int, waits: list[int]) -> None:
    steps = plan.steps
    steps[step].after = waits
    plan.steps = steps
