"""The folders of shared libraries in pip wheels. The core, which knows no Python, asks for them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hetcomm._vendors import vendors

_TRANSPORTS = {"libucx": "lib"}


def folders() -> list[str]:
    """The library folders of the wheels that this Python would import."""
    # Folders in top-level packages, which find_spec() locates without an import.
    packages = dict(_TRANSPORTS)
    for row in vendors().values():
        packages |= row["python"]["wheels"]
    found = []
    for package, pattern in packages.items():
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += sorted(str(path) for path in Path(place).glob(pattern))
    return found
