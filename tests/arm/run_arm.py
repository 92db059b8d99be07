"""Builds hetcomm for 64-bit Arm and runs tests of that build under qemu.

    python tests/arm/run_arm.py [argument of pytest ...]

Without arguments it runs a sample of TESTS, then the tests on this machine that belong to them.

qemu translates the programs for this machine's processor. So it proves what an Arm processor
computes and how programs for it are built, and nothing about its speed or its order of memory.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "running")]

import arm_files  # noqa: E402
import debian  # noqa: E402
import memory_model  # noqa: E402

BUILD = ROOT / "build/arm"
PACKAGE = BUILD / "python/hetcomm"
TESTS = ("tests/plan", "tests/core", "tests/arrays")
# Tests of memory, which run once more with pages of 64 KiB, as some systems for Arm have.
MEMORY = (
    "tests/core/test_island.py", "tests/core/test_island_memory.py",
    "tests/core/test_island_shared.py", "tests/core/test_shared_memory.py",
)  # fmt: skip
LARGE_PAGES = {"QEMU_PAGESIZE": "65536"}


def build(machine: arm_files.Machine) -> None:
    """Cross-builds into BUILD. Its Python package has this tree's modules."""
    (python,) = headers_of(machine).glob("python3.*")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = machine.for_tools() | {"PATH": path}
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": machine.compiler,
        "CMAKE_CXX_FLAGS": compiler_flags(machine),
        "Python_EXECUTABLE": machine.python,
        "Python_INCLUDE_DIR": python,
        "HETCOMM_OUTPUT": PACKAGE,
        "HETCOMM_TORCH_ROOT": machine.torch / "torch",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    for words in (
        ["-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *options],
        ["--build", str(BUILD), "--parallel", jobs],
    ):
        subprocess.run(["cmake", *words], env=variables, check=True)
    for part in (ROOT / "hetcomm").iterdir():
        linked = PACKAGE / part.name
        is_module = part.is_dir() and part.name != "__pycache__"
        if is_module or part.suffix in (".py", ".pyi", ".toml"):
            linked.unlink(missing_ok=True)
            linked.symlink_to(part)
    record_installation()


def record_installation() -> None:
    """Makes the package an installed distribution, as a wheel would: torch finds the backend by its
    entry point. Without one, importing hetcomm imports torch."""
    known = importlib.metadata.distribution("hetcomm")
    record = PACKAGE.parent / f"hetcomm-{known.version}.dist-info"
    record.mkdir(exist_ok=True)
    for name in ("METADATA", "entry_points.txt"):
        (record / name).write_text(known.read_text(name) or "")


def headers_of(machine: arm_files.Machine) -> Path:
    return machine.root / "usr/include"


def compiler_flags(machine: arm_files.Machine) -> str:
    return f"--sysroot={machine.tools} -isystem {headers_of(machine)}"


def make_compiler(machine: arm_files.Machine) -> Path:
    """Writes a script that tests can use as CXX."""
    made = BUILD / "g++"
    libraries = machine.for_tools()["LD_LIBRARY_PATH"]
    made.write_text(
        "#!/bin/sh\n"
        f'LD_LIBRARY_PATH={libraries} exec {machine.compiler} {compiler_flags(machine)} "$@"\n'
    )
    made.chmod(0o755)
    return made


def environment(*folders: Path) -> dict[str, str]:
    """Of a program of the emulated machine that finds modules in these folders, too. The current
    folder has a package for this machine, and does not count."""
    found = [PACKAGE.parent, *folders]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, found)), "PYTHONSAFEPATH": "1"}
    return os.environ | variables


def main() -> int:
    if platform.machine() != "x86_64":
        print(f"this machine is {platform.machine()}: `make test` runs the tests on it")
        return 2
    try:
        machine = arm_files.machine()
    except debian.Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    begin = time.monotonic()
    build(machine)
    print(f"built for {platform.machine()} to run as aarch64: {time.monotonic() - begin:.0f} s")
    emulated = [machine.python, "-P", "-m", "pytest", "-n", str(os.cpu_count() or 1)]
    found = environment(machine.torch, ROOT / "tests/arrays")  # whose programs have modules there
    variables = found | {"CXX": str(make_compiler(machine))}
    if len(sys.argv) > 1:
        return subprocess.run([*emulated, *sys.argv[1:]], cwd=ROOT, env=variables).returncode
    memory_model.headers(download=True)
    here = Path(sys.executable).with_name("pytest")
    outcomes = []
    for title, command, settings in (
        ("on Arm", [*emulated, "--sample", *TESTS], variables),
        ("on Arm with pages of 64 KiB", [*emulated, *MEMORY], variables | LARGE_PAGES),
        ("ranks of both processors in one job, and orders of memory",
         [here, "tests/arm", "tests/ordering"], os.environ | {"HETCOMM_TEST_ARM": "full"}),
    ):  # fmt: skip
        print(f"--- {title}", flush=True)
        outcomes.append(subprocess.run(command, cwd=ROOT, env=settings).returncode)
    return max(outcomes)


if __name__ == "__main__":
    sys.exit(main())
