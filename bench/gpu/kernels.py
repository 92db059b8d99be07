"""bench/device_kernels.py as a part: the device kernels beside a copy of device memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ranks import Rank
from report import Report, parser

PROGRAM = Path(__file__).resolve().parents[1] / "device_kernels.py"


def main() -> None:
    arguments = parser().parse_args()
    report = Report(arguments.folder)
    output = arguments.folder / "device_kernels.json"
    size, seconds = (1 << 20, 0.0) if arguments.smallest else (512 << 20, 0.01)
    command = [sys.executable, str(PROGRAM), "--output", str(output), "--seconds", str(seconds)]
    environment = Rank(True).environment(0, 1, arguments.folder, arguments.emulated)
    done = subprocess.run(
        [*command, "--bytes", str(size)], env=os.environ | environment, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{PROGRAM.name} ended with {done.returncode}")
    measured = json.loads(output.read_text())
    report.fact("compiler", measured["compiler"])
    for row in measured["rows"]:
        target = None if arguments.emulated else row["target"]
        report.figure(
            row["kernel"], row["bytes_per_second"], "B/s", peer="copy of device memory",
            peer_value=row["copy_bytes_per_second"],
            target=f"at least {target:.0%} of the copy" if target else "",
            met=row["ratio"] >= target if target else None, elements=row["elements"],
        )  # fmt: skip


if __name__ == "__main__":
    main()
