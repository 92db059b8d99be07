"""Time of an all_reduce with a codec beside the same call without, alternating in one job.

    python -m hetcomm.demo.gradients --output gradients.npz
    hetcomm emulate examples/clusters/two-islands.toml -- \\
      python bench/codec_links.py --data gradients.npz

The study codec-links repeats the figures of docs/codecs.md by this program.

Each rank reduces the gradients of a step, repeated up to --bytes and scaled by its rank, and random
bits. A group of each codec reduces them in turns. Figures are medians of rank 0, and the time
without a codec over each time.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

import hetcomm
from hetcomm import _core
from hetcomm.bench.data import numbers_of
from hetcomm.bench.inputs import scale_of

CODECS = ["none", *(name for name in _core.codecs() if name != "none")]
DTYPES = ("float32", "bfloat16", "float16")


def groups(codecs: list[str]) -> dict[str, dist.ProcessGroup]:
    """A group of all ranks for each codec."""
    return {
        codec: dist.new_group(backend="hetcomm", pg_options=hetcomm.Options(bridge_codec=codec))
        for codec in codecs
    }


def gradients(data: Path, dtype: torch.dtype, size: int) -> torch.Tensor:
    last = torch.from_numpy(numbers_of(data))
    count = size // dtype.itemsize
    repeated = last.repeat(count // last.numel() + 1)[:count]
    return (repeated * scale_of(dist.get_rank())).to(dtype)


def random_bits(dtype: torch.dtype, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(dtype)


def seconds(
    made: dict[str, dist.ProcessGroup], data: torch.Tensor, rounds: int
) -> dict[str, float]:
    """The median of each codec. The first round warms up."""
    taken: dict[str, list[float]] = {codec: [] for codec in made}
    for _ in range(rounds + 1):
        for codec, group in made.items():
            x = data.clone()
            dist.barrier(group)
            start = time.perf_counter()
            dist.all_reduce(x, group=group)
            taken[codec].append(time.perf_counter() - start)
    return {codec: statistics.median(times[1:]) for codec, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("output", type=Path, nargs="?", help="JSON file for medians in seconds")
    parser.add_argument("--data", type=Path, required=True, help="of hetcomm.demo.gradients")
    parser.add_argument("--bytes", type=int, default=64_000_000, help="of one all_reduce")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codecs", nargs="+", default=CODECS, help="all of them")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--random-bits", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("hetcomm")
    made = groups(["none", *(name for name in arguments.codecs if name != "none")])
    report: dict[str, dict[str, float]] = {}
    for name in arguments.dtypes:
        dtype, size = getattr(torch, name), arguments.bytes // 4 * 4
        named = {"gradients": gradients(arguments.data, dtype, size)}
        if arguments.random_bits:
            named["random bits"] = random_bits(dtype, size)
        for what, data in named.items():
            found = report[f"{name} {what}"] = seconds(made, data, arguments.rounds)
            if dist.get_rank() == 0:
                times = ", ".join(
                    f"{codec} {1e3 * each:.1f} ms ({found['none'] / each:.3f}x)"
                    for codec, each in found.items()
                )
                print(f"{name} {what}: {times}", flush=True)
    if arguments.output and dist.get_rank() == 0:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
