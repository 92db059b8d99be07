"""CuPy arrays in collectives without torch, in the order of CuPy's stream. The rank of a GPU has
CuPy, the rank of a CPU NumPy."""

from __future__ import annotations

import time

import numpy as np
import ranks
from ranks import FolderStore, Rank, view
from report import Report, parser

from hetcomm._core import Collective, Communicator, Dtype, ReduceOp, Spec

COUNT, CALLS = 1_000_003, 20


def rank_main() -> None:
    rank, size, folder = ranks.place()
    communicator = Communicator(FolderStore(folder / "store"), rank, size, 30.0, "arrays")
    spec = Spec(Collective.all_reduce, Dtype.float32, ReduceOp.sum, count=COUNT, in_place=True)
    seconds = []
    for call in range(CALLS):
        wanted = sum(range(call + 1, call + size + 1))
        begin = time.perf_counter()
        if ranks.on_gpu():
            import cupy

            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:  # nothing below makes the host wait before get()
                array = cupy.full(COUNT, call + rank + 1, dtype=cupy.float32)
                work = communicator.submit(
                    spec, view(array.data.ptr, array.nbytes), stream=stream.ptr
                )
                work.block_stream(stream.ptr)
                result = (array * 2).get(stream=stream, blocking=True)
        else:
            host = np.full(COUNT, call + rank + 1, np.float32)
            communicator.submit(spec, host).wait()
            result = host * 2
        seconds.append(time.perf_counter() - begin)
        if not (result == 2 * wanted).all():
            raise SystemExit(f"call {call}: expected {2 * wanted}, got {result[:5]}")
    ranks.give({"seconds": sorted(seconds)[CALLS // 2]})
    communicator.leave()


def main() -> None:
    arguments = parser().parse_args()
    if ranks.is_rank():
        return rank_main()
    report = Report(arguments.folder)
    cases = {
        "one GPU rank": [Rank(True)],
        "GPU and CPU": [Rank(True, "a"), Rank(False, "b")],
    }
    for case, members in cases.items():
        if given := ranks.try_launch(report, case, members, arguments, 1 / 2):
            report.figure(
                f"{case}: fill, all_reduce, double, fetch", given[0]["seconds"], "s",
                elements=COUNT,
            )  # fmt: skip


if __name__ == "__main__":
    main()
