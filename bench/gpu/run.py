"""Runs all parts of bench/gpu.sh, each as a process with a bound, and writes one JSON.

A part that crashes or hangs loses nothing that it has reported, and the next part follows. The JSON
is written at the beginning and every second, so a run that is cut tells how far it came.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from report import nothing
from summary import print_summary

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEAST = 5.0  # seconds that a part needs
LOOK = 1.0  # seconds between looks at what a part has reported
EMULATED_PATIENCE = 4  # times the bounds: an emulated run may be on a busy machine


@dataclass(frozen=True)
class Part:
    name: str
    program: str
    bound: float  # seconds
    arguments: tuple[str, ...] = ()
    # "torch": a torch that sees the GPU, or any in an emulated run; "gpu": a real one
    needs: str = ""
    remedy: str = ""  # of a failure that names none

    def with_two_ranks(self) -> Part:
        return replace(self, arguments=(*self.arguments, "--two-ranks"))


BUILD = Part("build", "build.py", 240, remedy="read the log; bring wheels with --wheels FOLDER")
FACTS = Part("facts", "facts.py", 40, remedy="run nvidia-smi, and python -c 'import torch'")
LOADS = Part("loads", "loads.py", 40)
SUSPECTS = Part("suspects", "suspects.py", 170, needs="torch")
RESULTS = Part("results", "results.py", 90, needs="torch")
NCCL_PATH = Part(
    "nccl_path", "nccl_path.py", 60, needs="torch",
    remedy="profile the call: python bench/ccl_calls.py counts calls into the library",
)  # fmt: skip
TRAINING = Part("training", "training.py", 80, needs="torch")
PARTS = (  # in the order of the questions: a later answer means little without the earlier ones
    BUILD,
    FACTS,
    LOADS,
    SUSPECTS,
    RESULTS,
    NCCL_PATH,
    Part("staging", "staging.py", 70, remedy="hetcomm topo shows the paths, and why"),
    Part("messages", "messages.py", 40, remedy="HETCOMM_DIRECT_BYTES bounds direct messages"),
    Part("device", "device.py", 40),
    Part("kernels", "kernels.py", 80),
    TRAINING,
    Part("cupy", "arrays.py", 30, needs="gpu"),
    Part("overlap", "overlap.py", 40, needs="torch"),
    Part("nccl_path_mps", "nccl_path.py", 60, ("--mps",), needs="gpu"),
    Part("tests_core", "tests.py", 100, ("--paths", "core/test_device.py",
         "core/test_device_kernels.py", "core/test_device_codecs.py", "core/test_ccl.py")),
    Part("tests_gpu", "tests.py", 400, ("--paths", "gpu"), needs="gpu"),
)  # fmt: skip
TWO_RANK_PARTS = (
    BUILD,
    FACTS,
    LOADS,
    *(part.with_two_ranks() for part in (SUSPECTS, RESULTS, NCCL_PATH, TRAINING)),
)
OPTIONAL = ("nccl_path_mps",)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description="All that needs a real GPU.")
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    parser.add_argument("--output", type=Path, help=f"bench/results/gpu-{today}.json")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu", help="scratch folder")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that this Python lacks")
    parser.add_argument("--only", default="", help="parts by name, comma-separated")
    parser.add_argument("--skip", default="", help="parts by name, comma-separated")
    parser.add_argument(
        "--two-ranks", action="store_true", help="only what two ranks on the GPU show"
    )
    parser.add_argument("--mps", action="store_true", help="also let ranks share the GPU by MPS")
    parser.add_argument("--seconds", type=float, default=460, help="bound of everything together")
    parser.add_argument("--emulated", action="store_true", help="prove the parts without a GPU")
    parser.add_argument("--smallest", action="store_true", help="smallest sizes")
    parser.add_argument("--installed", action="store_true", help="use the hetcomm that is there")
    arguments = parser.parse_args()
    if arguments.output is None:
        results = arguments.work if arguments.emulated else HERE.parent / "results"
        kind = "gpu-two-ranks" if arguments.two_ranks else "gpu"
        name = f"{kind}-{'emulated' if arguments.emulated else today}.json"
        arguments.output = results / name
    for option in ("only", "skip"):
        names = [name for name in getattr(arguments, option).split(",") if name]
        if unknown := set(names) - {part.name for part in parts_of(arguments)}:
            parser.error(f"--{option}: no such part: {', '.join(sorted(unknown))}")
        setattr(arguments, option, names)
    for option in ("output", "work", "wheels"):
        if given := getattr(arguments, option):
            setattr(arguments, option, given.resolve())
    return arguments


def parts_of(arguments: argparse.Namespace) -> tuple[Part, ...]:
    return TWO_RANK_PARTS if arguments.two_ranks else PARTS


class Session:
    """The parts so far, and their facts for later parts."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.begin = time.monotonic()
        self.report: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "emulated": arguments.emulated,
            "smallest": arguments.smallest,
            "two_ranks": arguments.two_ranks,
            "first_failure": None,
            "facts": {},
            "parts": [],
        }
        self.environment = dict(os.environ)
        paths = [arguments.work / "package", arguments.work / "site"]
        kept = [os.environ[name] for name in ("PYTHONPATH",) if os.environ.get(name)]
        if not arguments.installed:
            self.environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *kept])

    def write(self) -> None:
        failed = [part for part in self.report["parts"] if part["status"] == "failed"]
        if failed:
            reason = failed[0]["reason"].partition("\n")[0]
            self.report["first_failure"] = {
                "part": failed[0]["name"], "reason": reason, "do": failed[0]["do"],
            }  # fmt: skip
        self.report["seconds"] = round(time.monotonic() - self.begin, 1)
        path = self.arguments.output
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(self.report, indent=1) + "\n")
        beside.rename(path)

    def why_not(self, part: Part, left: float) -> str:
        """The reason to skip the part; empty to run it."""
        arguments = self.arguments
        if (arguments.only and part.name not in arguments.only) or part.name in arguments.skip:
            return "not asked for"
        if part.name in OPTIONAL and not arguments.mps and part.name not in arguments.only:
            return "not asked for (--mps)"
        if part.name == "build":
            return "--installed" if arguments.installed else ""
        if any(p["name"] == "build" and p["status"] == "failed" for p in self.report["parts"]):
            return "the build failed"
        lacking = self.report["facts"].get("lacking", {})
        if part.needs == "gpu" and arguments.emulated:
            return "needs a real GPU"
        if part.needs and not arguments.emulated and lacking.get("torch"):
            return f"needs torch.cuda: {lacking['torch']}"
        if left < LEAST:
            return f"no time left of {arguments.seconds:.0f} s"
        return ""

    def run(self, part: Part) -> None:
        left = self.arguments.seconds - (time.monotonic() - self.begin)
        row: dict[str, Any] = {"name": part.name, "status": "skipped", "seconds": 0.0}
        if reason := self.why_not(part, left):
            row["reason"] = reason
        else:
            print(f"--- {part.name}", flush=True)
            bound = part.bound * (EMULATED_PATIENCE if self.arguments.emulated else 1)
            self.report["parts"].append(row | {"status": "running", "reason": ""})
            row |= self.execute(part, min(bound, left))
            self.report["parts"].pop()
        if part.name == "facts":
            self.report["facts"] = row.get("facts", {})
        self.report["parts"].append(row)
        self.write()
        if row["status"] == "failed":
            print(f"FAILED: {row['reason']}\nTo do: {row['do']}", flush=True)

    def command(self, part: Part, folder: Path, bound: float) -> list[str]:
        arguments = self.arguments
        command = [sys.executable, "-u", str(HERE / part.program), *part.arguments]
        command += ["--folder", str(folder), "--bound", str(0.9 * bound)]
        command += ["--emulated"] if arguments.emulated else []
        command += ["--smallest"] if arguments.smallest else []
        if part.name == "build":
            command += ["--work", str(arguments.work)]
            command += ["--wheels", str(arguments.wheels)] if arguments.wheels else []
        return command

    def execute(self, part: Part, bound: float) -> dict[str, Any]:
        folder = self.arguments.work / "parts" / f"{part.name}-{os.getpid()}"
        folder.mkdir(parents=True)
        begin = time.monotonic()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                self.command(part, folder, bound), env=self.environment, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                process_group=0,
            )  # fmt: skip
            try:
                code = self.follow(process, folder, begin + bound)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what it left behind
                process.wait()
        row = {"seconds": round(time.monotonic() - begin, 1)}
        return row | judge(part, folder, code, bound)

    def follow(self, process: subprocess.Popen, folder: Path, end: float) -> int | None:
        """The code with which the part ends; None if its time is over. Meanwhile writes what the
        part reports."""
        self.write()
        while (left := end - time.monotonic()) > 0:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, LOOK))
            content = reported(folder)
            self.report["parts"][-1] |= {
                key: content[key] for key in ("figures", "facts", "failures")
            }
            self.write()
        return None


def reported(folder: Path) -> dict[str, Any]:
    """What a part has reported so far."""
    result = folder / "result.json"
    return nothing() | (json.loads(result.read_text()) if result.exists() else {})


def judge(part: Part, folder: Path, code: int | None, bound: float) -> dict[str, Any]:
    """Status, reason and content of a finished part, and what to do after a failure."""
    content = reported(folder)
    lines = (folder / "log").read_text(errors="replace").splitlines()
    reasons = []
    if code is None:
        reasons.append(f"ended after {bound:.0f} s, before it was done")
    elif code != 0:
        ending = f"ended with {code}" if code > 0 else f"killed by signal {-code}"
        reasons.append(": ".join([ending, *lines[-1:]]))
    reasons += content["failures"]
    for figure in content["figures"]:
        if figure.get("met") is False:
            reasons.append(f"target missed: {figure['name']}: expected {figure['target']}")
    row = {"figures": content["figures"], "facts": content["facts"]}
    if reasons:
        do = [remedy for remedy in content["remedies"] if remedy][:1] or [part.remedy]
        option = " --two-ranks" if "--two-ranks" in part.arguments else ""
        again = f"repeat by bench/gpu.sh{option} --only {part.name}"
        return row | {
            "status": "failed", "reason": "\n".join(reasons), "log": lines[-40:],
            "do": "; ".join([*filter(None, do), again]),
        }  # fmt: skip
    if content["skipped"]:
        return row | {"status": "skipped", "reason": content["skipped"]}
    return row | {"status": "passed", "reason": ""}


def main() -> int:
    arguments = parse()
    session = Session(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    session.write()
    for part in parts_of(arguments):
        session.run(part)
    print_summary(session.report)
    print(f"\n{arguments.output}")
    return 1 if any(part["status"] == "failed" for part in session.report["parts"]) else 0


if __name__ == "__main__":
    sys.exit(main())
