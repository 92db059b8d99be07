"""Studies of hetcomm beside its peers. Each command repeats one from scratch.

    python bench/study.py island-latency      # or another, or several, or all; --list names them
    python bench/study.py all --quick         # a try: small sizes, short runs
    python bench/study.py docs                # pages and pictures again, from the stored results
    python bench/study.py docs --check        # compares both with the stored results

A study first installs its peers, each in its own environment (see peers.py). The study prints its
table and writes its figures into bench/results, with commit, machine and settings. Then it makes
new pages and pictures. Quick runs, and runs without all peers, write into build/studies.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

import peers
from studies import pages, provenance, report, running, stored, verdicts
from studies.catalogue import STUDIES
from studies.model import MPIS, Outcome, Plan, Study, Verdict

from hetcomm.emulate import ClusterError

DOCS = "docs"
TRIES = peers.ROOT / "build" / "studies"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="study.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", metavar="STUDY", help=", ".join([*STUDIES, "all", DOCS])
    )
    parser.add_argument("--list", action="store_true", help="describe each study, and end")
    parser.add_argument("--quick", action="store_true", help="small sizes and short runs")
    parser.add_argument("--peers", default=",".join(MPIS), help='MPIs, such as "mpich", or "none"')
    parser.add_argument("--output", type=Path, help="another folder; pages stay as they are")
    parser.add_argument("--check", action="store_true", help=f"with {DOCS}: change nothing")
    given = parser.parse_args(words)
    if given.list:
        listing()
        return 0
    if given.names == [DOCS]:
        return of_docs(given.check)
    names = list(STUDIES) if "all" in given.names else given.names
    wanted = tuple(name for name in given.peers.split(",") if name != "none")
    unknown = [name for name in names if name not in STUDIES]
    if unknown or not names or given.check:
        said = f"got {', '.join(unknown) or ('--check' if given.check else 'none')}"
        parser.error(f"expected studies out of {', '.join(STUDIES)} or all, or {DOCS}; {said}")
    plan = Plan(given.quick, wanted)
    stays = given.output is None and not given.quick and set(wanted) == set(MPIS)
    folder = given.output or (stored.FOLDER if stays else TRIES)
    try:
        folder.mkdir(exist_ok=True, parents=given.output is None)
    except OSError as error:
        parser.error(f"--output: expected a folder, {folder}: {error.strerror}")
    try:
        provenance.check_build(peers.ROOT)
        for peer in wanted:
            peers.make(peer)
    except (peers.PeerError, provenance.StaleBuildError) as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    failed = False
    for name in names:
        result = conduct(name, STUDIES[name], plan, words)
        report.show(result, STUDIES[name].summary)
        failed |= bool(result.failures)
        place = folder
        if stays and result.failures:
            place = TRIES
            place.mkdir(exist_ok=True, parents=True)
            print(f"{name}: jobs failed, so the stored result stays as it is")
        result.write(place)
        pages.picture(result, place)
        print(f"Written: {place}/{name}.json and .png")
    if stays:
        failed |= bool(of_docs(check=False))
    return 1 if failed else 0


def listing() -> None:
    """Lists the studies, with the seconds of their last measurement."""
    for name, study in STUDIES.items():
        try:
            took = f"{stored.load(name).facts['seconds']:4.0f} s"
        except stored.ResultError:
            took = "     -"
        print(f"{name:<20}{took}  {study.summary}")


def of_docs(check: bool) -> int:
    try:
        results = pages.results_of()
        found = pages.faults(results) if check else pages.refresh(results)
    except stored.ResultError as error:
        found = [str(error)]
    for each in found:
        print(f"docs: {each}", file=sys.stderr)
    if check and found:
        print("docs: python bench/study.py docs makes them anew", file=sys.stderr)
    return 1 if found else 0


def conduct(name: str, study: Study, plan: Plan, words: list[str]) -> stored.Result:
    """Runs the jobs of a study and judges them. A failing job ends nothing else."""
    facts = provenance.of_this_run(words, plan.peers)
    share = facts["machine"]["busy"]
    if share > provenance.MUCH:
        print(f"{name}: other work takes {share:.0%} of the processors; these figures are noise")
    start = time.monotonic()
    outcomes: list[Outcome] = []
    found: list[Verdict] = []
    bars: dict[str, float] = {}
    failures: list[str] = []
    for run in study.runs:
        try:
            of_run = running.measure(run, plan, lambda text: print(f"{name}: {text}", flush=True))
        except (RuntimeError, ClusterError) as error:
            failures.append(f"{run.where}: {error}")
            continue
        outcomes += of_run
        found += verdicts.of_run(run, of_run)
    for each in outcomes:
        if each.failed:
            beside = each.opponent or "nobody"
            failures.append(f"{each.where} beside {beside}: {each.failed}")
    if study.special is not None:
        try:
            bars, more = study.special(plan, outcomes)
            found += more
        except (RuntimeError, OSError, subprocess.SubprocessError, ClusterError) as error:
            failures.append(str(error))
    found += verdicts.of_prediction(outcomes) + verdicts.of_scratch(outcomes)
    facts["seconds"] = round(time.monotonic() - start, 1)
    quick = " --quick" if plan.quick else ""
    command = f"python bench/study.py {name}{quick}"
    return stored.Result(name, command, facts, failures, found, bars, outcomes)


if __name__ == "__main__":
    # SystemExit also ends the started jobs.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
