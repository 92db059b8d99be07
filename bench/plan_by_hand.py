"""Layouts by the rules of HETHUB and Holmes, beside the one that hetcomm plan finds.

    .venv/bin/python bench/plan_by_hand.py --limit 60

The case is HETHUB's: 128 + 640 devices and a model of 97 billion parameters (plan_sizes.py). All
layouts are predicted for the same runtime, hetcomm's. Tensor groups have 8 ranks, a host, or 4.

HETHUB (arXiv 2405.16256): pipelines through both kinds, equal tensor and data degrees, uneven
layers. The division between the kinds is the one with the least prediction. Optimizer states are
whole. Holmes (arXiv 2312.03549): ranks sorted by kind, equally many on each stage, layers in
proportion to speed with alpha = 1.05 for the faster kind. The optimizer is divided among the
replicas, and overlaps. Each row has the best micro-batch, without recompute where that fits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace

from plan_beam import divided
from plan_sizes import CASES

from hetcomm.plan import Layout, Prediction, Replica, Stage
from hetcomm.plan.search.nodes import Search
from hetcomm.plan.search.search import lacking, predicted
from hetcomm.plan.search.show import PARTS, average_parts

CASE = next(case for case in CASES if case.name == "128+640-97B")
ALPHA = 1.05
# Tensor degrees, and data degrees with which all ranks work.
DEGREES = ((8, 16), (8, 8), (8, 4), (4, 32), (4, 16), (4, 8))
MICRO_BATCHES = (1, 2, 4)
COLUMNS = ("layout", "tensor", "pipelines x stages", "layers", "step s", "samples/s")


def stages_of(counts: Iterable[int], tensor: int, pipelines: int) -> tuple[Stage, ...]:
    """Stages with so many layers; consecutive ranks serve one stage."""
    found, layer, rank = [], 0, 0
    for count in counts:
        replicas = [
            Replica(tuple(range(rank + r * tensor, rank + (r + 1) * tensor)))
            for r in range(pipelines)
        ]
        found.append(Stage(((layer, layer + count),), tuple(replicas)))
        layer, rank = layer + count, rank + pipelines * tensor
    return tuple(found)


def even(layers: int, stages: int) -> tuple[int, ...]:
    return divided(layers, [1.0] * stages)


def stages_by_kind(tensor: int, pipelines: int) -> list[int]:
    return [count // (pipelines * tensor) for count in CASE.ranks.values()]


def hethub(search: Search, tensor: int, pipelines: int) -> Iterator[Layout]:
    """With each division between the kinds."""
    slow, fast = stages_by_kind(tensor, pipelines)
    for own in range(slow, search.space.layers - fast + 1):
        counts = (*even(own, slow), *even(search.space.layers - own, fast))
        yield Layout(stages_of(counts, tensor, pipelines), CASE.batch, 1, "1f1b")


def holmes(search: Search, tensor: int, pipelines: int) -> Iterator[Layout]:
    numbers = stages_by_kind(tensor, pipelines)
    speeds = []
    for pool, stages in enumerate(numbers):
        block = search.terms.block_seconds(pool, tensor, 1, 1)
        assert block
        speeds += [1 / block] * stages
    most = max(speeds)
    counts = divided(search.space.layers, [ALPHA * v if v == most else v for v in speeds])
    yield Layout(
        stages_of(counts, tensor, pipelines),
        CASE.batch,
        1,
        "1f1b",
        gradients="cluster",
        optimizer_states="cluster",
        overlap_optimizer=True,
    )


def best_of(search: Search, layouts: Iterable[Layout]) -> Prediction | None:
    """The fastest that fits, with the best micro-batch."""
    problem, found = search.terms.problem, []
    for layout in layouts:
        for micro_batch in MICRO_BATCHES:
            if CASE.batch // (micro_batch * layout.replicas) < len(layout.stages):
                continue
            for recompute in (False, True):
                each = replace(layout, micro_batch=micro_batch, recompute=recompute)
                if not lacking(problem, each):
                    found.append(predicted(problem, each))
                    break
    return min(found, key=lambda each: each.seconds, default=None)


def row(name: str, prediction: Prediction | None) -> str:
    if prediction is None:
        return f"| {name} | does not fit the memory |" + " |" * (len(COLUMNS) + len(PARTS) - 2)
    layout = prediction.layout
    counts = [stage.layers for stage in layout.stages]
    runs = [(c, counts.count(c)) for c in dict.fromkeys(counts)]
    division = " + ".join(f"{n} x {c}" if n > 1 else f"{c}" for c, n in runs)
    cells = [
        ", ".join(map(str, sorted({stage.replicas[0].tensor for stage in layout.stages}))),
        f"{layout.replicas} x {len(layout.stages)}, micro-batch {layout.micro_batch}"
        + ", recompute" * layout.recompute,
        division,
        f"{prediction.seconds:.2f}",
        f"{layout.batch / prediction.seconds:.2f}",
        *(f"{seconds:.2f}" for seconds in average_parts(prediction).values()),
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of the search")
    parser.add_argument("--tolerance", type=float, default=0.02)
    arguments = parser.parse_args()
    found = CASE.propose(CASE.ranks, CASE.batch, arguments.limit, arguments.tolerance)
    print("| " + " | ".join((*COLUMNS, *PARTS)) + " |")
    for name, rule in (("HETHUB", hethub), ("Holmes", holmes)):
        for degrees in DEGREES:
            print(row(name, best_of(found.search, rule(found.search, *degrees))), flush=True)
    print(row("hetcomm", found.best.prediction))


if __name__ == "__main__":
    main()
