"""Breaks small jobs at random, and judges what becomes of them.

    python tests/injection/inject.py --count 1000 --seed 1 [--only KIND]

A case is a random job, random calls compared with NumPy, and one injection at a random moment. A
case fails at a hang, a wrong result, a leak, a crash, or an error that names no culprit. Seed and
number repeat a case: --seed 1 --first 17 --count 1.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path += [
        str(tests / folder) for folder in ("core", "faults", "fuzz", "machines", "running")
    ]

import abilities
import installed_abilities  # noqa: F401  its probes
import kernel_abilities  # noqa: F401
import unlike_machines
from kinds import KINDS
from runner import Outcome, Runner

MEMORY = 64 << 20  # bytes of the private /dev/shm


def take_private_memory() -> str:
    """Gives this process and its children their own /dev/shm. Returns why not, "" if so."""
    if why := abilities.lacking("mount namespaces"):
        return why
    unlike_machines.small_shared_memory(MEMORY)(Path())
    return ""


def left_out(kinds: Iterable[str]) -> dict[str, str]:
    """[kind] -> what this machine lacks for it."""
    found = {}
    for name in kinds:
        lacking = [(need, abilities.lacking(need)) for need in KINDS[name].needs]
        why = [f"{need}: {reason}" for need, reason in lacking if reason]
        if why:
            found[name] = "; ".join(why)
    return found


def run(
    seed: int, first: int, count: int, kinds: Iterable[str], private_memory: bool
) -> list[Outcome]:
    """The kind of a case is drawn from all kinds, so that a number means the same case for all
    `kinds`. Cases of other kinds do not count."""
    outcomes: list[Outcome] = []
    wanted, number = set(kinds), first
    with tempfile.TemporaryDirectory(prefix="hetcomm-") as folder:
        runner = Runner(Path(folder), private_memory)
        try:
            while len(outcomes) < count:
                name = random.Random(f"{seed}/kind/{number}").choice(list(KINDS))
                if name in wanted:
                    outcomes.append(runner.run(seed, number, name))
                    print(outcomes[-1].line(), flush=True)
                number += 1
        finally:
            for cluster in (False, True):
                runner.close(cluster)
    return outcomes


def summary(name: str, outcomes: Sequence[Outcome]) -> str:
    amid = [outcome.amid for outcome in outcomes if outcome.amid is not None]
    timed = f", {sum(amid)} of {len(amid)} amid calls" if amid else ""
    failed = sum(outcome.failure != "" for outcome in outcomes)
    return f"{name:22} {len(outcomes):5} cases, {failed} failed{timed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="of cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="a kind; repeatable")
    parser.add_argument("--json", type=Path, help="a file for the results")
    given = parser.parse_args()
    kinds = given.only or list(KINDS)
    missing = left_out(kinds)
    for name, why in missing.items():
        print(f"left out: {name}, since this machine has no {why}", flush=True)
    kinds = [name for name in kinds if name not in missing]
    if not kinds:
        print("no kind of injection is left", file=sys.stderr)
        return 2
    if why := take_private_memory():
        print(f"left out: the check for files in /dev/shm: {why}", flush=True)
    outcomes = run(given.seed, given.first, given.count, kinds, not why)
    failed = [outcome for outcome in outcomes if outcome.failure]
    for name in sorted({outcome.kind for outcome in outcomes}):
        print(summary(name, [outcome for outcome in outcomes if outcome.kind == name]))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{len(outcomes)} cases, {len(failed)} failed, {sum(o.seconds for o in outcomes):.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of processors"
    )
    for outcome in failed:
        print(outcome.line())
    if given.json:
        report = {"left_out": missing, "cases": [asdict(outcome) for outcome in outcomes]}
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
