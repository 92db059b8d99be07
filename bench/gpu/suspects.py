"""What may hang or go wrong on a real device only: each suspect is a small program with its own
processes and bound. docs/devices.md says what each rests on.

A suspect that fails says what to do. The others run all the same.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import ranks
from ranks import Rank
from report import Report, parser

TESTS = Path(__file__).resolve().parents[2] / "tests"
BOUND = 20.0  # seconds for each
EMULATED_BOUND = 90.0
GROUP_SHARE = 2 / 3  # of the bound: a group that times out says why
HOSTILE = "queues:2,sync,poison,lazy,delays:3"  # of an emulated device


@dataclass(frozen=True)
class Suspect:
    name: str
    program: str  # in suspect_programs.py
    remedy: str
    # A letter for each rank, g for the GPU and c for the CPU, of bench/gpu.sh and with --two-ranks;
    # empty: not there.
    alone: str = "gc"
    two: str = "gg"
    settings: Mapping[str, str] = field(default_factory=dict)
    hostile: str = HOSTILE
    after_torch: bool = False  # torch's own group comes first
    repeats: bool = False  # in a second process, too, with the first one's caches


def queues(number: int) -> dict[str, str]:
    return {"CUDA_DEVICE_MAX_CONNECTIONS": str(number)}


IN_STREAMS = "look in docs/devices.md, the rule, for work in a stream that waits for the host"
SUSPECTS = (
    Suspect("streams share one queue", "growing_calls", IN_STREAMS, settings=queues(1),
            hostile="queues:1,sync,poison,lazy,delays:3"),
    Suspect("streams share 8 queues", "growing_calls", IN_STREAMS, settings=queues(8),
            hostile="queues:8,sync,poison,lazy,delays:3"),
    Suspect("allocation beside a pending call", "allocation",
            "allocate in DeviceRun::prepare only, with no stream behind the host"),
    Suspect("compilation and loading beside a pending call", "compilation",
            "compile and load in DeviceKernels::find only; without NVRTC set HETCOMM_KERNELS=0"),
    Suspect("first launch of a kernel beside a pending call", "first_kernel",
            "set CUDA_MODULE_LOADING=EAGER; docs/devices.md, lazy loading"),
    Suspect("a future on a stream of torch's pool", "pool_streams",
            "look at bindings/torch for a future that enqueues more than a wait for events"),
    Suspect("two groups of two threads", "two_threads",
            "one order of launches on all ranks; CUDA_DEVICE_MAX_CONNECTIONS=32 and warm pools",
            settings=queues(32), hostile="poison,delays:3"),
    Suspect("abort and failure beside pending work", "after_a_failure",
            "csrc/island/ccl/README.md, calls that do not return"),
    Suspect("memory that torch's allocator gives away", "allocator",
            "record_stream of every stream that uses the tensor"),
    Suspect("recording into graphs", "graphs",
            "docs/devices.md, calls beside a capture exchange the thread's mode", alone="g",
            hostile="queues:2,sync,gates,poison,delays:3"),
    Suspect("recording what the host moves", "refused_graphs",
            "csrc/exec/README.md, streams and graphs"),
    Suspect("native calls without the second communicator", "first_calls",
            "HETCOMM_CCL=blocking=0 is the first communicator alone", alone="",
            settings={"HETCOMM_CCL": "blocking=0"}),
    Suspect("native calls that connect first", "first_calls",
            "NCCL_RUNTIME_CONNECT=1 lets NCCL connect in them; unset it", alone="",
            settings={"NCCL_RUNTIME_CONNECT": "1"}),
    Suspect("native calls with the second communicator", "first_calls",
            "compare with the suspect before; HETCOMM_CCL=blocking=0 avoids it", alone="g"),
    Suspect("torch's own NCCL group first", "first_calls",
            "set NCCL_RUNTIME_CONNECT=0 before the program starts: NCCL reads it once", alone="g",
            after_torch=True),
    Suspect("wait() and the host", "waits", "docs/devices.md, what wait() does", hostile=""),
    Suspect("run-time compilation at a start", "kernels_of_a_start",
            "look for the cache of kernels on disk", alone="g", two="", repeats=True),
)  # fmt: skip


def rank_main(suspect: Suspect, emulated: bool) -> None:
    import stream_programs
    import suspect_programs
    import torch
    import torch.distributed as dist

    rank, size, folder = ranks.place()
    native = all(letter == "g" for letter in os.environ["SUSPECT_MEMBERS"])
    stream_programs.prepare()
    on_gpu = stream_programs.home() == "cuda"
    backend = "hetcomm" if not emulated else "cpu:hetcomm,emulated:hetcomm"
    store = dist.FileStore(str(folder / "torch"), size)
    timeout = timedelta(seconds=GROUP_SHARE * (EMULATED_BOUND if emulated else BOUND))
    join = {"store": store, "rank": rank, "world_size": size, "timeout": timeout}
    if suspect.after_torch and on_gpu:
        dist.init_process_group("nccl", **join)
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
        dist.destroy_process_group()
        join["store"] = dist.FileStore(str(folder / "again"), size)
    elif suspect.after_torch:
        from hetcomm import _core

        _core.ccl_version("nvidia")  # somebody else's first call of the library
    if on_gpu:
        torch.cuda.synchronize()
    ready = dist.FileStore(str(folder / "ready"), size)  # all contexts are made
    ready.set(str(rank), "")
    ready.wait([str(peer) for peer in range(size)], timedelta(seconds=30))
    free = torch.cuda.mem_get_info()[0] if on_gpu else 0
    begin = time.perf_counter()
    dist.init_process_group(backend, **join)
    dist.barrier()
    found = {"set-up": time.perf_counter() - begin}
    program = getattr(suspect_programs, suspect.program)
    found |= program(rank, size, native)
    if on_gpu:
        torch.cuda.synchronize()
        found["memory of the device, all ranks"] = free - torch.cuda.mem_get_info()[0]
    ranks.give(found)
    if dist.is_initialized():
        dist.destroy_process_group()


def members(suspect: Suspect, kinds: str, folder: Path) -> list[Rank]:
    settings = {"SUSPECT_MEMBERS": kinds, "HETCOMM_EMULATED_HOSTILE": suspect.hostile}
    if suspect.repeats:  # with caches of its own, empty at first
        cache = str(folder / "cache")
        settings |= {"XDG_CACHE_HOME": cache, "CUDA_CACHE_PATH": cache}
    settings |= suspect.settings
    hosts = {"g": "a", "c": "b"}
    return [Rank(kind == "g", hosts[kind], direct=False, settings=settings) for kind in kinds]


def main() -> None:
    parsed = parser()
    parsed.add_argument("--two-ranks", action="store_true", help="two ranks on the GPU")
    parsed.add_argument("--suspect", default="", help="the name of one")
    arguments = parsed.parse_args()
    report = Report(arguments.folder)
    sys.path += [str(TESTS / "torch"), str(TESTS / "running")]
    import emulated_device
    import suspect_programs  # noqa: F401  # with torch, which the ranks need not import again

    if arguments.emulated:
        emulated_device.build()
    end = time.monotonic() + arguments.bound
    emulated = arguments.emulated
    each = EMULATED_BOUND if emulated else BOUND
    outcomes: dict[str, str] = {}
    for suspect in SUSPECTS:
        kinds = suspect.two if arguments.two_ranks else suspect.alone
        if not kinds or arguments.suspect not in ("", suspect.name):
            continue
        for start in ("", ", second start") if suspect.repeats else ("",):
            case = suspect.name + start
            bound = min(each, end - time.monotonic())
            if bound < 5:
                report.failure(f"{case}: not run, no time was left")
                continue
            begin = time.monotonic()
            given = ranks.try_launch(
                report, case, members(suspect, kinds, arguments.folder), arguments,
                bound / arguments.bound, suspect.remedy, partial(rank_main, suspect, emulated),
            )  # fmt: skip
            took = time.monotonic() - begin
            outcomes[case] = "failed" if given is None else "held"
            report.fact("outcomes", outcomes)
            report.figure(f"{case}: processes", took, "s")
            for name, value in (given[0] if given else {}).items():
                unit = "B" if name.startswith("memory") else "s"
                report.figure(f"{case}: {name}", value, unit)


if __name__ == "__main__":
    main()
