"""Random jobs break at a random moment: no hang, no wrong result, no leak, and a named culprit.

`inject.py` runs the same cases by hand, and repeats a case by the numbers in its line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import abilities
import pytest

INJECT = Path(__file__).with_name("inject.py")
# The ability that the kinds need, the number of cases, and the kinds. inject.py leaves out those of
# a full /dev/shm by itself.
GROUPS = {
    "processes": (
        "", 12,
        ("kill", "kill-several", "kill-in-set-up", "stop", "delay", "abort", "leave"),
    ),
    "timeouts": ("", 3, ("stop-long", "delay-long")),
    "set-up": ("", 6, ("kill-in-set-up", "handover-flood", "store-stopped")),
    "machine": (
        "", 8,
        ("strangers", "flood", "descriptors", "descriptors-in-set-up", "memory",
         "memory-in-set-up"),
    ),
    "files": ("compiler", 4, ("files-stand-still",)),
    "libraries": ("emulated vendors", 6, ("library",)),
    "networks": (
        "namespaces", 6, ("kill-host", "link-blink", "link-lost", "rail-lost", "rate-cut"),
    ),
}  # fmt: skip


def inject(file: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    """The exit code, and the results in the file."""
    command = [sys.executable, str(INJECT), "--json", str(file), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_a_random_injection_has_its_verdict(group: str, seed: int, tmp_path: Path) -> None:
    need, count, kinds = GROUPS[group]
    if need:
        abilities.need(need)
    only = [word for kind in kinds for word in ("--only", kind)]
    code, found = inject(tmp_path / "found.json", "--count", count, "--seed", seed, *only)
    failures = [case["failure"] for case in found["cases"] if case["failure"]]
    assert not failures, "\n".join([*failures, *(str(case) for case in found["cases"])])
    assert code == 0 and len(found["cases"]) == count
    amid = [case["amid"] for case in found["cases"] if case["amid"] is not None]
    assert 2 * sum(amid) >= len(amid), "few injections come amid calls"
