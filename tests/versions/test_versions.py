"""Builds and groups reject an unfitting torch, and `make test-versions` reports every row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hetcomm

sys.path.insert(0, str(Path(__file__).parent))
from versions import ROWS, Outcome, table

ROOT = Path(__file__).parents[2]
CMAKE = Path(sys.executable).parent / "cmake"


def test_a_group_rejects_a_replaced_torch() -> None:
    torch = pytest.importorskip("torch")
    from hetcomm.backend import _check_version

    _check_version(torch.__version__)
    with pytest.raises(hetcomm.VendorError, match=r"expected torch 2\.5\.1, for which hetcomm was"):
        _check_version("2.5.1")


@pytest.mark.parametrize(
    ("version", "words"),
    [("2.5.1+cu124", "expected 2.6 or newer, got 2.5.1+cu124"), (None, "torch not found")],
)
def test_a_build_rejects_an_old_torch(version: str | None, words: str, tmp_path: Path) -> None:
    if version:
        (tmp_path / "version.py").write_text(f"__version__ = '{version}'\n")
        config = tmp_path / "share/cmake/Torch"
        config.mkdir(parents=True)
        (config / "TorchConfig.cmake").write_text("")
    result = subprocess.run(
        [CMAKE, f"-DHETCOMM_TORCH_ROOT={tmp_path}", "-P", ROOT / "bindings/torch/found.cmake"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert words in " ".join(result.stderr.split()), result.stderr


def test_the_table_has_a_line_for_each_row() -> None:
    lines = table([Outcome(row, "yes", "failed: first\nsecond") for row in ROWS]).splitlines()
    assert len(lines) == len(ROWS) + 2
    assert lines[2].endswith("| yes | failed: first |")
