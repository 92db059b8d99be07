"""Versions of hetcomm, its libraries, torch, Python and drivers across ranks."""

from __future__ import annotations

import ast
import platform
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hetcomm
from hetcomm import _core, _vendors, _wheels
from hetcomm.doctor.cluster import JobFacts
from hetcomm.doctor.finding import Finding, Severity, group, listed, merged, outsiders

NAME = "versions"
CHECKED = "hetcomm, Python, torch, UCX, drivers, runtimes and native libraries on all ranks"

# [fact] -> severity of unlike values, what they break, and the fix
_UNLIKE = {
    "hetcomm": (Severity.error, "one version of hetcomm", "pip install hetcomm=={}"),
    "python": (Severity.warning, "one version of Python", "start the job with Python {} on all"),
    "torch": (Severity.warning, "one version of torch", "pip install torch=={}"),
    "ucx": (Severity.warning, "one version of UCX", "set HETCOMM_UCX_LIBRARY to UCX {} on all"),
    "driver": (Severity.warning, "one driver", "install driver {} on all hosts"),
    "runtime": (Severity.warning, "one runtime", "install {} on all hosts of the island"),
    "ccl": (Severity.error, "one native library", "install {} on all hosts of the island"),
}
_BY_ISLAND = ("driver", "runtime", "ccl")
# NVIDIA's oldest drivers for the minor versions of a CUDA, from its release notes.
_OLDEST_DRIVERS = {11: (450, 80), 12: (525, 60), 13: (580, 65)}


def facts(info: _core.RankInfo | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "hetcomm": hetcomm.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    of_torch = torch_versions()
    found |= {"torch": of_torch.get("version", "none")}
    columns = (row["python"]["torch_version"] for row in _vendors.vendors().values())
    found["torch_runtime"] = next(filter(None, map(of_torch.get, columns)), None)
    ucx = _core.ucx_version()
    if re.match(r"\d+\.\d", ucx):
        found["ucx"], _, path = ucx.partition(" ")
        found["ucx_path"] = path.strip("()")
    else:
        found["ucx_missing"] = ucx
    found["driver"] = driver()
    found["runtimes"] = runtimes()
    if info is not None and info.vendor in _vendors.vendors():
        found |= of_device(info)
    return {name: value for name, value in found.items() if value is not None}


def of_device(info: _core.RankInfo) -> dict[str, Any]:
    """Versions of the runtime and the native library of a device, or why there are none."""
    name = _vendors.vendors()[info.vendor]["runtime"]["name"]
    text = info.libraries.get("runtime", "")
    version = re.search(rf"\b{name} \d+\.\d+", text)
    found = {"vendor": info.vendor, "ccl": info.ccl.partition(" (")[0] or None}
    if not info.device or version is None:
        return found | {"device_error": text or "its runtime does not load"}
    found |= {"runtime": version[0]}
    return found if info.ccl else found | {"ccl_error": info.libraries.get("ccl", "does not load")}


def torch_versions() -> dict[str, str | None]:
    """version, cuda and hip of the torch that Python would import. Does not import torch."""
    spec = find_spec("torch")
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place) / "version.py"
        if path.exists():
            return literals(path.read_text())
    return {}


def literals(source: str) -> dict[str, str | None]:
    """The names to which a module's source assigns a text or None."""
    found: dict[str, str | None] = {}
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Constant) and isinstance(value.value, str | None):
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id.strip("_")] = value.value
    return found


def driver() -> str | None:
    """The version of the kernel's GPU driver."""
    for path in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError:
            continue
        number = re.search(r"\b\d+\.\d+(\.\d+)*\b", text)
        return number[0] if number else None
    return None


def runtimes() -> dict[str, list[str]]:
    """[vendor] -> file names of its runtimes in the wheels of this Python."""
    found: dict[str, list[str]] = {}
    names = {path.name for folder in _wheels.folders() for path in Path(folder).glob("lib*.so*")}
    for name, row in _vendors.vendors().items():
        libraries = set(row["runtime"]["libraries"])
        if here := sorted(names & libraries):
            found[name] = here
    return found


def check(cluster: JobFacts) -> list[Finding]:
    found = []
    for name, (severity, expected, fix) in _UNLIKE.items():
        for values in _comparable(cluster, name):
            groups = group(values)
            if len(groups) > 1:
                best = next(iter(groups))
                found.append(
                    Finding(
                        severity,
                        NAME,
                        (),
                        outsiders(groups),
                        f"{name}: {listed(groups)}",
                        f"{expected} on all ranks",
                        fix.format(best),
                    )
                )
    return found + _devices(cluster) + _ucx(cluster) + _cuda(cluster)


def _comparable(cluster: JobFacts, name: str) -> list[list[tuple[int, Any]]]:
    """(rank, value) of ranks that must agree: all, or those of each island."""
    values = cluster.values(NAME, name)
    if name not in _BY_ISLAND:
        return [values]
    islands = [{each.rank for each in members} for members in cluster.islands]
    return [[each for each in values if each[0] in ranks] for ranks in islands]


def _devices(cluster: JobFacts) -> list[Finding]:
    found = []
    for name, severity, what in (
        ("device_error", Severity.error, "the device cannot be used"),
        ("ccl_error", Severity.warning, "no native library, which islands of several ranks need"),
    ):
        for rank, why in cluster.values(NAME, name):
            found.append(
                Finding(severity, NAME, (), (rank,), f"{what}: {why}", "", "see the message")
            )
    return found


def _ucx(cluster: JobFacts) -> list[Finding]:
    without = cluster.values(NAME, "ucx_missing")
    if not without:
        return []
    several = len(cluster.hosts) > 1
    return [
        Finding(
            Severity.error if several else Severity.warning,
            NAME,
            (),
            tuple(rank for rank, _ in without),
            f"no UCX: {without[0][1]}",
            "UCX 1.12 or newer, for messages between "
            + ("hosts" if several else "ranks (send, recv, unequal all_to_all)"),
            "pip install libucx-cu13, or set HETCOMM_UCX_LIBRARY to a libucp.so.0",
        )
    ]


def _cuda(cluster: JobFacts) -> list[Finding]:
    found = []
    for member in cluster.members:
        facts = member.facts.get(NAME, {})
        ranks, of_torch = (member.rank,), major(facts.get("torch_runtime"))
        for vendor, names in facts.get("runtimes", {}).items():
            if len(names) > 1:
                found.append(
                    Finding(
                        Severity.warning,
                        NAME,
                        (),
                        ranks,
                        f"several runtimes of {vendor}: {', '.join(names)}",
                        "one runtime in this Python",
                        "pip uninstall the packages of all but one, or set "
                        f"{_vendors.library_variables(vendor)[0]} to one",
                    )
                )
            versions = {version for name in names if (version := major(name.partition(".so.")[2]))}
            if of_torch and versions and of_torch not in versions and vendor == "nvidia":
                found.append(
                    Finding(
                        Severity.warning,
                        NAME,
                        (),
                        ranks,
                        f"torch is built for CUDA {facts['torch_runtime']}, the runtime found is "
                        + ", ".join(names),
                        f"a runtime of CUDA {of_torch}",
                        f"pip install nvidia-cuda-runtime-cu{of_torch}"
                        if of_torch < 13
                        else f"pip install 'nvidia-cuda-runtime=={of_torch}.*'",
                    )
                )
        oldest = _OLDEST_DRIVERS.get(of_torch or 0)
        if oldest and facts.get("vendor") == "nvidia" and "driver" in facts:
            here = tuple(int(part) for part in facts["driver"].split(".")[:2])
            if here < oldest:
                least = ".".join(map(str, oldest))
                found.append(
                    Finding(
                        Severity.error,
                        NAME,
                        (),
                        ranks,
                        f"driver {facts['driver']} with torch for CUDA {facts['torch_runtime']}",
                        f"driver {least} or newer",
                        f"install driver {least} or newer, or a torch for an older CUDA",
                    )
                )
    return merged(found)


def major(text: str | None) -> int | None:
    """The first number of a version: 12 of "12.8"."""
    number = re.match(r"\d+", text or "")
    return int(number[0]) if number else None
