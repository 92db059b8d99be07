"""What the emulated Arm machine needs: qemu, a cross-compiler, and a Python with packages for Arm.

The first two and the interpreter are packages of the distribution, the others wheels of PyPI. All
are unpacked into a cache folder. Nothing is installed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import debian

DPKG = Path("/var/lib/dpkg/status")
TOOLS = ("qemu-user-static", "g++-aarch64-linux-gnu")
ROOT = ("python3", "libstdc++6", "libatomic1")  # with all that they need
HEADERS = "lib{python}-dev"  # alone: what it needs has headers of the system
PLATFORMS = (
    "manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux_2_17", "manylinux2014",
)  # fmt: skip
WHEELS = (
    "numpy", "typer", "rich", "matplotlib", "pyroute2", "pybind11", "libucx-cu13", "pytest",
    "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest", "setuptools",
)  # fmt: skip
# The newest one whose wheel for Arm needs no library of NVIDIA's. pip would take what it needs on
# this machine's processor, so that is named here.
TORCH = "torch==2.10.0"
TORCH_NEEDS = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec")


@dataclass(frozen=True)
class Machine:
    """Paths of the emulated machine. `python` runs as an ordinary program of this machine."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "python/bin/python"

    @property
    def tools(self) -> Path:
        return self.folder / "tools"

    @property
    def qemu(self) -> Path:
        return self.tools / "usr/bin/qemu-aarch64-static"

    @property
    def compiler(self) -> Path:
        return self.tools / "usr/bin/aarch64-linux-gnu-g++"

    @property
    def disassembler(self) -> Path:
        return self.tools / "usr/bin/aarch64-linux-gnu-objdump"

    def for_tools(self) -> dict[str, str]:
        """The environment in which the compiler and its tools find their libraries."""
        folders = map(str, self.tools.glob("usr/lib/*-linux-gnu"))
        return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}

    @property
    def root(self) -> Path:
        """Where emulated programs find their libraries."""
        return self.folder / "root"

    @property
    def torch(self) -> Path:
        """The folder to which the path of Python must lead for torch to be there."""
        return self.folder / "torch"


def machine() -> Machine:
    """The cached machine. Makes it first: 330 MB to download. Raises debian.Unavailable."""
    recipe = hashlib.sha256(Path(__file__).read_bytes())
    name = f"arm-{recipe.hexdigest()[:12]}"
    return Machine(debian.cached(name, lambda work: _make(work, name)))


def _make(work: Path, name: str) -> Path:
    made = work / "made"
    processor = debian.run("dpkg", "--print-architecture").strip()
    host = debian.Architecture(work / "host", processor, DPKG)
    debian.unpack(host.with_dependencies(*TOOLS), made / "tools")
    for program in (made / "tools/usr/bin").glob("qemu-*"):
        if program.name != "qemu-aarch64-static":
            program.unlink()
    arm = debian.Architecture(work / "arm", "arm64")
    debian.unpack(arm.with_dependencies(*ROOT), made / "root")
    python = next((made / "root/usr/bin").glob("python3.[0-9]*")).name
    headers = debian.download([HEADERS.format(python=python)], work / "headers", *arm.options)
    debian.unpack(headers, made / "root")
    final = work.parent / name
    site = made / f"python/lib/{python}/site-packages"
    _install(python, site, *WHEELS)
    _install(python, made / "torch", "--no-deps", TORCH)
    _install(python, made / "torch", *TORCH_NEEDS)
    (made / "python/bin").mkdir()
    (made / "python/pyvenv.cfg").write_text(f"home = {final}/root/usr/bin\n")
    program = made / "python/bin/python"
    machine = Machine(final)
    program.write_text(
        "#!/bin/sh\n"
        f"exec {machine.qemu} -L {machine.root} -0 {machine.python} "
        f'{machine.root}/usr/bin/{python} "$@"\n'
    )
    program.chmod(0o755)
    return made


def _install(python: str, folder: Path, *packages: str) -> None:
    """Installs wheels for Arm into a folder. `packages` are words for pip."""
    version = python.removeprefix("python")
    platforms = [word for one in PLATFORMS for word in ("--platform", f"{one}_aarch64")]
    debian.run(
        sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", *platforms,
        "--python-version", version, "--target", folder, *packages,
    )  # fmt: skip
