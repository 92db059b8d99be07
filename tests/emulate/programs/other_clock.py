"""Runs the program argv[1] of this folder. The monotonic clock of rank 1 is 1,000 s ahead."""

import ctypes
import os
import sys
from pathlib import Path

NEWTIME = 0x00000080
program = [sys.executable, str(Path(__file__).with_name(sys.argv[1])), *sys.argv[2:]]
if os.environ["RANK"] == "1":
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEWTIME) != 0:
        raise OSError(ctypes.get_errno(), "no time namespace")
    Path("/proc/self/timens_offsets").write_text("monotonic 1000 0\n")
    child = os.fork()  # only children enter it
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.execv(program[0], program)
