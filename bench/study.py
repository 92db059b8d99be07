"""Studies that measure hetcomm beside its peers: each command repeats one from scratch.

    python bench/study.py island-latency      # or another, or several, or all; --list names them
    python bench/study.py all --quick         # a try: small sizes, short runs

Peers are installed first, each in an environment of its own (see peers.py). A study prints its
table, and writes figures, machine and picture into bench/results, or where --output says.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import peers
from studies import report, running, verdicts
from studies.catalogue import STUDIES
from studies.model import MPIS, Outcome, Plan, Study, Verdict

from hetcomm.emulate import ClusterError

RESULTS = Path(__file__).resolve().parent / "results"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="study.py", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="STUDY", help=", ".join([*STUDIES, "all"]))
    parser.add_argument("--list", action="store_true", help="say what each study is, and end")
    parser.add_argument("--quick", action="store_true", help="small sizes and short runs")
    parser.add_argument("--peers", default=",".join(MPIS), help='MPIs, such as "mpich", or "none"')
    parser.add_argument("--output", type=Path, default=RESULTS, help="a folder")
    given = parser.parse_args(words)
    if given.list:
        print("\n".join(f"{name:<18}{study.summary}" for name, study in STUDIES.items()))
        return 0
    names = list(STUDIES) if "all" in given.names else given.names
    wanted = tuple(name for name in given.peers.split(",") if name != "none")
    unknown = [name for name in names if name not in STUDIES]
    if unknown or not names:
        said = f"got {', '.join(unknown) or 'none'}"
        parser.error(f"expected studies out of {', '.join(STUDIES)} or all; {said}")
    try:
        given.output.mkdir(exist_ok=True)
    except OSError as error:
        parser.error(f"--output: expected a folder, {given.output}: {error.strerror}")
    try:
        for peer in wanted:
            peers.make(peer)
    except peers.PeerError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    plan = Plan(given.quick, wanted)
    failed = [not conduct(name, STUDIES[name], plan, given.output) for name in names]
    return 1 if any(failed) else 0


def conduct(name: str, study: Study, plan: Plan, folder: Path) -> bool:
    """Whether every job of the study ended well."""
    start = time.monotonic()
    outcomes: list[Outcome] = []
    found: list[Verdict] = []
    bars: dict[str, float] = {}
    failures: list[str] = []
    for run in study.runs:
        try:
            of_run = running.measure(run, plan, lambda text: print(f"{name}: {text}", flush=True))
        except (RuntimeError, ClusterError) as error:
            failures.append(f"{run.layout.describe()}: {error}")
            continue
        outcomes += of_run
        found += verdicts.of_run(run, of_run)
    for each in outcomes:
        if each.failed:
            beside = each.opponent or "nobody"
            failures.append(f"{each.layout} beside {beside}: {each.failed}")
    if study.special is not None:
        try:
            bars, more = study.special(plan, outcomes)
            found += more
        except (RuntimeError, OSError, subprocess.SubprocessError, ClusterError) as error:
            failures.append(str(error))
    found += verdicts.of_prediction(outcomes) + verdicts.of_scratch(outcomes)
    seconds = time.monotonic() - start
    report.show(name, study, found, failures, seconds)
    report.write(folder, name, plan, outcomes, found, bars, failures, seconds)
    return not failures


def _end(number: int, frame: FrameType | None) -> None:
    """So that what was started is ended too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    sys.exit(main(sys.argv[1:]))
