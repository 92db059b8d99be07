"""all_reduce through hetcomm beside ProcessGroupNCCL, in turn in one run.

One rank moves nothing, and shows the cost of a call. Two ranks (--two-ranks) share the GPU.
Processes that share a GPU take turns of milliseconds, so figures of two ranks are noisy unless MPS
lets the ranks run side by side (--mps).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import ranks
from ranks import Rank
from report import Report, Skipped, parser

SIZES = [8, 1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
ROUNDS, LEAST_ROUNDS = 9, 3
BATCHES = 3  # of each group in a round
EXTRA_SECONDS, EXTRA_SHARE = 3e-6, 0.02  # hetcomm may cost this much more than NCCL


def rank_main(emulated: bool, smallest: bool, seconds: float) -> None:
    import torch
    import torch.distributed as dist
    from groups import BOUND, Groups

    from hetcomm.timing import seconds_of

    groups = Groups(emulated)
    peer = groups.gloo if emulated else dist.new_group(backend="nccl", timeout=BOUND)
    both = {"hetcomm": dist.group.WORLD, "peer": peer}
    sizes, most_rounds = (SIZES, ROUNDS) if not smallest else ([8, 64 << 10], 2)
    begin_all = time.monotonic()
    report: dict[int, dict[str, dict[str, list[float]]]] = {}
    without: list[int] = []
    for position, size in enumerate(sizes):
        left = seconds - groups.largest(time.monotonic() - begin_all)
        if left <= 0 and not smallest:  # a try has few calls of each size in any case
            without = sizes[position:]
            break
        tensor = torch.full((size // 4,), groups.rank + 1.0, device=groups.device)
        for group in both.values():
            tensor.fill_(groups.rank + 1.0)
            dist.all_reduce(tensor, group=group)
            wanted = groups.size * (groups.size + 1) / 2
            if not bool((tensor == wanted).all()):
                raise SystemExit(f"{size} bytes: a wrong sum")
        tensor.zero_()
        groups.synchronize()
        once = groups.largest(
            seconds_of(partial(dist.all_reduce, tensor, group=peer), 3, groups.finish) / 3
        )
        calls_left = int(left / (len(sizes) - position) / len(both) / BATCHES / once)
        rounds = min(most_rounds, max(LEAST_ROUNDS, calls_left // 2 - 1))
        calls = max(2, min(200, calls_left // (rounds + 1)))
        kinds = ["batch", "host", "latency", *(["stream"] if groups.on_gpu else [])]
        rows = report[size] = {name: {kind: [] for kind in kinds} for name in both}
        for number in range(rounds + 1):
            order = list(both.items())[:: 1 if number % 2 else -1]
            for name, group in order:
                call = partial(dist.all_reduce, tensor, group=group)
                groups.synchronize()
                host = seconds_of(call, calls)
                batch = host + seconds_of(groups.finish)
                groups.synchronize()
                latency = sum(seconds_of(call, finish=groups.finish) for _ in range(calls))
                found = {"batch": batch, "host": host, "latency": latency}
                if groups.on_gpu:
                    found["stream"] = groups.stream_seconds(call, calls)
                if number > 0:  # the first one warms up
                    for kind, value in found.items():
                        rows[name][kind].append(value / calls)
        rows["calls"] = {"per round": [calls]}
        print(f"{size} bytes: {rounds} rounds of {calls} calls", flush=True)
    ranks.give({"sizes": report, "without time": without})
    dist.destroy_process_group()


def quartiles(values: list[float]) -> list[float]:
    return [round(value * 1e6, 2) for value in statistics.quantiles(values, n=4)]


def judge(report: Report, case: str, given: dict, emulated: bool) -> None:
    for size, rows in given.items():
        for kind in rows["hetcomm"]:
            ours, theirs = (statistics.median(rows[name][kind]) for name in ("hetcomm", "peer"))
            within = ours <= theirs + EXTRA_SECONDS + EXTRA_SHARE * theirs
            held = kind != "host"
            report.figure(
                f"{case}: {int(size)} B, {kind}", ours, "s",
                peer="gloo (no NCCL here)" if emulated else "ProcessGroupNCCL", peer_value=theirs,
                target="at most 3 us and 2% more" if held else "",
                met=None if emulated or not held else within,
                quartiles_us=quartiles(rows["hetcomm"][kind]),
                peer_quartiles_us=quartiles(rows["peer"][kind]),
                calls=rows["calls"]["per round"][0],
            )  # fmt: skip


@contextmanager
def multi_process_service(folder: Path) -> Iterator[None]:
    """Runs NVIDIA's service for concurrent processes on one GPU, as our own daemon."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise Skipped("nvidia-cuda-mps-control is not installed")
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    folder.mkdir()
    os.environ |= pipes
    daemon = subprocess.Popen([control, "-f"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)  # it reports no readiness; early ranks would fail
        if daemon.poll() is not None:
            raise Skipped(f"nvidia-cuda-mps-control ended with {daemon.returncode}")
        yield
    finally:
        subprocess.run([control], input="quit\n", text=True, timeout=10, check=False)
        daemon.terminate()
        daemon.wait(10)
        for name in pipes:
            del os.environ[name]


def main() -> None:
    parsed = parser()
    parsed.add_argument("--mps", action="store_true", help="two ranks at the same time")
    parsed.add_argument("--two-ranks", action="store_true", help="two ranks on the GPU")
    arguments = parsed.parse_args()
    seconds = arguments.bound / 2 if not arguments.smallest else 1.0
    if ranks.is_rank():
        return rank_main(arguments.emulated, arguments.smallest, seconds)
    report = Report(arguments.folder)

    def case(name: str, size: int) -> None:
        if given := ranks.try_launch(report, name, [Rank(True)] * size, arguments):
            judge(report, name, given[0]["sizes"], arguments.emulated)
            if without := given[0]["without time"]:
                report.failure(f"{name}: no time for {', '.join(map(str, without))} bytes")

    if not arguments.mps:
        return case("2 ranks taking turns", 2) if arguments.two_ranks else case("1 rank", 1)
    try:
        with multi_process_service(arguments.folder / "mps"):
            case("2 ranks side by side", 2)
    except Skipped as reason:
        report.skip(str(reason))


if __name__ == "__main__":
    main()
