"""The checker accepts every plan that the planner makes."""

import random

import pytest
from generated import COLLECTIVES, applicable, describe, random_spec, random_topology

from hetcomm import _core

SEED = 20240917
BATCHES, TOPOLOGIES_PER_BATCH = 20, 250


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_plan_of_the_planner_is_proven(batch: int) -> None:
    for number in range(TOPOLOGIES_PER_BATCH):
        seed = f"{SEED}/{batch}/{number}"
        rng = random.Random(seed)
        topology = random_topology(rng)
        planner = _core.Planner(topology)
        for collective in COLLECTIVES:
            spec = random_spec(rng, collective, len(topology))
            algorithms = list(applicable(spec, topology))
            assert algorithms, f"no algorithm for {spec} on {topology.islands}"
            for algorithm in algorithms:
                errors = _core.check_algorithm(planner, spec, algorithm)
                assert not errors, "\n".join(
                    [f"seed {seed}, {spec} by {algorithm.name}:", *errors, describe(topology)]
                )
