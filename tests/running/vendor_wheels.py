"""NVIDIA's headers and libraries of several versions, from PyPI's wheels, side by side.

    python tests/running/vendor_wheels.py

fills build/vendor-wheels with one folder for each row: 0.8 GB are downloaded once.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "vendor-wheels"
# The oldest version that hetcomm takes, the newest one, and one between.
CUDA = {
    "11.8": (
        "nvidia-cuda-runtime-cu11==11.8.89",
        "nvidia-cuda-nvcc-cu11==11.8.89",
        "nvidia-cuda-nvrtc-cu11==11.8.89",
    ),
    "12.9": (
        "nvidia-cuda-runtime-cu12==12.9.79",
        "nvidia-cuda-nvcc-cu12==12.9.86",
        "nvidia-cuda-nvrtc-cu12==12.9.86",
        "nvidia-cuda-cccl-cu12==12.9.27",  # headers that NCCL's header takes in
    ),
    "13.5": (
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-crt==13.5.37",
        "nvidia-cuda-nvrtc==13.5.37",
    ),
}
NCCL = {
    "2.18": ("nvidia-nccl-cu12==2.18.3",),
    "2.28": ("nvidia-nccl-cu13==2.28.9",),
    "2.32": ("nvidia-nccl-cu13==2.32.3",),
}
ROWS = {f"CUDA {version}": wheels for version, wheels in CUDA.items()} | {
    f"NCCL {version}": wheels for version, wheels in NCCL.items()
}


def place(row: str) -> Path:
    """The folder of a row, which stands for a folder of site-packages."""
    return FOLDER / row.replace(" ", "-").lower()


def missing() -> str:
    """Why the wheels are not there; "" if they are."""
    absent = [row for row in ROWS if not (place(row) / "complete").exists()]
    return f"no {', '.join(absent)}: `make vendor-wheels` downloads 0.8 GB" if absent else ""


def includes(row: str) -> list[Path]:
    return sorted(place(row).glob("nvidia/*/include"))


def library(row: str, name: str) -> Path:
    """The file whose name begins with `name`, such as "libcudart.so"."""
    (found,) = place(row).glob(f"nvidia/*/lib/{name}.[0-9]*")
    return found


def fetch(row: str) -> None:
    if (place(row) / "complete").exists():
        return
    shutil.rmtree(place(row), ignore_errors=True)
    downloads = place(row) / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "-d", str(downloads), *ROWS[row]], check=True)
    for wheel in downloads.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            for name in packed.namelist():
                if "/include/" in name or "/lib/" in name:
                    packed.extract(name, place(row))
    shutil.rmtree(downloads)
    (place(row) / "complete").touch()


if __name__ == "__main__":
    if platform.machine() != "x86_64":
        sys.exit(f"expected x86-64, got {platform.machine()}: the rows name wheels of that machine")
    for each in ROWS:
        print(each, flush=True)
        fetch(each)
