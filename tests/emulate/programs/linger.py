"""Rank `failing` exits with 3 once all ranks are connected. The others wait; some ignore
SIGTERM."""

import signal
import sys

from meeting import RANK, meet, wait_for_all

failing, deaf = map(int, sys.argv[1:])
if deaf == RANK:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait_for_all(meet())
print("ready", flush=True)
if failing == RANK:
    sys.exit(3)
while True:
    signal.pause()
