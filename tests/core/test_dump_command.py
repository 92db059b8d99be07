"""`hetcomm dump` and processes that end while the command asks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import hetcomm
from hetcomm import dump_command


@pytest.fixture
def ended() -> Iterator[int]:
    """A process that has ended, and is still listed."""
    process = subprocess.Popen([sys.executable, "-P", "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    yield process.pid
    process.wait()


def test_a_process_that_ends_amid_the_question_is_an_error(ended: int) -> None:
    """The socket was still listed, and the namespaces are gone."""
    with pytest.raises(hetcomm.TransportError, match=f"process {ended}") as error:
        dump_command._connect_in(ended, "hetcomm-dump-planted")
    assert "cannot read the namespaces" in str(error.value)
