"""The table of settings (csrc/base/settings.cc) is complete, and README shows the same table.

`python tests/core/test_settings.py` writes README's table anew.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hetcomm import _core
from hetcomm._vendors import vendors

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
HEAD = "| variable | meaning | default |\n|---|---|---|\n"
# Set by hetcomm's own commands for the processes that they start, never by a user.
INTERNAL = {"HETCOMM_EMULATED_HOST", "HETCOMM_EMULATED_KIND", "HETCOMM_BENCH_STORE"}


def variables() -> set[str]:
    return {name for row in _core.settings() for name in row[0].split(", ")}


def of_vendors() -> set[str]:
    parts = ("runtime", "compiler", "ccl")
    return {row[part]["variable"] for row in vendors().values() for part in parts}


def table() -> str:
    rows = []
    for names, meaning, otherwise in _core.settings():
        shown = ", ".join(f"`{name}`" for name in names.split(", "))
        rows.append(f"| {shown} | {meaning} | {otherwise} |\n")
    return HEAD + "".join(rows)


def written() -> str:
    """README's table, up to the next empty line."""
    text = README.read_text()
    begin = text.index(HEAD)
    return text[begin : text.index("\n\n", begin) + 1]


def read_by_the_code() -> set[str]:
    """The variables whose full names the code has in strings."""
    found = set[str]()
    for folder, suffixes in (("csrc", "cc h"), ("bindings", "cc h"), ("hetcomm", "py")):
        for suffix in suffixes.split():
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                if path.name != "settings.cc" or path.parent.name != "base":
                    found |= set(re.findall(r'"(HETCOMM_[A-Z_]+)"', path.read_text()))
    return found


def test_the_readme_shows_the_table() -> None:
    assert written() == table(), "run python tests/core/test_settings.py"


def test_every_variable_that_the_code_reads_has_a_row() -> None:
    emulated = {name for name in read_by_the_code() if name.startswith("HETCOMM_EMULATED_")}
    assert read_by_the_code() - emulated - INTERNAL <= variables() | of_vendors()


def test_every_row_is_a_variable_that_the_code_reads() -> None:
    assert variables() <= read_by_the_code() | of_vendors()


def test_emulated_settings_are_in_their_header() -> None:
    header = (ROOT / "emulated/settings.h").read_text()
    source = (ROOT / "emulated/settings.cc").read_text()
    read = set(re.findall(r'"(HETCOMM_EMULATED_[A-Z_]+)"', source))
    assert read and all(f"//   {name} " in header for name in read)


if __name__ == "__main__":
    README.write_text(README.read_text().replace(written(), table()))
    print(f"wrote {README}", file=sys.stderr)
