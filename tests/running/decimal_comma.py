"""A locale in which the decimal point is a comma, made from glibc's sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "de_DE.UTF-8"


def locale_variables(folder: Path) -> dict[str, str]:
    """The variables of a process with the locale, which lies in `folder`.

    Raises:
        FileNotFoundError: there is no localedef, or it lacks its sources.
    """
    made = subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "UTF-8", folder / NAME], capture_output=True, text=True
    )
    if not (folder / NAME / "LC_NUMERIC").exists():
        raise FileNotFoundError(f"localedef made no {NAME}: {made.stderr.strip()}")
    return {"LOCPATH": str(folder), "LC_ALL": NAME}
