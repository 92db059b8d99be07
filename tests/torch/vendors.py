"""The environment that makes a process a rank of an emulated vendor."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from hetcomm._vendors import library_variables, vendors

NAMES = {"n": "nvidia", "a": "amd", "c": "cpu"}


def _library(vendor: str) -> Path:
    specification = importlib.util.find_spec("hetcomm")
    assert specification is not None and specification.origin is not None
    return Path(specification.origin).parent / f"libhetcomm_emulated_{vendor}.so"


def environments(letters: str) -> list[dict[str, str]]:
    """The environment of each rank, from the letter of its vendor. Each rank has a device of its
    own."""
    told = []
    for rank, letter in enumerate(letters):
        vendor = NAMES[letter]
        told.append({"HETCOMM_VENDOR": vendor, "HETCOMM_DEVICE": str(rank)})
        if vendor in vendors():
            told[-1] |= dict.fromkeys(library_variables(vendor), str(_library(vendor)))
    return told
