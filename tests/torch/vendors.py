"""What makes a process a rank of an emulated vendor."""

from __future__ import annotations

import importlib.util
from pathlib import Path

NAMES = {"n": "nvidia", "a": "amd", "c": "cpu"}
_VARIABLES = {
    "nvidia": ("HETCOMM_CUDA_LIBRARY", "HETCOMM_NCCL_LIBRARY"),
    "amd": ("HETCOMM_HIP_LIBRARY", "HETCOMM_RCCL_LIBRARY"),
}


def _library(vendor: str) -> Path:
    specification = importlib.util.find_spec("hetcomm")
    assert specification is not None and specification.origin is not None
    return Path(specification.origin).parent / f"libhetcomm_emulated_{vendor}.so"


def environments(letters: str) -> list[dict[str, str]]:
    """Of each rank, from the letter of its vendor. Each has a device of its own."""
    return [
        {"HETCOMM_VENDOR": NAMES[letter], "HETCOMM_DEVICE": str(rank)}
        | {name: str(_library(NAMES[letter])) for name in _VARIABLES.get(NAMES[letter], ())}
        for rank, letter in enumerate(letters)
    ]
