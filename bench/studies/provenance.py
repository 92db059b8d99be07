"""The origin of a figure: commit, machine, versions and settings of a study."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import peers

from hetcomm import _core
from hetcomm.demo.machine import describe_machine, version

MEASURED = ("csrc", "emulated", "bindings", "hetcomm", "bench", "CMakeLists.txt", "setup.py")
NOT_MEASURED = ("bench/results",)
SETTINGS = ("HETCOMM_", "UCX_", "OMPI_MCA_", "PRTE_MCA_", "MPICH_", "OMP_", "MALLOC_", "LD_PRELOAD")
BOUND = 30.0  # seconds that git may take
WINDOW, MUCH = 0.5, 0.1  # seconds of observing other work, and its disturbing share
KERNEL = {
    "transparent_hugepage": "/sys/kernel/mm/transparent_hugepage/enabled",
    "congestion_control": "/proc/sys/net/ipv4/tcp_congestion_control",
    "governor": "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
}


class StaleBuildError(Exception):
    """The library is older than its sources."""


def of_this_run(arguments: list[str], names: tuple[str, ...]) -> dict[str, Any]:
    """Facts of this run. Called before any measurement, so that only other work loads the machine.
    `arguments` are those of study.py, `names` the MPIs."""
    commit, changed = commit_of(peers.ROOT)
    return {
        "commit": commit,
        "changed": changed,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "arguments": without_paths(arguments),
        "machine": machine(),
        "versions": versions(names),
        "environment": without_paths(
            {name: os.environ[name] for name in sorted(os.environ) if name.startswith(SETTINGS)}
        ),
    }


def machine() -> dict[str, Any]:
    found = describe_machine()
    versions = {"python", "torch", "hetcomm"}
    kept = {name: value for name, value in found.items() if name not in versions}
    return {**kept, "busy": round(busy(), 3), "caches": caches(), **kernel_settings()}


def busy(seconds: float = WINDOW) -> float:
    """The share of this process's processors that other work takes, or other machines of the
    hypervisor. The load average would include an earlier study."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}

    def times() -> tuple[int, int]:
        lines = map(str.split, Path("/proc/stat").read_text().splitlines())
        rows = [[int(word) for word in words[1:9]] for words in lines if words[0] in names]
        idle = sum(row[3] + row[4] for row in rows)  # idle, and idle for a disk
        return sum(map(sum, rows)), idle

    total, idle = times()
    time.sleep(seconds)
    later, later_idle = times()
    return 1 - (later_idle - idle) / max(later - total, 1)


def commit_of(root: Path) -> tuple[str | None, list[str]]:
    """The commit, None outside of a repository, and the measured files that differ from it."""
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
        lines = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *MEASURED)
    except (OSError, subprocess.SubprocessError):
        return None, []
    files = [line[3:].split(" -> ")[-1].strip('"') for line in lines.splitlines()]
    return commit, [file for file in files if not file.startswith(NOT_MEASURED)]


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=BOUND, check=True
    )
    return done.stdout


def check_build(root: Path) -> None:
    """Raises StaleBuildError if a source is newer than every library. One build makes all."""
    package = root / "hetcomm"
    if not (package / "libhetcomm.so").exists():
        return  # hetcomm is installed elsewhere, with its own library
    built = max(library.stat().st_mtime for library in package.glob("*.so"))
    sources = [
        file
        for folder in ("csrc", "emulated", "bindings")
        for file in (root / folder).rglob("*")
        if file.suffix in (".cc", ".h", ".inc", ".cuh") and file.stat().st_mtime > built
    ]
    if sources and folder_of_library() == package:
        raise StaleBuildError(
            f"expected a library of the present sources, {sources[0].relative_to(root)} is newer; "
            "run make build"
        )


def folder_of_library() -> Path:
    return Path(_core.__file__).resolve().parent


def versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """Versions of the measured packages, and of each MPI and its mpi4py."""
    found = {"python": sys.version.split()[0], "hetcomm": version("hetcomm")}
    found |= {name: version(name) for name in ("torch", "numpy")}
    found["ucx"] = _core.ucx_version().partition(" ")[0]
    for name in names:
        for package in (name, "mpi4py"):
            command = [
                peers.python_of(name), "-P", "-c",
                f"from importlib.metadata import version; print(version({package!r}))",
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
            key = package if package == name else f"mpi4py of {name}"
            found[key] = done.stdout.strip() or None
    return found


def caches() -> dict[str, str]:
    """ "L3": "32768K", of the first processor."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def kernel_settings() -> dict[str, str]:
    """Settings of this machine that affect times."""
    found = {}
    for name, path in KERNEL.items():
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        chosen = re.search(r"\[(.*?)\]", text)
        found[name] = chosen.group(1) if chosen else text
    return found


def without_paths(given: Any) -> Any:
    """The variables with paths relative to the repository: results name no folder of a machine."""
    if isinstance(given, Mapping):
        return {name: without_paths(each) for name, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [without_paths(each) for each in given]
    return str(given).replace(f"{peers.ROOT}/", "")
