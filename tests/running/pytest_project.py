"""A folder with tests of its own, under the rules of this one."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
BOUND = 240.0  # seconds; far above the time of any run
# A machine with a door, without a card, and with a broken probe if a test needs that.
CONFTEST = f"""
import abilities
import skips
abilities.probes.clear()
abilities.probes.update(card=lambda: "none is plugged", door=lambda: "")
{(HERE.parent / "conftest.py").read_text().partition("from __future__ import annotations")[2]}
"""
LISTED = """
[folders]
"tests/cards" = ["card"]
[needs]
"card" = ["tests/*::test_with_a_card"]
"door" = ["tests/*::test_with_a_door"]
[[reason]]
text = "only on * days"
where = ["tests/mixed/*"]
[[reason]]
text = "this torch is old"
where = ["tests/mixed/*"]
torch_below = "1.5"
"""


class Project:
    """The folder, and runs of its tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("tests/conftest.py", CONFTEST)
        self.write("tests/skips.toml", LISTED)
        options = f'pythonpath = ["{HERE}"]\ntestpaths = ["tests"]\n'
        options += 'markers = ["needs", "alone"]\n'
        self.write("pyproject.toml", f"[tool.pytest.ini_options]\n{options}")

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def module(self, name: str, text: str) -> None:
        self.write(f"tests/{name}/test_{name}.py", f"import pytest\n\n{text}")

    def run(self, *options: str, on_line: Callable[[str], None] | None = None) -> tuple[int, str]:
        """The exit code and the output. Gives each line to `on_line` while the run goes on."""
        command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *options]
        printed = []
        with subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as running:
            overdue = threading.Timer(BOUND, running.kill)
            overdue.start()
            assert running.stdout is not None
            for line in running.stdout:
                printed.append(line)
                if on_line is not None:
                    on_line(line)
            overdue.cancel()
        return running.returncode, "".join(printed)
