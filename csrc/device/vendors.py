"""Prints the rows of hetcomm/vendors.toml: as C++, or what the build of emulated vendors needs."""

import sys
import tomllib
from pathlib import Path
from typing import Any

VENDORS = tomllib.loads((Path(__file__).parents[2] / "hetcomm/vendors.toml").read_text())
NOT_OF_THE_CORE = ("python", "emulated")


def initialiser(value: Any, key: str = "") -> str:
    """A table is a structure; with capitalised keys, which are functions' names, it is a map."""
    if key == "memory":
        return f"MemoryKind::{value}"
    if isinstance(value, dict):
        parts = value.items()
        if all(name[0].isupper() for name in value):
            return "{" + ", ".join(f'{{"{name}", {initialiser(of)}}}' for name, of in parts) + "}"
        return "{" + ", ".join(f".{name} = {initialiser(of, name)}" for name, of in parts) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(initialiser, value)) + "}"
    return f'R"({value})"' if isinstance(value, str) else str(value)


if sys.argv[1] == "rows":
    for name, row in VENDORS.items():
        core = {key: value for key, value in row.items() if key not in NOT_OF_THE_CORE}
        print(initialiser({"name": name} | core) + ",")
else:  # one line per vendor: name, prefix, whose ABI, version, old version
    for name, row in VENDORS.items():
        print(name, row["runtime"]["prefix"], *row["emulated"].values())
