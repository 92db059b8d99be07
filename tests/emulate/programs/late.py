"""Rank 1 makes its second call once the file argv[1]/go exists; the other ranks wait for it."""

import sys
import time
from pathlib import Path

import numpy as np

import hetcomm

with hetcomm.Communicator.from_env() as communicator:
    data = np.ones(1000, np.float32)
    communicator.all_reduce(data)
    deadline = time.monotonic() + 50
    while communicator.rank == 1 and not Path(sys.argv[1], "go").exists():
        if time.monotonic() > deadline:
            raise SystemExit("nobody has made the file go")
        time.sleep(0.01)
    print("sum", int(communicator.all_reduce(data)[0]), flush=True)
