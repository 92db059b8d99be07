"""One rank of a job over ranks of unlike processors. Prints its processor, and a digest of the
result of each call."""

import hashlib
import json
import platform

import numpy as np

from hetcomm import Communicator

CODECS = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "int4", "lossless")
CALLS = [
    *((dtype, op, "none") for dtype in ("float32", "float64", "float16") for op in ("sum", "avg")),
    *(("float32", op, "none") for op in ("product", "min", "max")),
    *(("float32", "sum", codec) for codec in CODECS),
    *(("float16", "sum", codec) for codec in ("int8", "lossless")),
]
COUNT = 20_011


def contribution(number: int, rank: int, special: bool) -> np.ndarray:
    """Numbers of all magnitudes; with `special`, a few that are none."""
    random = np.random.default_rng([number, rank])
    values = random.standard_normal(COUNT) * 10.0 ** random.integers(-6, 4, COUNT)
    if special:
        values[random.integers(0, COUNT, 40)] = random.choice([np.nan, np.inf, -np.inf, 1e-40], 40)
    return values


def main() -> None:
    digests = []
    with Communicator.from_env(timeout=300) as comm:
        for number, (dtype, op, codec) in enumerate(CALLS):
            lossy = codec not in ("none", "lossless")
            with np.errstate(over="ignore"):
                mine = contribution(number, comm.rank, not lossy).astype(dtype)
            found = comm.all_reduce(mine, op=op, codec=codec)
            digests.append(hashlib.sha256(found.tobytes()).hexdigest()[:16])
            parts = comm.all_gather(mine, codec="none" if dtype == "float64" else "lossless")
            digests.append(hashlib.sha256(parts.tobytes()).hexdigest()[:16])
    print(json.dumps([platform.machine(), digests]))


if __name__ == "__main__":
    main()
