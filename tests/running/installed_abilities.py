"""Abilities that installations give: commands, packages, libraries, headers, instruction sets."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from functools import partial
from pathlib import Path

import debian
import memory_model
import vendor_wheels as wheels
from abilities import lacking, module, probe, python, tool
from decimal_comma import locale_variables


@probe("emulated RDMA")
def emulated_rdma() -> str:
    """The virtual machine of tests/rdma, which takes minutes."""
    if os.environ.get("HETCOMM_TEST_RDMA") != "full":
        return "`make test-rdma` runs it"
    return tool("qemu-system-x86_64") or tool("rdma") or tool("tc")


@probe("emulated Arm")
def emulated_arm() -> str:
    """hetcomm for 64-bit Arm in build/arm, and qemu to run it."""
    return "" if os.environ.get("HETCOMM_TEST_ARM") == "full" else "`make test-arm` runs it"


@probe("compiler")
def compiler() -> str:
    """For C and C++: CC and CXX, or gcc and g++."""
    return tool(os.environ.get("CC", "gcc")) or tool(os.environ.get("CXX", "g++"))


@probe("decimal comma")
def decimal_comma() -> str:
    """A locale with one: localedef, and glibc's sources of locales."""
    if missing := tool("localedef"):
        return missing
    try:
        with tempfile.TemporaryDirectory() as folder:
            locale_variables(Path(folder))
    except FileNotFoundError as error:
        return str(error)
    return ""


@probe("relacy")
def relacy() -> str:
    """A model checker of C++'s memory model."""
    try:
        memory_model.headers()
    except debian.Unavailable as error:
        return str(error)
    return ""


@probe("NVRTC")
def nvrtc() -> str:
    if "HETCOMM_NVRTC_LIBRARY" in os.environ:
        return ""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if list(Path(place).glob("*/lib/libnvrtc.so.*")):
            return ""
    return "pip install nvidia-cuda-nvrtc, or set HETCOMM_NVRTC_LIBRARY"


@probe("vendors' wheels")
def vendor_wheels() -> str:
    return wheels.missing()


def _instruction_set(name: str) -> str:
    found = python("from hetcomm import _core; print(_core.instruction_set())", HETCOMM_ISA=name)
    if found.returncode == 0 and found.stdout.strip() == name:
        return ""
    if "HETCOMM_ISA: expected an instruction set of this processor" not in found.stderr:
        raise RuntimeError(f"HETCOMM_ISA={name}: {found.stdout}{found.stderr}")
    return "this processor has none"


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@probe("torch's headers")
def torch_headers() -> str:
    if why := lacking("torch"):
        return why
    header = _torch_folder() / "include/torch/csrc/distributed/c10d/Backend.hpp"
    return "" if header.exists() else f"{header} does not exist"


@probe("emulated vendors")
def emulated_vendors() -> str:
    import hetcomm

    folder = Path(hetcomm.__file__).parent
    names = [f"libhetcomm_emulated_{vendor}.so" for vendor in ("nvidia", "amd")]
    absent = [name for name in names if not (folder / name).exists()]
    return f"not built: {', '.join(absent)}" if absent else ""


@probe("mpiexec")
def mpiexec() -> str:
    """MPICH's mpiexec beside this Python starts two ranks."""
    if why := lacking("mpi4py"):
        return why
    found = shutil.which("mpiexec", path=os.path.dirname(sys.executable))
    if found is None:
        return "no mpiexec beside Python: pip install mpich"
    command = [found, "-launcher", "fork", "-iface", "lo", "-n", "2", sys.executable, "-c"]
    program = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"
    environment = {**os.environ, "LD_PRELOAD": ""}  # a sanitizer
    done = subprocess.run(
        [*command, program], env=environment, capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(f"MPI does not run: {done.stdout}{done.stderr}")
    return ""


@probe("GPU")
def gpu() -> str:
    """torch can use the GPU."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
        return "no driver of a GPU is loaded"
    if why := lacking("torch"):
        return why
    found = python("import torch; print(torch.cuda.is_available(), torch.__version__)")
    if found.returncode != 0:
        raise RuntimeError(found.stderr)
    seen, version = found.stdout.split()
    return "" if seen == "True" else f"torch {version} sees none"


@probe("CUDA runtime without a driver")
def driverless_runtime() -> str:
    if why := lacking("absence of NVIDIA's driver"):
        return why
    found = sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so.1[1-9]"))
    if not found:
        return "no libcudart below /usr/local/cuda*/lib64"
    try:
        ctypes.CDLL(str(found[-1]))
    except OSError as error:  # such as a library for another processor
        return str(error)
    return ""


@probe("absence of NVIDIA's driver")
def no_driver() -> str:
    return "this machine has one" if Path("/dev/nvidiactl").exists() else ""


@probe("absence of HIP")
def no_hip() -> str:
    found = ctypes.util.find_library("amdhip64")
    return f"this machine has {found}" if found else ""


def include_folders() -> list[Path]:
    """Folders that may have headers of the vendors; CPATH adds to them."""
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "ROCM_PATH")]
    candidates = [Path(home) / "include" for home in homes if home]
    candidates += [Path("/usr/local/cuda/include"), Path("/opt/rocm/include")]
    return [one for one in [*candidates, *sorted(wheels.glob("*/include"))] if one.exists()]


def _header(name: str) -> str:
    if why := lacking("compiler"):
        return why
    options = [option for folder in include_folders() for option in ("-I", str(folder))]
    done = subprocess.run(
        [os.environ.get("CXX", "g++"), *options, "-E", "-x", "c++", "-"],
        input=f"#if __has_include(<{name}>)\nfound\n#endif\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return "" if "found" in done.stdout.split() else f"no header {name}"


for command in ("nvcc", "taskset"):
    probe(command)(partial(tool, command))
for package in ("ml_dtypes", "mpi4py", "torch"):
    probe(package)(partial(module, package))
probe("CuPy")(partial(module, "cupy"))
for instructions in ("avx2", "avx512"):
    probe(instructions)(partial(_instruction_set, instructions))
for library, header in {
    "CUDA": "cuda_runtime.h",
    "HIP": "hip/hip_runtime_api.h",
    "NCCL": "nccl.h",
    "RCCL": "rccl/rccl.h",
}.items():
    probe(f"{library}'s headers")(partial(_header, header))
