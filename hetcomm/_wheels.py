"""Where pip wheels keep shared libraries: told to the core, which cannot find them by itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Top-level packages, which can be located without being imported, and their library folders.
_PACKAGES = {
    "libucx": "lib",
    "nvidia": "*/lib",
    "torch": "lib",  # torch for ROCm brings HIP and RCCL there
}


def folders() -> list[str]:
    """The library folders of the wheels that this Python would import."""
    found = []
    for package, pattern in _PACKAGES.items():
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += sorted(str(path) for path in Path(place).glob(pattern))
    return found
