"""Connects as another user to the sockets at which ranks hand out shared memory, again and again.

Usage: handover_flood.py SECONDS
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

NOBODY = 65534


def main(seconds: float) -> None:
    if os.geteuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sockets = Path("/proc/net/unix").read_text()
        for name in set(re.findall(r"@(hetcomm-[0-9a-f]+)$", sockets, re.MULTILINE)):
            with suppress(OSError):
                for _ in range(1000):
                    with socket.socket(socket.AF_UNIX) as one:
                        one.settimeout(1.0)
                        one.connect(f"\0{name}")


if __name__ == "__main__":
    main(float(sys.argv[1]))
