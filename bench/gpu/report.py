"""Arguments and report of a part of bench/gpu.sh. Standard library only."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def nothing() -> dict[str, Any]:
    """What a part has to report before it begins. remedies: what to do after each failure."""
    return {"figures": [], "facts": {}, "failures": [], "remedies": [], "skipped": ""}


class Skipped(Exception):
    """This part cannot run here. The text is the reason."""


class Report:
    """A part's figures and facts, on disk after every addition, so that a crash loses none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "result.json"
        self.content = nothing()

    def write(self) -> None:
        beside = self.path.with_suffix(".new")  # others read the file meanwhile
        beside.write_text(json.dumps(self.content, indent=1))
        beside.rename(self.path)

    def figure(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        peer: str = "",
        peer_value: float | None = None,
        target: str = "",
        met: bool | None = None,
        **details: Any,
    ) -> None:
        """One measured value, with its peer and whether it meets its target."""
        figure = {"name": name, "value": value, "unit": unit}
        if peer_value is not None:
            ratio = value / peer_value if peer_value else None
            figure |= {"peer": peer, "peer_value": peer_value, "ratio": ratio}
        if target:
            figure |= {"target": target, "met": met}
        self.content["figures"].append(figure | details)
        self.write()

    def fact(self, name: str, value: Any) -> None:
        self.content["facts"][name] = value
        self.write()

    def failure(self, text: str, remedy: str = "") -> None:
        """Records a failure, and what to do. The part continues."""
        print(f"FAILED: {text}", flush=True)
        self.content["failures"].append(text)
        self.content["remedies"].append(remedy)
        self.write()

    def skip(self, reason: str) -> None:
        print(f"skipped: {reason}", flush=True)
        self.content["skipped"] = reason
        self.write()


def parser() -> argparse.ArgumentParser:
    """The arguments of every part."""
    parsed = argparse.ArgumentParser()
    parsed.add_argument("--folder", type=Path, required=True, help="where this part may write")
    parsed.add_argument("--bound", type=float, default=60.0, help="seconds it may take")
    parsed.add_argument("--emulated", action="store_true", help="on the emulated vendor")
    parsed.add_argument("--smallest", action="store_true", help="smallest sizes, to prove the part")
    return parsed
