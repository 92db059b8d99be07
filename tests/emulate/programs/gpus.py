"""Reduces by the vendor's own library among the ranks of one vendor; argv: the file of the id."""

import ctypes
import os
import sys
import time
from pathlib import Path

VARIABLES = {"nvidia": "HETCOMM_NCCL_LIBRARY", "amd": "HETCOMM_RCCL_LIBRARY"}
PREFIX = {"nvidia": "cuda", "amd": "hip"}
ELEMENTS = 200_000

vendor, world = os.environ["HETCOMM_VENDOR"], int(os.environ["WORLD_SIZE"])
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
library = ctypes.CDLL(os.environ[VARIABLES[vendor]])


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_char * 128),)


identity, file = UniqueId(), Path(sys.argv[1])
assert library[PREFIX[vendor] + "SetDevice"](int(os.environ["HETCOMM_DEVICE"])) == 0
if rank == 0:
    assert library.ncclGetUniqueId(ctypes.byref(identity)) == 0
    part = file.with_suffix(".part")
    part.write_bytes(bytes(identity))
    part.rename(file)
while not file.exists():
    time.sleep(0.01)
identity = UniqueId.from_buffer_copy(file.read_bytes())
communicator = ctypes.c_void_p()
code = library.ncclCommInitRank(ctypes.byref(communicator), world, identity, rank)
if code != 0:
    library.ncclGetLastError.restype = ctypes.c_char_p
    print(f"refused {code}: {library.ncclGetLastError(None).decode()}")
    sys.exit(3)
values = (ctypes.c_float * ELEMENTS)(*([float(rank + 1)] * ELEMENTS))
count = ctypes.c_size_t(ELEMENTS)
assert library.ncclAllReduce(values, values, count, 7, 0, communicator, None) == 0
assert library[PREFIX[vendor] + "StreamSynchronize"](None) == 0
print(f"device {local} sum {values[0]} {values[ELEMENTS - 1]}")
library.ncclCommDestroy(communicator)
