"""A program without standard streams, as daemons start programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from hetcomm import _core
with open(sys.argv[1], "w") as told:
    print(*(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), file=told)
"""


def test_no_socket_takes_the_place_of_a_missing_stream(tmp_path: Path) -> None:
    """The log would go into that socket."""
    told = tmp_path / "told"
    command = [sys.executable, "-P", "-c", PROGRAM, str(told)]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True, timeout=60)
    assert told.read_text().split() == ["/dev/null"] * 3
