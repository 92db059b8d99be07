"""Files of ranks' output in a folder to which other users can write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hetcomm.emulate.logs import new_log


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "hard link", "file"])
def test_a_log_is_a_new_file(tmp_path: Path, kind: str) -> None:
    planted, log = tmp_path / "planted", tmp_path / "rank-3.log"
    if kind != "dangling link":
        planted.write_text("of another user")
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "hard link":
        log.hardlink_to(planted)
    elif kind == "file":
        log.write_text("a longer text of an earlier run")
    else:
        log.symlink_to(planted)
    with open(new_log(tmp_path, 3), "w") as file:
        file.write("output")
    assert log.is_file() and not log.is_symlink() and log.read_text() == "output"
    if kind == "dangling link":
        assert not planted.exists()
    else:
        assert planted.read_text() == "of another user"
