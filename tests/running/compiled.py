"""Libraries that tests compile: once for all workers and runs, in build/."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build"
BOUND = 800.0  # seconds of the compiler


def library(
    name: str,
    source: str,
    options: Sequence[str],
    libraries: Sequence[str] = (),
    includes: Iterable[Path] = (),
) -> Path:
    """The library of a C++ source. includes: the files beside the source whose change counts."""
    compiler = [os.environ.get("CXX", "g++"), "-fPIC", "-shared", *options]
    key = hashlib.sha256(f"{compiler}{libraries}{source}".encode())
    for file in includes:
        key.update(file.read_bytes())
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{name}-{key.hexdigest()[:16]}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unit, partial = folder / f"{name}.cc", folder / f"{name}.partial"
            unit.write_text(source)
            command = [*compiler, str(unit), "-o", str(partial), *libraries]
            subprocess.run(command, check=True, timeout=BOUND)
            partial.rename(made)
    return made
