"""What this machine can do for the tests: each ability is probed once, here and nowhere else.

A probe returns "" if the ability is there, else why not. A probe raises if it fails for a reason
that it does not expect: then nobody knows what the machine lacks, and the run fails.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
NEWNS, NEWUSER, NEWPID, NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
FORBIDDEN = {errno.EPERM, errno.ENOSPC, errno.ENOSYS, errno.EINVAL, errno.EACCES}

probes: dict[str, Callable[[], str]] = {}
_lacking: dict[str, str] = {}
errors: dict[str, str] = {}  # of probes


def probe(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def register(function: Callable[[], str]) -> Callable[[], str]:
        probes[name] = function
        return function

    return register


def lacking(name: str) -> str:
    """Why this machine lacks the ability; "" if it has the ability. Raises if its probe failed."""
    if name not in probes:
        raise LookupError(f"expected an ability of {sorted(probes)}; got {name!r}")
    if name not in _lacking:
        _lacking[name] = ""
        try:
            _lacking[name] = probes[name]()
        except Exception:
            errors[name] = f"the probe of {name!r} failed: {traceback.format_exc()}"
    if name in errors:
        raise RuntimeError(errors[name])
    return _lacking[name]


def need(name: str) -> None:
    """Skips the test, or at import the whole module, unless this machine has the ability."""
    if why := lacking(name):
        pytest.skip(f"needs {name}: {why}", allow_module_level=True)


def survey(names: Iterable[str] = probes) -> dict[str, str]:
    """Probes abilities: why each is lacking, "" where it is there or its probe failed."""
    for name in names:
        with suppress(RuntimeError):
            lacking(name)
    return _lacking


def take(found: dict[str, str], failed: dict[str, str]) -> None:
    """What another process of this run has found."""
    _lacking.update(found)
    errors.update(failed)


def _python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def _unshare(flags: int, user: int = 0) -> int:
    """0, or the errno of unshare(flags) in a child, as `user` if this one is root."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            if user and os.geteuid() == 0:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            libc = ctypes.CDLL(None, use_errno=True)
            code = 0 if libc.unshare(flags) == 0 else ctypes.get_errno()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _forbidden(flags: int, user: int = 0) -> str:
    own = NEWUSER if user or os.geteuid() != 0 else 0
    code = _unshare(flags | own, user)
    if code == 0:
        return ""
    if code not in FORBIDDEN:
        raise OSError(code, f"unshare({flags:#x}) failed with {os.strerror(code)}")
    return f"the kernel refuses them: {errno.errorcode[code]}"


TWO_HOSTS = """
from hetcomm.emulate import Cluster, ClusterError, Host, Nic, run
try:
    cluster = Cluster((Host("red0", 1, (Nic(),)), Host("blue0", 1, (Nic(),))))
    print(*run(cluster, ["true"], timeout=60).notes)
except ClusterError as error:
    print(error.key, error.got, error, sep="\\n")
    raise SystemExit(77)
"""


@cache
def _two_hosts() -> subprocess.CompletedProcess[str]:
    return _python(TWO_HOSTS)


@probe("namespaces")
def namespaces() -> str:
    """Emulated clusters of two hosts."""
    done = _two_hosts()
    if done.returncode == 0:
        return ""
    if done.returncode != 77:
        raise RuntimeError(done.stdout + done.stderr)
    key, got, text = done.stdout.split("\n", 2)
    if key != "namespaces" or got.split()[0] not in {errno.errorcode[one] for one in FORBIDDEN}:
        raise RuntimeError(f"expected a refusal to make namespaces; got {text}")
    return text.strip()


@probe("user namespaces")
def user_namespaces() -> str:
    return _forbidden(NEWNET, NOBODY)


@probe("mount namespaces")
def mount_namespaces() -> str:
    return _forbidden(NEWNS)


@probe("network namespaces")
def network_namespaces() -> str:
    return _forbidden(NEWNET)


@probe("process namespaces")
def process_namespaces() -> str:
    return _forbidden(NEWPID)


@probe("named network namespaces")
def named_namespaces() -> str:
    """Those of `ip netns`."""
    return "only root makes them" if os.geteuid() != 0 else _tool("ip") or _forbidden(NEWNET)


@probe("cubic")
def cubic() -> str:
    """As congestion control of emulated hosts."""
    if why := lacking("namespaces"):
        return why
    said = _two_hosts().stdout.strip()
    if said and "network.congestion" not in said:
        raise RuntimeError(f"expected nothing or a note on network.congestion; got {said}")
    return said


@probe("IPv6")
def ipv6() -> str:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return str(error)
    return ""


def _tool(name: str) -> str:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return "" if shutil.which(name, path=path) else f"no {name} in PATH"


@probe("seccomp filters")
def seccomp_filters() -> str:
    """Of system calls, which a process may set for itself."""
    known = Path("/proc/sys/kernel/seccomp/actions_avail")
    return "" if known.exists() else f"this kernel has no {known}"


@probe("taskset")
def taskset() -> str:
    return _tool("taskset")


@probe("unshare")
def unshare() -> str:
    """The command, and user namespaces for it."""
    return _tool("unshare") or _forbidden(NEWUSER | NEWNET)


@probe("emulated RDMA")
def emulated_rdma() -> str:
    """The virtual machine of tests/rdma, which takes minutes."""
    if os.environ.get("HETCOMM_TEST_RDMA") != "full":
        return "`make test-rdma` runs it"
    return _tool("qemu-system-x86_64") or _tool("rdma") or _tool("tc")


@probe("compiler")
def compiler() -> str:
    """For C and C++: CC and CXX, or gcc and g++."""
    return _tool(os.environ.get("CC", "gcc")) or _tool(os.environ.get("CXX", "g++"))


@probe("nvcc")
def nvcc() -> str:
    return _tool("nvcc")


@probe("NVRTC")
def nvrtc() -> str:
    if "HETCOMM_NVRTC_LIBRARY" in os.environ:
        return ""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if list(Path(place).glob("*/lib/libnvrtc.so.*")):
            return ""
    return "pip install nvidia-cuda-nvrtc, or set HETCOMM_NVRTC_LIBRARY"


def _instruction_set(name: str) -> str:
    found = _python("from hetcomm import _core; print(_core.instruction_set())", HETCOMM_ISA=name)
    if found.returncode == 0 and found.stdout.strip() == name:
        return ""
    if "HETCOMM_ISA: expected an instruction set of this processor" not in found.stderr:
        raise RuntimeError(f"HETCOMM_ISA={name}: {found.stdout}{found.stderr}")
    return "this processor has none"


@probe("avx2")
def avx2() -> str:
    return _instruction_set("avx2")


@probe("avx512")
def avx512() -> str:
    return _instruction_set("avx512")


@probe("x86-64")
def x86() -> str:
    machine = os.uname().machine
    return "" if machine == "x86_64" else f"this machine is {machine}"


def _module(name: str) -> str:
    spec = importlib.util.find_spec(name)  # a folder of that name is no module
    return "" if spec is not None and spec.origin is not None else f"{name} is not installed"


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


@probe("torch")
def torch() -> str:
    return _module("torch")


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


@probe("mpi4py")
def mpi4py() -> str:
    return _module("mpi4py")


@probe("mpiexec")
def mpiexec() -> str:
    """MPICH's beside this Python, which starts two ranks."""
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
    """One that torch uses."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd")):
        return "no driver of a GPU is loaded"
    if why := lacking("torch"):
        return why
    found = _python("import torch; print(torch.cuda.is_available(), torch.__version__)")
    if found.returncode != 0:
        raise RuntimeError(found.stderr)
    seen, version = found.stdout.split()
    return "" if seen == "True" else f"torch {version} sees none"


@probe("CuPy")
def cupy() -> str:
    return _module("cupy")


@probe("CUDA runtime without a driver")
def driverless_runtime() -> str:
    if Path("/dev/nvidiactl").exists():
        return "this machine has an NVIDIA driver"
    found = list(Path("/usr/local").glob("cuda*/lib64/libcudart.so.1[1-9]"))
    return "" if found else "no libcudart below /usr/local/cuda*/lib64"


@probe("absence of HIP")
def no_hip() -> str:
    found = ctypes.util.find_library("amdhip64")
    return f"this machine has {found}" if found else ""


def include_folders() -> list[Path]:
    """Where headers of the vendors may be; CPATH adds to them."""
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


@probe("CUDA's headers")
def cuda_headers() -> str:
    return _header("cuda_runtime.h")


@probe("NCCL's headers")
def nccl_headers() -> str:
    return _header("nccl.h")


@probe("HIP's headers")
def hip_headers() -> str:
    return _header("hip/hip_runtime_api.h")


@probe("RCCL's headers")
def rccl_headers() -> str:
    return _header("rccl/rccl.h")
