"""Libraries that are preloaded into ranks, from the sources beside this file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

COMPILER = os.environ.get("CXX", "g++")


def preloaded(name: str, folder: Path) -> str:
    """Compiles NAME.cc into the folder. Returns the value of LD_PRELOAD."""
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.cc")
    options = ["-std=c++17", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([COMPILER, *options, str(source)], check=True)
    return " ".join(filter(None, [str(library), os.environ.get("LD_PRELOAD")]))
