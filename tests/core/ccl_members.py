"""Members of native islands on emulated vendors, in separate processes.

A library reads its vendor and fault from the environment at its first use. So each program of
ccl_programs.py and ccl_sides.py runs in a process of its own: `run("cases", "nvidia", 3)` calls
cases("nvidia", "3") there. It returns the printed JSON, with the log if that is a dictionary.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile
from islands import run_threads

import hetcomm
from hetcomm import _core
from hetcomm._vendors import vendors
from hetcomm.emulate.vendors import library_environment

# Seconds until the programs of all members have started, and until they end. An emulated processor
# takes tens of seconds to start one.
START, END = 100.0, 180.0
PROGRAMS = Path(__file__).with_name("ccl_programs.py")


def environment(fault: str = "", **more: str) -> dict[str, str]:
    """This process's environment, with emulated vendors in place of the real ones. Their collective
    libraries are hostile, their runtimes are not."""
    result = {name: text for name, text in os.environ.items() if "HETCOMM_EMULATED" not in name}
    result |= hostile.without("queues", "sync", "gates", "poison", "delays")
    for vendor in vendors():
        result |= library_environment(vendor)
    if fault:
        result["HETCOMM_EMULATED_FAULT"] = fault
    return result | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more


def run(program: str, *arguments: object, fault: str = "", **more: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), program, *map(str, arguments)],
        env=environment(fault, **more), capture_output=True, text=True, timeout=END, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stderr}"
    result = json.loads(done.stdout.splitlines()[-1])
    return result | {"log": done.stderr} if isinstance(result, dict) else result


def open_members(vendor: str, members: int) -> list[_core.CclIsland]:
    """One island for each member of this process, each on a device of its own."""
    unique_id = _core.make_ccl_id(vendor)
    islands: list[_core.CclIsland] = [None] * members

    def attach(member: int) -> None:
        islands[member] = _core.CclIsland(
            vendor, member, unique_id, member, members, ranks=[10 + m for m in range(members)],
            timeout=30.0,
        )  # fmt: skip

    run_threads(members, attach)
    return islands


def failed(function: Callable[[], object]) -> dict[str, str]:
    try:
        function()
    except hetcomm.Error as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": "", "text": ""}
