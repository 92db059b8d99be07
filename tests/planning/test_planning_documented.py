"""The programs of docs/planning-runtime.md work as they are."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from preloaded import stand_in

from hetcomm.plan import Layout

PAGE = Path(__file__).parents[2] / "docs" / "planning-runtime.md"
BOUND = 400.0  # seconds of one program
pytestmark = pytest.mark.timeout(900)


@pytest.mark.slow
def test_the_trainer_of_the_page_learns(tmp_path: Path) -> None:
    layout, trainer, _ = programs()
    output = run(tmp_path, layout, trainer)
    assert Layout.load(tmp_path / "layout.json").micro_batches == (4, 4)
    assert_learned(output, replicas=2)
    assert (tmp_path / "checkpoint" / ".metadata").exists()


@pytest.mark.slow
def test_the_trainer_of_the_page_learns_with_tensor_ranks(tmp_path: Path) -> None:
    layout, trainer, styles = programs()
    pairs = r"replicas=\(Replica\(\((\d),\)\), Replica\(\((\d),\)\)\)"
    divided, count = re.subn(pairs, r"replicas=(Replica((\1, \2)),)", layout)
    assert count == 2 and "256)], job)" in trainer
    output = run(tmp_path, divided, styles + trainer.replace("256)], job)", "256)], job, styles)"))
    assert_learned(output, replicas=1)


def programs() -> list[str]:
    """The layout, the trainer and the styles of the page."""
    found: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return found


def run(tmp_path: Path, layout: str, trainer: str) -> str:
    """The output of four ranks."""
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHON_EXEC": stand_in()}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    (tmp_path / "layout.py").write_text(layout)
    (tmp_path / "train.py").write_text(trainer)
    output = ""
    for command in (["layout.py"], [*launch, "train.py"]):
        done = subprocess.run(
            [stand_in(), "-P", *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=BOUND,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        output += done.stdout
    return output


def assert_learned(output: str, replicas: int) -> None:
    losses = re.findall(r"replica (\d), step (\d+): ([\d.]+)", output)
    lines = {(int(replica), int(step)): float(loss) for replica, step, loss in losses}
    assert lines.keys() == {(r, step) for r in range(replicas) for step in range(20)}
    first = float(min(losses, key=lambda line: int(line[1]))[2])
    last = float(max(losses, key=lambda line: int(line[1]))[2])
    assert last < first - 0.5, "nothing was learned"


def test_the_page_names_every_function_and_schedule() -> None:
    from hetcomm.plan.layout import SCHEDULES
    from hetcomm.plan.run.schedule import NAMES

    page = PAGE.read_text()
    assert all(f"plan.{name}(" in page for name in ("load", "split", "schedule", "partition"))
    assert all(f"| `{name}` | `{NAMES[name]}` |" in page for name in SCHEDULES)
