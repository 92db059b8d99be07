"""Which libraries hetcomm loads here: CUDA's runtime and driver, NVRTC, NCCL, and UCX with CUDA.

Each is loaded in a process of its own, and the answer names the version and the files.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ranks import Rank
from report import Report, parser

from hetcomm import _core


def runtime() -> str:
    return str(_core.Device.open("nvidia", 0).description)


def compiler() -> str:
    return str(_core.describe_compiler("nvidia"))


def kernels() -> str:
    return str(_core.DeviceKernels.of(_core.Device.open("nvidia", 0)).description)


def native_library() -> str:
    return str(_core.ccl_version("nvidia"))


def messages() -> str:
    version = str(_core.ucx_version())
    if not version[:1].isdigit():
        raise SystemExit(version)
    info = _core.probe_rank()
    info.vendor = "nvidia"
    libraries = _core.probe_device(info).libraries
    return f"UCX {version}; {libraries.get('messages', libraries['runtime'])}"


# The question, the files that count, whether an emulated run asks, and what to do.
QUESTIONS: dict[str, tuple[Callable[[], str], str, bool, str]] = {
    "runtime and driver": (
        runtime, r"libcuda|emulated", True,
        "install the driver, and a CUDA runtime: docs/hardware.md; HETCOMM_CUDA_LIBRARY names one",
    ),
    "NVRTC": (
        compiler, "libnvrtc", False,
        "pip install nvidia-cuda-nvrtc; HETCOMM_NVRTC_LIBRARY names one",
    ),
    "kernels": (
        kernels, r"libnvrtc|libcuda", True,
        "HETCOMM_KERNELS=0 lets the host reduce and encode; the message tells why",
    ),
    "NCCL": (
        native_library, r"libnccl|emulated", True,
        "pip install nvidia-nccl-cu13; HETCOMM_NCCL_LIBRARY names one",
    ),
    "UCX with CUDA": (
        messages, r"libuc[pst]", True,
        "pip install libucx-cu13, which has libuct_cuda.so; else messages are staged",
    ),
}  # fmt: skip


def answer(question: str) -> None:
    """Prints the answer as JSON."""
    ask, pattern, _, _ = QUESTIONS[question]
    text = ask()
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    files = sorted(os.path.realpath(path) for path in mapped if re.search(pattern, Path(path).name))
    print(json.dumps({"answer": text, "files": files}))


def main() -> None:
    parsed = parser()
    parsed.add_argument("--question", default="")
    arguments = parsed.parse_args()
    if arguments.question:
        return answer(arguments.question)
    report = Report(arguments.folder)
    environment = Rank(True).environment(0, 1, arguments.folder, arguments.emulated)
    asked = {
        question: subprocess.Popen(
            [sys.executable, *sys.argv, "--question", question], env=os.environ | environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for question, (_, _, emulated, _) in QUESTIONS.items()
        if emulated or not arguments.emulated
    }  # fmt: skip
    answers = {}
    for question, process in asked.items():
        remedy = QUESTIONS[question][-1]
        try:
            printed, errors = process.communicate(timeout=arguments.bound / 2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            report.failure(f"{question}: no answer within {arguments.bound / 2:.0f} s", remedy)
            continue
        if process.returncode != 0:
            reason = errors.strip().splitlines()[-1:] or [f"ended with {process.returncode}"]
            report.failure(f"{question}: {reason[0]}", remedy)
            continue
        answers[question] = json.loads(printed.splitlines()[-1])
        print(f"{question}: {answers[question]['answer']}", flush=True)
        report.fact("loaded", answers)


if __name__ == "__main__":
    main()
