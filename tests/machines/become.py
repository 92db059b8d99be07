"""`become.py MACHINE FOLDER PORT PORT`: becomes a process of that machine, and tries hetcomm there.

Writes FOLDER/facts.json, what it then finds; FOLDER/tried.json: [check] -> its error, or null; and
FOLDER/CHECK.log, its output. A kernel that refuses to make this process one of that machine is the
error of the check "become". The ranks are forks of this process, which has imported torch, where
the machine does not change what an import does.
"""

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.context import ForkProcess
from pathlib import Path

from facts import facts
from unlike_machines import CHECKS, MACHINES, Machine

HERE = Path(__file__).parent
SECONDS = 300.0
END_SECONDS = 60.0  # for a killed process to end
CLUSTER = "".join(
    f'[[host]]\nname = "{name}"\nranks = 1\n[[host.nic]]\nrate = "unlimited"\n'
    for name in ("red0", "blue0")
)


def start(folder: Path, check: str, command: list[str], **more: str) -> subprocess.Popen[bytes]:
    with (folder / f"{check}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", *command],
            env=os.environ | more,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )


def rank_of_fork(folder: Path, rank: str, told: dict[str, str]) -> None:
    with (folder / f"{rank}.log").open("wb") as log, open(os.devnull, "rb") as nothing:
        for descriptor, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), descriptor)
    os.environ.update(told, RANK=rank)
    os.chdir(folder)
    runpy.run_path(str(HERE / "checks.py"), run_name="__main__")


def start_rank(
    folder: Path, rank: str, told: dict[str, str], machine: Machine
) -> "subprocess.Popen[bytes] | ForkProcess":
    if machine.imports:
        return start(folder, rank, [str(HERE / "checks.py")], RANK=rank, **told)
    assert "hetcomm._core" not in sys.modules
    forking = multiprocessing.get_context("fork")
    process = forking.Process(target=rank_of_fork, args=(folder, rank, told))
    process.start()
    return process


def wait(process: "subprocess.Popen[bytes] | ForkProcess", seconds: float) -> int | None:
    """The exit code; None for a process that still runs."""
    if isinstance(process, ForkProcess):
        process.join(seconds)
        return process.exitcode
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode


def attempt(folder: Path, machine: Machine, ports: list[str]) -> dict[str, str | None]:
    """All checks at once. A check without a result has the end of its process as error."""
    (folder / "cluster.toml").write_text(CLUSTER)
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    told |= dict(zip(("MASTER_PORT", "TORCH_PORT"), ports, strict=True))
    commands = {"topo": ["-m", "hetcomm", "topo"]}
    if machine.emulates:
        commands["emulate"] = ["-m", "hetcomm", "emulate", "cluster.toml", "--", "true"]
    running: dict[str, subprocess.Popen[bytes] | ForkProcess] = {}
    for rank in ("0", "1") if machine.has_ranks else ():
        running[rank] = start_rank(folder, rank, told, machine)
    running |= {check: start(folder, check, command) for check, command in commands.items()}
    until = time.monotonic() + SECONDS
    for process in running.values():
        wait(process, max(0.0, until - time.monotonic()))
    for process in running.values():
        process.kill()
    codes = {check: wait(process, END_SECONDS) for check, process in running.items()}
    tried: dict[str, str | None] = {}
    for check, code in codes.items():
        text = (folder / f"{check}.log").read_text(errors="replace")
        if check in commands:
            tried[check] = f"ended with {code}: {text}" if code else None
            continue
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        found = {line["check"]: line["error"] for line in lines}
        for each in CHECKS:
            error = found.get(each, f"rank {check} ended with {code}: {text}")
            tried[each] = tried.get(each) or error
    return tried


def main(name: str, folder: Path, *ports: str) -> None:
    machine = MACHINES[name]
    try:
        machine.become(folder)
    except OSError as error:
        tried: dict[str, str | None] = {"become": str(error)}
    else:
        (folder / "facts.json").write_text(json.dumps(facts()))
        tried = attempt(folder, machine, list(ports))
    (folder / "tried.json").write_text(json.dumps(tried))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
