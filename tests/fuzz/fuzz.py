"""Gives every parser of outside bytes changed inputs: `make fuzz INPUTS=1000000`.

A target runs in a child process, so a crash or a hang of one input ends that child alone. The
report names the input, which --seed and its number make again.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path += [str(tests / folder) for folder in ("core", "plan", "running", "fuzz")]

from mutation import mutated
from targets import Target, targets

HANG_SECONDS = 20.0  # of one input; parsers take microseconds
SHOWN_BYTES = 300


@dataclass(frozen=True)
class Outcome:
    """What became of a target's inputs. accepted: those that are good in spite of the changes."""

    inputs: int
    accepted: int
    seconds: float
    failure: str = ""


def run(target: Target, inputs: int, seed: int, first: int = 0) -> Outcome:
    """Runs the inputs first to first + inputs - 1, up to the first failure."""
    begin = time.monotonic()
    target.samples()  # before the fork, since set-up has threads
    with mmap.mmap(-1, 16) as shared:  # the number of the input, and how many were accepted
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _child(target, range(first, first + inputs), seed, shared, writing)
        os.close(writing)
        failure = _watch(child, reading, shared)
        number, accepted = struct.unpack("=QQ", shared[:16])
    if failure:
        data = mutated(seed, target.name, number, target.samples())
        failure += f"\ninput {number} of seed {seed}: {data[:SHOWN_BYTES]!r}"
    done = number - first + (not failure)
    return Outcome(done, accepted, time.monotonic() - begin, failure)


def _child(target: Target, numbers: range, seed: int, shared: mmap.mmap, writing: int) -> None:
    """Never returns. Tells an unexpected exception through the pipe."""
    status, accepted, samples = 1, 0, target.samples()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for number in numbers:
            struct.pack_into("=QQ", shared, 0, number, accepted)
            try:
                target.parse(mutated(seed, target.name, number, samples))
                accepted += 1
            except target.errors:
                pass
        struct.pack_into("=QQ", shared, 0, numbers[-1], accepted)
        status = 0
    except BaseException:
        os.write(writing, traceback.format_exc()[-4000:].encode())
    finally:
        os._exit(status)


def _watch(child: int, reading: int, shared: mmap.mmap) -> str:
    """The failure of the child, "" for none."""
    seen, since, hung = -1, time.monotonic(), False
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        number = struct.unpack("=Q", shared[:8])[0]
        if number != seen:
            seen, since = number, time.monotonic()
        elif time.monotonic() - since > HANG_SECONDS and not hung:
            hung = True
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    status = os.waitpid(child, 0)[1]
    with open(reading, "rb") as pipe:
        told = pipe.read().decode(errors="replace")
    if hung:
        return f"an input took longer than {HANG_SECONDS:g} s"
    if status == 0:
        return ""
    ended = os.waitstatus_to_exitcode(status)
    return told or f"the process ended with status {ended}; standard error has the reason"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000, help="of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--target", action="append", help="its name; all by default")
    parser.add_argument("--kind", choices=("all", "native", "python"), default="all")
    given = parser.parse_args()
    failed = 0
    for target in targets():
        if given.target and target.name not in given.target:
            continue
        if given.kind != "all" and target.native != (given.kind == "native"):
            continue
        outcome = run(target, given.inputs, given.seed, given.first)
        failed += bool(outcome.failure)
        print(
            f"{target.name:16} {outcome.inputs:9,} inputs, {outcome.accepted:9,} accepted, "
            f"{outcome.seconds:7.1f} s  {outcome.failure or 'ok'}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
