"""Rates and ratios of the lossless codec on one core, beside a copy of the same bytes.

    python -m hetcomm.demo.gradients --output gradients.npz
    python bench/codecs.py --data gradients.npz --output codecs.json

Rates are bytes of elements over the best time of many calls. The copy runs right before each codec,
so that shares hold on a busy machine. `ratio` is bytes of elements over bytes of the result.
Without --data the elements are normal numbers; random bits come in either case.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from hetcomm import _core
from hetcomm.timing import seconds_of

DTYPES = ("float32", "bfloat16", "float16")


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bytes of float32 values in another dtype; bfloat16 rounds to nearest even."""
    if dtype == "float32":
        return values.view(np.uint8)
    target: np.ndarray = np.empty(2 * values.size, np.uint8)
    types = _core.Dtype.__members__
    _core.cast(types[dtype], target, types["float32"], values)
    return target


def inputs(data: Path | None, most: int) -> dict[str, np.ndarray]:
    """float32 arrays of at most so many elements, by name."""
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 1 << 32, most, np.uint32).view(np.float32)
    if data is None:
        return {"normal": generator.normal(0, 1e-3, most).astype(np.float32), "random bits": bits}
    with np.load(data) as file:
        return {name: file[name][:most].copy() for name in file.files} | {"random bits": bits}


def best(seconds: float, call: Callable[[], object]) -> float:
    """Seconds of the fastest call within `seconds`, three calls at least."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        taken.append(seconds_of(call))
    return min(taken)


def measure(name: str, values: np.ndarray, dtype: str, seconds: float) -> dict[str, object]:
    kind = _core.Dtype.__members__[dtype]
    random = name == "random bits"
    data = values.view(np.uint8)[: values.size * kind.size] if random else as_dtype(values, dtype)
    room: np.ndarray = np.empty(_core.codec_capacity("lossless", kind, data.size // kind.size), np.uint8)
    back = np.empty_like(data)
    length = _core.codec_encode("lossless", kind, room, data)
    copy = best(seconds, partial(np.copyto, back, data))
    encode = best(seconds, partial(_core.codec_encode, "lossless", kind, room, data))
    decode = best(seconds, partial(_core.codec_decode, "lossless", kind, back, room[:length]))
    if not np.array_equal(back, data):
        raise RuntimeError(f"{name} {dtype}: other bits came back")
    return {
        "data": name,
        "dtype": dtype,
        "elements": data.size // kind.size,
        "ratio": data.size / length,
        "encode_bytes_per_second": data.size / encode,
        "decode_bytes_per_second": data.size / decode,
        "copy_bytes_per_second": data.size / copy,
        "encode_share_of_copy": copy / encode,
        "decode_share_of_copy": copy / decode,
    }


def print_table(rows: list[dict[str, object]]) -> None:
    titles = ("data", "dtype", "ratio", "encode", "decode", "GB/s, copy")
    print("{:14}{:10}{:>8}{:>8}{:>8}{:>12}".format(*titles))
    for row in rows:
        rates = [float(str(row[f"{key}_bytes_per_second"])) / 1e9 for key in ("encode", "decode")]
        copy = float(str(row["copy_bytes_per_second"])) / 1e9
        print(
            f"{row['data']:14}{row['dtype']:10}{row['ratio']:8.3f}"
            f"{rates[0]:8.2f}{rates[1]:8.2f}{copy:12.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="arrays of float32 in an .npz file")
    parser.add_argument("--elements", type=int, default=4 << 20, help="the most of one figure")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    rows = [
        measure(name, values, dtype, arguments.seconds)
        for name, values in inputs(arguments.data, arguments.elements).items()
        for dtype in DTYPES
    ]
    print_table(rows)
    if arguments.output:
        machine = platform.processor() or platform.machine()
        report = {"machine": machine, "set": _core.instruction_set(), "rows": rows}
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
