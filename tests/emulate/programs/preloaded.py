"""Prints, as JSON, how this process differs from a fresh interpreter; then ends as asked."""

import atexit
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import beside  # a module beside this file, which only the path of a program finds
import numpy as np

early = "wave" in sys.modules  # nobody else imports it
log = Path(sys.argv[2]) / os.environ["RANK"] if len(sys.argv) > 2 else Path(os.devnull)
unclosed = log.open("w")
unclosed.write("written")


def torch_number() -> float:
    """-1 without torch."""
    return float(sys.modules["torch"].rand(1)) if "torch" in sys.modules else -1.0


print(
    json.dumps(
        {
            "rank": int(os.environ["RANK"]),
            "preloaded": early,
            "hetcomm": sorted(name for name in sys.modules if name.startswith("hetcomm")),
            "arguments": sys.argv[1:],
            "main": Path(__file__).name if __name__ == "__main__" else "",
            "random": [random.random(), np.random.rand(), torch_number()],
            "descriptors": len(os.listdir("/proc/self/fd")),
            "input": sys.stdin.read(),
            "leads": os.getsid(0) == os.getpid(),
            "child": str(signal.getsignal(signal.SIGCHLD)),
            "beside": beside.NAME,
            "threads": threading.active_count(),
        }
    ),
    flush=True,
)
atexit.register(print, "at exit")
end = sys.argv[1]
if end == "thread":
    threading.Thread(target=lambda: (time.sleep(0.3), print("the thread ended"))).start()
elif end == "raise":
    raise ValueError("as asked")
elif end == "exit":
    sys.exit(7)
elif end == "object":
    sys.exit({"why": "an object"})
elif end == "closed":
    sys.stdout.close()
elif end == "hook":
    sys.excepthook = lambda *_: sys.exit(9)
    raise ValueError
elif end == "text":
    sys.exit("a last word")
elif end == "linger":
    time.sleep(300)
