"""Machine, versions, and the usable parts of this machine."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

from report import Report, parser

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "numpy", "libucx-cu13", "libucx-cu12",
            "nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-cuda-nvrtc", "pytest")  # fmt: skip
GPU = ("name", "driver_version", "memory.total", "pcie.link.gen.max", "pcie.link.width.max",
       "compute_mode", "clocks.max.sm", "clocks.max.memory")  # fmt: skip


def output(*command: str) -> str:
    """The output of a program; empty if it is missing or fails."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def torch_facts(report: Report) -> str:
    """Why torch.cuda cannot be used; empty if it can."""
    try:
        import torch
    except Exception as error:
        return f"torch cannot be imported: {error}"
    report.fact("torch", torch.__version__)
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    report.fact("cuda of torch", torch.version.cuda)
    report.fact("nccl of torch", ".".join(map(str, torch.cuda.nccl.version())))
    properties = torch.cuda.get_device_properties(0)
    report.fact("gpu", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    return ""


def hetcomm_facts(report: Report, emulated: bool) -> str:
    """Why hetcomm sees no GPU; empty if it does."""
    from hetcomm import _core

    report.fact("hetcomm", str(Path(_core.__file__).parent))
    report.fact("ucx", _core.ucx_version())
    if emulated:
        return "an emulated run"
    try:
        device = _core.Device.open("nvidia", 0)
        report.fact("device", device.description)
        report.fact("nccl", _core.ccl_version("nvidia"))
    except _core.Error as error:
        return str(error)
    return ""


def two_ranks() -> str:
    """How two ranks share the GPU. NCCL refuses two of one host."""
    return (
        "each rank has its own NCCL_HOSTID, so NCCL takes the ranks to be on different hosts and "
        "talks over sockets on the loopback"
    )


def main() -> None:
    arguments = parser().parse_args()
    report = Report(arguments.folder)
    from hetcomm.demo.machine import describe_machine

    report.fact("machine", describe_machine())
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    report.fact("packages", versions)
    report.fact("two ranks", two_ranks())
    report.fact("python", sys.version.split()[0])
    report.fact("commit", output("git", "rev-parse", "HEAD"))
    report.fact("changed files", len(output("git", "status", "--porcelain").splitlines()))
    if smi := shutil.which("nvidia-smi"):
        query = output(smi, f"--query-gpu={','.join(GPU)}", "--format=csv,noheader")
        report.fact("nvidia-smi", dict(zip(GPU, query.split(", "), strict=False)))
    for compiler in ("c++", "nvcc", "cmake"):
        report.fact(compiler, output(compiler, "--version").partition("\n")[0])
    lacking = {"hetcomm": hetcomm_facts(report, arguments.emulated), "torch": torch_facts(report)}
    report.fact("lacking", lacking)
    if not arguments.emulated and lacking["hetcomm"]:
        report.failure(f"hetcomm cannot use a GPU here: {lacking['hetcomm']}")


if __name__ == "__main__":
    main()
