"""Child processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence


def end(processes: Sequence[subprocess.Popen[bytes]], grace: float) -> None:
    """Terminates processes, and kills those that still run after `grace` seconds. Reaps all."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
