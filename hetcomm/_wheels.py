"""Where pip wheels keep shared libraries: told to the core, which cannot find them by itself."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from hetcomm._vendors import vendors

_TRANSPORTS = {"libucx": "lib"}


def folders() -> list[str]:
    """The library folders of the wheels that this Python would import."""
    # Top-level packages, which can be located without being imported, and folders in them.
    packages = dict(_TRANSPORTS)
    for row in vendors().values():
        packages |= row["python"]["wheels"]
    found = []
    for package, pattern in packages.items():
        spec = find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += sorted(str(path) for path in Path(place).glob(pattern))
    return found
