"""Rates of the device kernels beside a copy of device memory in the same run.

    python bench/device_kernels.py --output bench/results/device_kernels.json

Needs one GPU with its driver and run-time compiler (NVRTC or hipRTC), and no torch. Each figure is
the bytes read and written over the time of a batch of calls on one stream; the copy reads and
writes the same element bytes and runs right before and right after each kernel. The ratio is the
kernel's rate over the copy's; results are compared with the host's first.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hetcomm import _core
from hetcomm.timing import seconds_of

TARGET = 0.8  # of the copy's rate, for codecs of blocks, without a residual
PATIENCE = 60.0  # seconds for one batch
CHECKED = 1 << 20  # elements whose results are compared with the host's

DTYPES = _core.Dtype.__members__
CODECS = (
    *("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "int8", "int8:32", "int8:2048", "int4"),
    *("int8:32:bf16", "int4:bf16", "topk", "topk:0.1"),
)
HEADER = 64  # bytes of encoded memory before the data
Enqueue = Callable[[], None]


def nothing(count: int) -> None:
    pass


class Case(NamedTuple):
    """One kernel. Its functions take a number of elements."""

    name: str
    dtype: str  # of what it reads
    moved: Callable[[int], int]  # bytes read and written
    device: Callable[[int], None]
    host: Callable[[int], np.ndarray]
    result: int  # the device's buffer of the result
    prepare: Callable[[int], None] = nothing  # enqueues the calls before it
    held_to_target: bool = False


class Gpu:
    """A device with a stream, the kernels, and four buffers, each with room for encoded memory."""

    def __init__(self, vendor: str, index: int, bytes_each: int) -> None:
        self.device = _core.Device.open(vendor, index)
        self.kernels = _core.DeviceKernels.of(self.device)
        self.stream = self.device.make_stream()
        self.event = self.device.make_event()
        encoded = _core.codec_capacity("lossless", DTYPES["float32"], bytes_each // 4)
        self.buffers = [self.device.allocate(HEADER + encoded) for _ in range(4)]

    def wait(self) -> None:
        """Waits for all work on the stream, within bounds."""
        self.device.record(self.event, self.stream)
        end = time.monotonic() + PATIENCE
        while not self.device.passed(self.event):
            if time.monotonic() > end:
                raise TimeoutError(f"the device has not finished within {PATIENCE} s")

    def write(self, buffer: int, values: np.ndarray) -> None:
        self.device.copy(buffer, values.ctypes.data, values.nbytes, self.stream)
        self.wait()

    def read(self, buffer: int, values: np.ndarray) -> np.ndarray:
        self.device.copy(values.ctypes.data, buffer, values.nbytes, self.stream)
        self.wait()
        return values

    def rate(self, moved: int, enqueue: Enqueue, seconds: float) -> float:
        """Bytes per second of the best of five batches."""
        enqueue()
        self.wait()
        once = seconds_of(enqueue, 3, self.wait) / 3
        calls = max(3, min(500, int(seconds / once)))
        return moved * calls / min(seconds_of(enqueue, calls, self.wait) for _ in range(5))


def random_elements(dtype: str, count: int) -> np.ndarray:
    """Ordinary numbers of a floating dtype, as bytes."""
    values = np.random.default_rng(5).normal(size=count).astype(np.float32)
    target = np.empty(count * DTYPES[dtype].size, np.uint8)
    _core.cast(DTYPES[dtype], target, DTYPES["float32"], values)
    return target


def cases(gpu: Gpu, elements: dict[str, np.ndarray]) -> list[Case]:
    """All kernels that are measured; buffers 0 and 1 hold elements, 2 encoded memory, 3 the
    result."""
    kernels, stream = gpu.kernels, gpu.stream
    first, second, block, result = gpu.buffers
    zeros = np.zeros(elements["float32"].size // 4, np.float32)
    found = []

    def reduction(dtype: str) -> Case:
        kind, size = DTYPES[dtype], DTYPES[dtype].size

        def host(count: int) -> np.ndarray:
            values = elements[dtype][: count * size]
            target = np.empty_like(values)
            _core.reduce(kind, _core.ReduceOp.sum, target, [values, values])
            return target

        return Case(
            f"sum of 2, {dtype}",
            dtype,
            lambda count: 3 * size * count,
            lambda count: kernels.reduce(
                kind, _core.ReduceOp.sum, result, [first, second], count, stream
            ),
            host,
            result,
        )

    def conversion(source: str, to: str) -> Case:
        a, b = DTYPES[source], DTYPES[to]

        def host(count: int) -> np.ndarray:
            target = np.empty(count * b.size, np.uint8)
            _core.cast(b, target, a, elements[source][: count * a.size])
            return target

        return Case(
            f"cast {source} to {to}",
            source,
            lambda count: (a.size + b.size) * count,
            lambda count: kernels.cast(b, result, a, first, count, stream),
            host,
            result,
        )

    def encoder(codec: str, dtype: str, residual: int) -> Case:
        kind, size = DTYPES[dtype], DTYPES[dtype].size

        def host(count: int) -> np.ndarray:
            target = np.empty(_core.codec_capacity(codec, kind, count), np.uint8)
            kept = np.zeros(count, np.float32) if residual else None
            _core.codec_encode(codec, kind, target, elements[dtype][: count * size], kept)
            return target

        def moved(count: int) -> int:
            return (size + 8 * bool(residual)) * count + _core.codec_capacity(codec, kind, count)

        return Case(
            f"encode{' with residual' if residual else ''} {codec}, {dtype}",
            dtype,
            moved,
            lambda count: kernels.encode(codec, kind, block, first, residual, count, stream),
            host,
            block + HEADER,
            lambda count: gpu.write(residual, zeros[:count]) if residual else None,
            held_to_target=not residual and not codec.startswith("topk"),
        )

    def adder(codec: str, dtype: str) -> Case:
        kind, size = DTYPES[dtype], DTYPES[dtype].size

        def host(count: int) -> np.ndarray:
            values = elements[dtype][: count * size]
            encoded = np.empty(_core.codec_capacity(codec, kind, count), np.uint8)
            _core.codec_encode(codec, kind, encoded, values)
            target = np.empty_like(values)
            _core.codec_sum(codec, kind, target, values, [encoded])
            return target

        return Case(
            f"decode and add {codec}, {dtype}",
            dtype,
            lambda count: 2 * size * count + _core.codec_capacity(codec, kind, count),
            lambda count: kernels.decode(codec, kind, result, first, [block], count, stream),
            host,
            result,
            lambda count: kernels.encode(codec, kind, block, first, 0, count, stream),
            held_to_target=not codec.startswith("topk"),
        )

    def lossless(dtype: str) -> list[Case]:
        kind, size = DTYPES[dtype], DTYPES[dtype].size

        @cache
        def encoded(count: int) -> np.ndarray:
            target = np.empty(_core.codec_capacity("lossless", kind, count), np.uint8)
            values = elements[dtype][: count * size]
            return target[: _core.codec_encode("lossless", kind, target, values)]

        def moved(count: int) -> int:
            return size * count + encoded(count).size

        def encode(count: int) -> None:
            kernels.encode("lossless", kind, block, first, 0, count, stream)

        def decode(count: int) -> None:
            kernels.decode("lossless", kind, result, 0, [block], count, stream)

        def host(count: int) -> np.ndarray:
            return elements[dtype][: count * size]

        return [
            Case(f"encode lossless, {dtype}", dtype, moved, encode, encoded, block + HEADER),
            Case(f"decode lossless, {dtype}", dtype, moved, decode, host, result, encode),
        ]

    for dtype in elements:
        found.append(reduction(dtype))
    for pair in [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16")]:
        found.append(conversion(*pair))
    found += [conversion("float16", "float8_e4m3fn"), conversion("bfloat16", "float8_e5m2")]
    for codec in CODECS:
        for dtype in elements if codec not in ("bf16", "fp16") else ["float32"]:
            found += [encoder(codec, dtype, 0), encoder(codec, dtype, result), adder(codec, dtype)]
    for dtype in elements:
        found += lossless(dtype)
    return found


def measure(gpu: Gpu, bytes_each: int, seconds: float, only: str) -> list[dict[str, object]]:
    count = bytes_each // 4 // 2048 * 2048  # elements of the largest dtype, whole groups
    elements = {name: random_elements(name, count) for name in ("float32", "bfloat16", "float16")}
    rows: list[dict[str, object]] = []
    written = ""
    for case in cases(gpu, elements):
        if only not in case.name:
            continue
        if written != case.dtype:
            written = case.dtype
            for buffer in gpu.buffers[:2]:
                gpu.write(buffer, elements[written])
        checked = min(CHECKED, count)
        case.prepare(checked)
        case.device(checked)
        want = case.host(checked)
        if not np.array_equal(gpu.read(case.result, np.empty_like(want)), want):
            raise SystemExit(f"{case.name}: the device and the host differ")
        size = DTYPES[case.dtype].size * count
        copy = partial(gpu.device.copy, gpu.buffers[3], gpu.buffers[1], size, gpu.stream)
        case.prepare(count)
        before = gpu.rate(2 * size, copy, seconds)
        rate = gpu.rate(case.moved(count), partial(case.device, count), seconds)
        after = gpu.rate(2 * size, copy, seconds)
        ratio = rate / max(before, after)
        rows.append(
            {
                "kernel": case.name,
                "elements": count,
                "bytes_per_second": rate,
                "copy_bytes_per_second": max(before, after),
                "ratio": ratio,
                "target": TARGET if case.held_to_target else None,
            }
        )
        mark = "" if not case.held_to_target or ratio >= TARGET else "  below target"
        print(f"{case.name:48}{rate / 1e9:9.0f} GB/s {ratio:6.2f} of copy{mark}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vendor", default="nvidia")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of each of four buffers")
    parser.add_argument("--seconds", type=float, default=0.05, help="for each batch")
    parser.add_argument("--only", default="", help="kernels with this in their name")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    try:
        gpu = Gpu(arguments.vendor, arguments.device, arguments.bytes)
    except _core.VendorError as error:
        print(f"no device to measure: {error}")
        return 2
    print(f"{gpu.device.description}; {gpu.kernels.description}")
    rows = measure(gpu, arguments.bytes, arguments.seconds, arguments.only)
    if arguments.output:
        report = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": gpu.device.name,
            "compiler": gpu.kernels.description.split(" (")[0],
            "rows": rows,
        }
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
