"""What hetcomm plan finds for models and mixed clusters of many sizes, and in how many seconds.

    .venv/bin/python bench/plan_sizes.py --limit 60 --report sizes.json
    .venv/bin/python bench/plan_sizes.py --case 16+48 --case 3x256-20B

The devices' profiles follow data sheets: no machine measured them. Seconds are of this process's
processor time, on one core, because other work on the machine does not change them. Each kind of
device is also planned alone, with the part of the batch that its part of the devices is. The kind
that is fastest alone ("better") is planned with the whole batch too: more devices should never give
fewer samples. A plain beam search (plan_beam.py) has as much time as the planner, and 10 s at
least. "wider": the step, if weights may be divided further than the memory needs, over the step.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plan_beam import Beam
from plan_inputs import DEVICES, GB, cluster_of, gpt_neo, profile_of

from hetcomm import InvalidArgumentError
from hetcomm.plan import Device
from hetcomm.plan.search.propose import Limits, Proposal, propose
from hetcomm.plan.search.search import predicted
from hetcomm.plan.search.show import describe_shape

KINDS = DEVICES | {
    "A100-80": replace(DEVICES["A100"], memory=80 * GB),
    "MI250": Device(operations=180e12, bandwidth=1600 * GB, memory=64 * GB),  # one of two dies
}
MODELS = {
    "3B": gpt_neo(),
    "20B": replace(
        gpt_neo(), blocks=44, hidden=6144, heads=64, vocabulary=50432, feed_forward=24576,
        positions=0,
    ),
    "97B": replace(
        gpt_neo(), blocks=96, hidden=10240, heads=80, sequence=4096, vocabulary=32000,
        feed_forward=28672, positions=0,
    ),
}  # fmt: skip
BEAM_SECONDS = 10.0  # at least
SLACK = 1.005


@dataclass(frozen=True)
class Case:
    """A model on so many devices of each kind."""

    size: str
    ranks: dict[str, int]
    model: str
    batch: int

    @property
    def name(self) -> str:
        return f"{self.size}-{self.model}"

    @property
    def devices(self) -> int:
        return sum(self.ranks.values())

    def propose(self, ranks: dict[str, int], batch: int, seconds: float, share: float) -> Proposal:
        """Hosts of 4 devices with 100 Gbit/s for the small model, of 8 with 800 for others."""
        small, model = self.model == "3B", MODELS[self.model]
        tensors = (1, 2, 4) if small else (1, 2, 4, 8)
        wide, rate = (4, 100_000_000_000) if small else (8, 800_000_000_000)
        devices = {kind: KINDS[kind] for kind in self.ranks}
        return propose(
            cluster_of(ranks, ranks=wide, rate=rate),
            model,
            profile_of(model, devices, tensors=tensors),
            batch,
            Limits(tolerance=share, seconds=seconds),
        )


EACH_256 = {"A100": 256, "V100": 256, "H100": 256}
HETHUB = {"MI250": 128, "A100-80": 640}
FOUR = {"H100": 512, "A100-80": 1024, "MI250": 1024, "V100": 1536}
MANY = {"H100": 20_000, "A100-80": 40_000, "MI250": 40_000}
CASES = (
    Case("8", {"A100": 8}, "3B", 64),
    Case("4+4", {"A100": 4, "V100": 4}, "3B", 64),
    Case("16+48", {"A100": 16, "V100": 48}, "3B", 256),
    Case("16+48", {"A100": 16, "V100": 48}, "20B", 256),
    Case("128+384", {"A100": 128, "V100": 384}, "3B", 2048),
    Case("128+384", {"A100": 128, "V100": 384}, "20B", 1024),
    Case("128+384", {"A100": 128, "V100": 384}, "97B", 1024),
    Case("128+640", HETHUB, "3B", 1536),
    Case("128+640", HETHUB, "20B", 1536),
    Case("128+640", HETHUB, "97B", 1536),
    Case("3x256", EACH_256, "3B", 1536),
    Case("3x256, batch 2048", EACH_256, "3B", 2048),
    Case("3x256", EACH_256, "20B", 1536),
    Case("3x256", EACH_256, "97B", 1536),
    Case("4096", FOUR, "20B", 4096),
    Case("4096", FOUR, "97B", 4096),
    Case("100000", {"H100": 100_000}, "97B", 25_600),
    Case("100000-mixed", MANY, "97B", 25_600),
)


def measure(case: Case, limit: float, alone: float, tolerance: float) -> dict[str, Any]:
    start = time.process_time()
    found = case.propose(case.ranks, case.batch, limit, tolerance)
    seconds = time.process_time() - start
    rate = found.samples_per_second(found.best)
    row = {
        "case": case.name,
        "devices": case.devices,
        "ranks": case.ranks,
        "batch": case.batch,
        "seconds": seconds,
        "step": found.best.prediction.seconds,
        "samples": rate,
        "gap": found.found.gap,
        "cut": found.found.cut,
        "opened": found.found.opened,
        "priced": found.found.priced,
        "upper_bound": rate / found.upper_bound,
        "layout": describe_shape(found, found.best),
        "idle": len(found.idle),
        "wider_over": wider(found) / found.best.prediction.seconds,
    }
    beam = Beam(found.search)
    result = beam.search(max(BEAM_SECONDS, seconds))
    row |= {
        "beam_step": result.seconds,
        "beam_priced": result.priced,
        "beam_over": result.seconds / found.best.prediction.seconds,
        "beam_layout": repr(result.point),
    }
    return row | (kinds_alone(case, rate, alone, tolerance) if len(case.ranks) > 1 else {})


def wider(proposal: Proposal) -> float:
    """Seconds of the best layout with its weights, or with weights divided among more ranks."""
    problem, layout = proposal.search.terms.problem, proposal.best.layout
    whole = layout.schedule == "zero_bubble" or layout.shares
    levels = proposal.search.settings_space.levels
    last = levels.index(layout.weights if whole else layout.optimizer_states)
    every = levels[levels.index(layout.weights) : last + 1]
    return min(predicted(problem, replace(layout, weights=each)).seconds for each in every)


def kinds_alone(case: Case, rate: float, seconds: float, tolerance: float) -> dict[str, Any]:
    def samples(kind: str, batch: int) -> float:
        try:
            found = case.propose({kind: case.ranks[kind]}, batch, seconds, tolerance)
        except InvalidArgumentError:  # it does not fit
            return 0.0
        return found.samples_per_second(found.best)

    rates = {
        kind: samples(kind, case.batch * count // case.devices)
        for kind, count in case.ranks.items()
    }
    if not any(rates.values()):
        return {"alone": rates}
    better = max(rates, key=lambda kind: rates[kind])
    whole = samples(better, case.batch)
    return {
        "alone": rates,
        "share_of_sum": rate / sum(rates.values()),
        "over_better": rate / (whole or rates[better]),
        "over_better_part": rate / rates[better],
        "never_fewer": rate * SLACK >= whole,
    }


COLUMNS = {
    "case": "{case}",
    "core time": "{seconds:.1f} s",
    "best step": "{step:.3f} s",
    "samples/s": "{samples:.1f}",
    "of the sum": "{share_of_sum:.1%}",
    "over the better kind": "{over_better:.3f}",
    "with its part": "{over_better_part:.3f}",
    "gap": "{gap:.1%}{cut_text}",
    "beam's step": "{beam_over:.3f}",
    "wider": "{wider_over:.3f}",
}


def line(row: dict[str, Any]) -> str:
    """A line of a table, also in Markdown."""
    values = row | {"cut_text": ", cut" if row["cut"] else ""}
    cells = []
    for form in COLUMNS.values():
        try:
            cells.append(form.format(**values))
        except KeyError:  # of cases without this comparison
            cells.append("-")
    return table_line(cells)


def table_line(cells: Iterable[str]) -> str:
    wide = (max(len(name), 11) for name in COLUMNS)
    return "| " + " | ".join(map(str.ljust, cells, wide)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", action="append", help="a name, or how it begins; default: all")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a search")
    parser.add_argument("--alone", type=float, default=20.0, help="of one kind alone")
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--report", type=Path, help="figures as JSON; rows of other cases stay")
    parser.add_argument("--show", action="store_true", help="prints the report, measures nothing")
    arguments = parser.parse_args()
    report = arguments.report
    known = json.loads(report.read_text()) if report and report.exists() else {}
    print(table_line(COLUMNS), table_line(["---"] * len(COLUMNS)), sep="\n", flush=True)
    for case in CASES:
        if arguments.case and not any(case.name.startswith(each) for each in arguments.case):
            continue
        if not arguments.show:
            known[case.name] = measure(case, arguments.limit, arguments.alone, arguments.tolerance)
            if report:
                report.write_text(json.dumps(known, indent=1) + "\n")
        if case.name in known:
            print(line(known[case.name]), flush=True)


if __name__ == "__main__":
    main()
