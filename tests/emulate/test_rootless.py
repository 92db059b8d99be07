"""Emulated clusters need no privilege where user namespaces are allowed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from emulated import PROGRAMS

import hetcomm.emulate

pytestmark = [
    pytest.mark.needs("user namespaces", "namespaces"),
    pytest.mark.alone,  # this test measures a rate
]
NOBODY = 65534


def _as_nobody(python: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    path = os.pathsep.join(entry for entry in sys.path if entry.endswith("-packages"))
    return subprocess.run(
        [python, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        **identity,  # type: ignore[call-overload]
    )


def _python_for_nobody() -> str:
    """A Python that other users can run: this one, or the system's if this one is in a private
    home."""
    for python in (sys.executable, shutil.which("python3", path=os.defpath)):
        if python is None:
            continue
        try:
            if _as_nobody(python, "-c", "import pyroute2, tomllib").returncode == 0:
                return python
        except PermissionError:
            continue
    pytest.skip("an unprivileged user can execute no Python 3.11 that finds pyroute2 here")


def test_an_unprivileged_user_can_run_a_cluster() -> None:
    python = _python_for_nobody()
    (package,) = {str(Path(hetcomm.emulate.__file__).parents[1])}
    program = [str(PROGRAMS / "stream.py"), "0", "3000000"]
    rates = []
    for _ in range(5):  # a busy machine disturbs single runs
        done = _as_nobody(python, str(PROGRAMS / "unprivileged.py"), package, *program)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer.get("ok"), (answer, done.stderr)
        assert answer["uid"] != 0
        assert 3_000_000 <= answer["links"][0]["out_bytes"] <= 3_090_000
        (line,) = (line for line in done.stderr.splitlines() if line.startswith("["))
        rates.append(float(line.split("] ")[1]))
        if 0.9 <= rates[-1] / 100_000_000 <= 1.1:
            return
    pytest.fail(f"the link is one of 100 Mbit/s, and the streams had {rates}")
