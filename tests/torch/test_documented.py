"""docs/torch.md has every function of c10d::Backend and every plain dtype."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"
HEADER = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/Backend.hpp"


def virtuals() -> set[str]:
    text = re.sub(r"//[^\n]*", "", HEADER.read_text())
    found = re.findall(r"\bvirtual\s[^;{(]*?(\w+)\s*\(", text)
    return set(found)


def section(title: str) -> set[str]:
    """The names in backquotes in the first cells of a section's table."""
    text = PAGE.read_text().split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.needs("torch's headers")
def test_every_backend_function_is_documented() -> None:
    functions = virtuals()
    assert {"allreduce", "_allgather_base", "shutdown"} <= functions, "the header is read wrongly"
    assert functions - section("The functions of c10d::Backend") == set()


def test_every_dtype_is_documented() -> None:
    dtypes = {str(value)[6:] for value in vars(torch).values() if isinstance(value, torch.dtype)}
    packed = {name for name in dtypes if re.match(r"u?int[1-7]$|bits|qu?int|float4", name)}
    assert dtypes - packed - section("Dtypes and reductions") == set()
