"""Runs the program argv[1] of this folder. The monotonic clock of rank 1 is 1,000 s ahead."""

import os
import sys
from pathlib import Path

from hetcomm.emulate import kernel

NEW_TIME = 0x00000080
program = [sys.executable, str(Path(__file__).parent / sys.argv[1]), *sys.argv[2:]]
if os.environ["RANK"] == "1":
    kernel.unshare(NEW_TIME)
    Path("/proc/self/timens_offsets").write_text("monotonic 1000 0\n")
    child = os.fork()  # only children enter it
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.execv(program[0], program)
