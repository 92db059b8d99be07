"""The counter from which the flight recorder takes its times."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
PROGRAM = "from hetcomm import _core; print(_core.counts_ticks_of_processor())"


def counts_where_the_kernel_takes(timer: str, folder: Path) -> bool:
    """Whether a process counts ticks of the processor where the kernel takes this timer."""
    (folder / "timer").write_text(f"{timer}\n")
    become = 'mount --bind "$0" "$1" && exec "$2" -c "$3"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", become]
    done = subprocess.run(
        [*words, str(folder / "timer"), SOURCE, sys.executable, PROGRAM],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip() == "True"


@pytest.mark.needs("invariant counter", "mount namespaces", "unshare")
@pytest.mark.parametrize(
    ("timer", "trusted"),
    [
        ("tsc", True),
        ("kvm-clock", True),
        ("hpet", False),
        ("acpi_pm", False),
        ("refined-jiffies", False),
    ],
)
def test_a_counter_that_the_kernel_distrusts_is_not_used(
    tmp_path: Path, timer: str, trusted: bool
) -> None:
    assert counts_where_the_kernel_takes(timer, tmp_path) == trusted
