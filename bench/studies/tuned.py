"""Profiles of layouts for predictions: tuned.py SPEC.json PROFILE makes one."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import peers

from studies.model import Layout

KEPT = 3600.0  # seconds; machines change
SECONDS = 0.15  # of calls at each size
FEWEST = 4  # sizes: many ranks round the smallest ones up to one size
LADDER = tuple(16 << power for power in range(0, 23, 2))


def sizes_for(largest: int) -> list[int]:
    """Sizes of the ladder up to the first not below `largest`."""
    enough = next((i for i, size in enumerate(LADDER) if size >= largest), len(LADDER) - 1)
    return list(LADDER[: max(enough + 1, FEWEST)])


def place_of(layout: Layout, largest: int) -> Path:
    """The file of a profile. It does not depend on the order of ranks."""
    words = re.sub(r"[^\w.+]+", "-", f"{layout.ranks} {' '.join(layout.rates)}")
    return peers.ROOT / "build" / "profiles" / f"{words}-{sizes_for(largest)[-1]}.profile"


def is_fresh(file: Path) -> bool:
    if not file.exists():
        return False
    made, built = file.stat().st_mtime, peers.ROOT / "hetcomm" / "libhetcomm.so"
    return time.time() < made + KEPT and not (built.exists() and built.stat().st_mtime > made)


def spec_of(layout: Layout, largest: int) -> dict[str, Any]:
    return {"layout": asdict(layout), "sizes": sizes_for(largest)}


def main(spec: Path, result: Path) -> int:
    from hetcomm.tune.command import Result, settings_of
    from studies.job import measure

    fields = json.loads(spec.read_text())
    settings, page = settings_of(",".join(map(str, fields["sizes"])), SECONDS), Result()
    status = measure(settings, Layout.of(fields["layout"]), page)
    if status == 0:
        result.write_text(page.profile)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
