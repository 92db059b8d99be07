"""NVIDIA's own libraries of several versions, on a machine without a driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import vendor_wheels as wheels

pytestmark = pytest.mark.needs("vendors' wheels")
no_driver = pytest.mark.needs("absence of NVIDIA's driver")
PRINT = """
from hetcomm import _core
try:
    print(_core.{call})
except _core.Error as error:
    print(type(error).__name__, error)
"""
OPEN = PRINT.format(call='Device.open("nvidia", 0).description')
VERSION = PRINT.format(call='ccl_version("nvidia")')
KERNEL = "cast_kernel<hetcomm::Float32, hetcomm::Float16>"
COMPILE = PRINT.format(call=f'compile_kernel("nvidia", "sm_80", "{KERNEL}")')


def printed(program: str, *paths: Path, **environment: str) -> str:
    """The output of a new process. paths: folders with wheels, before all others."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HETCOMM_")}
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**kept, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def together(folder: Path, *rows: str) -> Path:
    """A folder of packages with the libraries of several rows."""
    for number, row in enumerate(rows):
        for library in wheels.place(row).glob("nvidia/*/lib/*.so*"):
            link = folder / "nvidia" / f"{number}{library.parts[-3]}" / "lib" / library.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(library)
    return folder


@no_driver
@pytest.mark.parametrize("version", wheels.CUDA)
def test_a_runtime_without_a_driver_says_so(version: str) -> None:
    library = wheels.library(f"CUDA {version}", "libcudart.so")
    text = printed(OPEN, HETCOMM_CUDA_LIBRARY=str(library))
    assert text.startswith("VendorError expected an accelerator of vendor nvidia; got "), text
    assert "cudaGetDeviceCount" in text and "CUDA driver" in text and str(library) in text


@no_driver
@pytest.mark.parametrize("versions", [("11.8", "12.9", "13.5"), ("13.5", "12.9", "11.8")])
def test_the_newest_runtime_of_several_wheels_is_taken(
    versions: tuple[str, ...], tmp_path: Path
) -> None:
    folder = together(tmp_path, *(f"CUDA {version}" for version in versions))
    text = printed(OPEN, folder)
    assert "libcudart.so.13" in text, text
    assert str(tmp_path) in text and "lacks the symbols" not in text


@pytest.mark.parametrize("version", wheels.NCCL)
def test_nccl_has_all_functions(version: str) -> None:
    library = wheels.library(f"NCCL {version}", "libnccl.so")
    text = printed(VERSION, HETCOMM_NCCL_LIBRARY=str(library))
    assert text.startswith(f"NCCL {version}.") and str(library) in text, text


def test_nccl_of_a_wheel_is_found(tmp_path: Path) -> None:
    assert "2.28.9" in printed(VERSION, together(tmp_path, "NCCL 2.28"))


@pytest.mark.parametrize("version", wheels.CUDA)
def test_the_compiler_of_a_wheel_is_found(version: str, tmp_path: Path) -> None:
    text = printed(COMPILE, together(tmp_path, f"CUDA {version}"))
    assert text.startswith("(b'\\x7fELF"), text[:500]


@pytest.mark.parametrize("version", wheels.CUDA)
def test_the_compiler_changes_no_locale(version: str, tmp_path: Path) -> None:
    codeset = "import locale; print(locale.nl_langinfo(locale.CODESET))"
    program = f"{codeset}\n{COMPILE}\n{codeset}"
    text = printed(program, together(tmp_path, f"CUDA {version}"), LC_ALL="C.UTF-8")
    before, *_, after = text.splitlines()
    assert (before, after) == ("UTF-8", "UTF-8")
