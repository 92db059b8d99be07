"""The vendors of vendors.toml, from which the core is built as well."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def vendors() -> dict[str, dict[str, Any]]:
    """[name] -> row of vendors.toml."""
    return tomllib.loads((Path(__file__).parent / "vendors.toml").read_text())


def library_variables(vendor: str) -> tuple[str, str]:
    """The variables that name a vendor's runtime and its collective library."""
    row = vendors()[vendor]
    return row["runtime"]["variable"], row["ccl"]["variable"]


def torch_devices() -> list[str]:
    """torch's names for the vendors' devices, each once."""
    return list(dict.fromkeys(row["torch"]["device"] for row in vendors().values()))


def of_torch(torch: Any) -> str:
    """The vendor whose devices this torch is built for; without any, the first vendor."""
    for name, row in vendors().items():
        if getattr(torch.version, row["python"]["torch_version"], None):
            return name
    return next(iter(vendors()))
