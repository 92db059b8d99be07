"""Runs `hetcomm bench` as a user does, without the variables of a launcher around the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BOUND = 240.0  # seconds; far above the time of any run
QUICK = ("--sizes", "8,1k", "--iterations", "6", "--turns", "2", "--warmup", "1")
LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE")
COMMAND = (sys.executable, "-P", "-m", "hetcomm", "bench")
CLUSTER = Path(__file__).parents[2] / "examples/clusters/two-islands-interleaved.toml"


def environment(**more: str) -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if name not in LAUNCHERS} | more


def bench(
    *options: object, command: tuple[str, ...] = COMMAND, **settings: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, options)],
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )


def measured(*options: object, **settings: str) -> dict[str, Any]:
    """The output of --json of a successful run."""
    done = bench(*options, *QUICK, "--json", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def backends_of(found: dict[str, Any]) -> list[tuple[str, int]]:
    """(backend, bytes) of each row."""
    return [(row["backend"], row["bytes"]) for row in found["rows"]]
