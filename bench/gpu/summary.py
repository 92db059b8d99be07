"""A report of bench/gpu.sh for people: `python summary.py REPORT.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def amount(value: float, unit: str) -> str:
    if unit == "B":
        return f"{value / 2**20:.1f} MiB"
    if unit not in ("s", "B/s"):
        return f"{value:.3f} {unit}".strip()
    for factor, prefix in PREFIXES:
        if value >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def line(figure: dict[str, Any]) -> str:
    text = f"    {figure['name']:<58} {amount(figure['value'], figure['unit']):>12}"
    if "peer" in figure:
        text += f"   {figure['peer']}: {amount(figure['peer_value'], figure['unit'])}"
        if figure["ratio"] is not None:
            text += f" (x {figure['ratio']:.3f})"
    if figure.get("met") is not None:
        text += "" if figure["met"] else f"   MISSED: {figure['target']}"
    return text


def print_summary(report: dict[str, Any]) -> None:
    facts = report["facts"]
    kind = "emulated vendor" if report["emulated"] else facts.get("device", "no GPU")
    machine = facts.get("machine", {})
    print(f"\n{report['date']}  {kind}; {machine.get('processor')}, {machine.get('cores')} cores; "
          f"torch {facts.get('torch')}, {facts.get('nccl', 'no NCCL')}")  # fmt: skip
    for part in report["parts"]:
        reason = part["reason"].splitlines()
        counts = part.get("facts", {}).get("counts")
        print(f"{part['status']:<8}{part['name']:<15}{part['seconds']:6.1f} s"
              + (f"  {counts}" if counts else "")
              + (f"  {reason[0]}" if reason else ""))  # fmt: skip
        for text in reason[1:12]:
            print(f"    {text}")
        for figure in part.get("figures", []):
            print(line(figure))
    totals = [part["status"] for part in report["parts"]]
    print(f"{totals.count('passed')} passed, {totals.count('failed')} failed, "
          f"{totals.count('skipped')} skipped, in {report['seconds']:.0f} s")  # fmt: skip
    if first := report["first_failure"]:
        print(f"Failed first: {first['part']}: {first['reason']}\nTo do: {first['do']}")


if __name__ == "__main__":
    print_summary(json.loads(Path(sys.argv[1]).read_text()))
