"""Relacy, a model checker of C++'s memory model: headers from one of Debian's packages.

    python tests/running/memory_model.py

fetches the package (50 KB).
"""

from __future__ import annotations

from pathlib import Path

import debian

PACKAGE = "relacy-dev"
HEADER = "relacy/relacy.hpp"
INSTALLED = Path("/usr/include")


def headers(download: bool = False) -> Path:
    """The folder with HEADER: the system's, else the cached one. Raises debian.Unavailable."""
    if (INSTALLED / HEADER).exists():
        return INSTALLED
    absent = "" if download else f"install {PACKAGE}, or `make test-arm` downloads it (50 KB)"
    return debian.cached(PACKAGE, _make, absent) / "usr/include"


def _make(work: Path) -> Path:
    processor = debian.run("dpkg", "--print-architecture").strip()
    lists = debian.Architecture(work / "lists", processor)
    debian.unpack(debian.download([PACKAGE], work / "package", *lists.options), work / "made")
    return work / "made"


if __name__ == "__main__":
    print(headers(download=True))
