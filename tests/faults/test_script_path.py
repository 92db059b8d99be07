"""A script whose path is no UTF-8, as of old home folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hetcomm.rendezvous import free_port

LATE = """
import os, time
import numpy as np
import hetcomm

with hetcomm.Communicator.from_env(timeout=20) as communicator:
    if communicator.rank == 1:
        time.sleep(1.5)  # beyond the time after which rank 0 looks for its own caller
    result = communicator.all_reduce(np.ones(1000, np.float32))
    assert (result == communicator.size).all()
print("right")
"""


def test_a_late_rank_of_a_script_in_a_folder_of_latin_1_is_waited_for(tmp_path: Path) -> None:
    script = os.fsencode(tmp_path) + b"/caf\xe9/train.py"
    os.mkdir(os.path.dirname(script))
    Path(os.fsdecode(script)).write_text(LATE)
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", script],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        text = rank.communicate(timeout=60)[0].decode(errors="replace")
        assert rank.returncode == 0 and text.endswith("right\n"), text
