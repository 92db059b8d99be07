"""Copies of the package as pip would install them, and a Python that sees no other hetcomm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hetcomm

PACKAGE = Path(hetcomm.__file__).parent
ENTRY_POINTS = "[torch.backends]\nhetcomm = hetcomm._autoload:register\n"
METADATA = "Metadata-Version: 2.1\nName: hetcomm\nVersion: {version}\n"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the Python files of hetcomm and links to its libraries, without metadata."""
    target = tmp_path / "site"
    shutil.copytree(
        PACKAGE, target / "hetcomm", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for library in PACKAGE.glob("*.so"):
        (target / "hetcomm" / library.name).symlink_to(library.resolve())
    return target


@pytest.fixture
def installed(site: Path) -> Path:
    """The same folder with the metadata of an installed package, entry point included."""
    info = site / f"hetcomm-{hetcomm.__version__}.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (info / "METADATA").write_text(METADATA.format(version=hetcomm.__version__))
    return site


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All installed packages of this Python except hetcomm, whichever way hetcomm is installed."""
    folder = tmp_path_factory.mktemp("libraries")
    for entry in map(Path, sys.path):
        if entry.name not in ("site-packages", "dist-packages") or not entry.is_dir():
            continue
        for found in entry.iterdir():
            link = folder / found.name
            if "hetcomm" not in found.name and not link.exists():
                link.symlink_to(found)
    return folder


@pytest.fixture
def run(tmp_path: Path, libraries: Path) -> Run:
    """run(site, program): a fresh Python that finds hetcomm in `site` only, and no package of
    `hidden`."""

    def run(
        site: Path, program: str, hidden: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        others = libraries
        if hidden:
            others = tmp_path / "others"
            others.mkdir()
            for found in libraries.iterdir():
                if found.name != hidden and not found.name.startswith(f"{hidden}-"):
                    (others / found.name).symlink_to(found.resolve())
        variables = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{others}"}
        variables |= {"HETCOMM_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"}
        variables |= environment
        return subprocess.run(
            [sys.executable, "-S", "-c", program],  # -S: no .pth file of an editable install
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run
