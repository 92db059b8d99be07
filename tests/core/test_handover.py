"""Other users of the host at the socket that hands out an island's memory."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hetcomm import _core

FLOOD = Path(__file__).with_name("handover_flood.py")


@pytest.mark.needs("another user")
def test_a_flood_of_connections_does_not_extend_the_wait_for_members() -> None:
    name = _core.create_shm_segment(2)
    with contextlib.ExitStack() as flood:
        for _ in range(8):
            one = subprocess.Popen([sys.executable, "-I", str(FLOOD), "30"])
            flood.enter_context(one)
            flood.callback(one.kill)
        time.sleep(2)  # until all of them connect
        begin = time.monotonic()
        with pytest.raises(_core.TimeoutError, match="missing: rank 1"):
            _core.ShmIsland(name, 0, 2, timeout=3.0)
        assert time.monotonic() - begin < 3.0 + 5.0


@pytest.mark.needs("another user")
def test_members_meet_amid_a_flood_of_connections() -> None:
    name = _core.create_shm_segment(2)
    code = f"from hetcomm import _core; _core.ShmIsland({name!r}, 1, 2, timeout=60.0)"
    with contextlib.ExitStack() as flood:
        for _ in range(4):
            one = subprocess.Popen([sys.executable, "-I", str(FLOOD), "60"])
            flood.enter_context(one)
            flood.callback(one.kill)
        with subprocess.Popen([sys.executable, "-P", "-c", code]) as member:
            _core.ShmIsland(name, 0, 2, timeout=60.0)
            assert member.wait(60) == 0
