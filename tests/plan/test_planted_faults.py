"""The checker rejects every fault that is planted into an accepted plan."""

import random
import re

import pytest
from faults import FAULTS, Fault
from generated import COLLECTIVES, applicable, describe, random_spec, random_topology, topology_of

from hetcomm import _core

SEED = 7
EXAMPLES = 40


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_rejected(fault: Fault) -> None:
    planted = 0
    for number in range(200 * EXAMPLES):
        if planted == EXAMPLES:
            break
        seed = f"{SEED}/{fault.__name__}/{number}"
        rng = random.Random(seed)
        topology = random_topology(rng, most_ranks=12)
        collective = rng.choice([c for c in COLLECTIVES if c.name != "barrier"])
        spec = random_spec(rng, collective, len(topology))
        algorithm = rng.choice(list(applicable(spec, topology)))
        plans = _core.Planner(topology).plan_all(spec, algorithm.name)
        if not fault(rng, plans):
            continue
        planted += 1
        errors = _core.check(topology, plans)
        report = "\n".join(
            [f"seed {seed}, {spec} by {algorithm.name}:", *errors, describe(topology)]
        )
        assert errors, report
        assert all("expected" in e and re.search(r"rank \d+", e) for e in errors), report
        assert re.search(FAULTS[fault], "\n".join(errors)), report
    assert planted == EXAMPLES, f"found only {planted} plans in which to plant the fault"


def test_errors_name_rank_step_range_expected_and_got() -> None:
    """The full text of the first error, for faults in a plan of two ranks."""
    topology = topology_of([1, 1])
    spec = _core.Spec(_core.Collective.all_reduce, count=10)
    plans = _core.Planner(topology).plan_all(spec, "hierarchical_direct")
    assert _core.check(topology, plans) == []
    kinds = [step.kind.name for step in plans[0].steps]
    send, reduce = kinds.index("send"), kinds.index("reduce")

    def errors_with(index: int, sources: list[_core.Range]) -> list[str]:
        broken = _core.Planner(topology).plan_all(spec, "hierarchical_direct")
        steps = broken[0].steps
        steps[index].sources = sources
        broken[0].steps = steps
        return _core.check(topology, broken)

    own, received = plans[0].steps[reduce].sources
    if own.space.name == "scratch":
        own, received = received, own
    assert errors_with(reduce, [received, own, own])[0] == (
        f"rank 0 step {reduce} (reduce) adds {own.space.name}[0, 10): counts rank {{0}} twice; "
        "expected none of {0-1}, got elements [0, 10) of ranks {0}"
    )
    outside = _core.Range(_core.Space.input, 20, 10)
    assert errors_with(send, [outside])[0] == (
        f"rank 0 step {send} (send to rank 1, tag 0) reads input[5, 15); expected a range within "
        "its 10 elements"
    )
    unwritten = _core.Range(_core.Space.output, 0, 10)
    assert errors_with(send, [unwritten])[0] == (
        f"rank 0 step {send} (send to rank 1, tag 0) reads output[0, 10); expected written "
        "elements, got nothing written"
    )
