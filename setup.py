"""Builds hetcomm's native parts with CMake; everything else is in pyproject.toml."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def torch_root() -> Path | None:
    """The torch that will be used: the installed one, also when pip builds in isolation from it."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0])
    installed = Path(sysconfig.get_path("platlib")) / "torch"
    return installed if (installed / "__init__.py").exists() else None


class CMakeBuild(build_ext):
    """Runs CMake once; libhetcomm, _core and, if torch is installed, _torch land in the package."""

    def run(self) -> None:
        source = Path(__file__).parent.resolve()
        package = Path(self.get_ext_fullpath("hetcomm._core")).parent.resolve()
        package.mkdir(parents=True, exist_ok=True)
        build = Path(os.environ.get("HETCOMM_BUILD_DIR", source / "build" / "cmake"))
        torch = torch_root()
        if torch is None:
            print("hetcomm: torch is not installed here, so hetcomm._torch is left out", flush=True)
        options = []
        if shutil.which("ninja") and not (build / "CMakeCache.txt").exists():
            options += ["-G", "Ninja"]
        # Compiles again only what changed, also in a fresh clone. It keeps no object that was made
        # with precompiled headers.
        if cache := shutil.which("ccache"):
            options += [f"-DCMAKE_CXX_COMPILER_LAUNCHER={cache}"]
            options += ["-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        subprocess.run(
            [
                "cmake",
                "-S",
                str(source),
                "-B",
                str(build),
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DPython_EXECUTABLE={sys.executable}",
                f"-DHETCOMM_OUTPUT={package}",
                f"-DHETCOMM_BUILD_TORCH={'OFF' if torch is None else 'ON'}",
                f"-DHETCOMM_TORCH_ROOT={torch or ''}",
                *options,
            ],
            check=True,
        )
        subprocess.run(["cmake", "--build", str(build), "--parallel", jobs], check=True)


setup(
    ext_modules=[Extension("hetcomm._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
