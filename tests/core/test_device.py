"""How a vendor's runtime is found, the errors of unusable ones, and streams, events, pools.

Each case runs in a process of its own, because a process keeps the first runtime it loads. See
devices.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import devices
import emulated_vendor
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetcomm import _core

OPEN = """
import ctypes, sys
from hetcomm import _core
for path in sys.argv[3:]:
    ctypes.CDLL(path)
try:
    print("made", _core.Device.open(sys.argv[1], int(sys.argv[2])).description)
except _core.Error as error:
    print(type(error).__name__, error)
"""
VARIABLE = {"nvidia": "HETCOMM_CUDA_LIBRARY", "amd": "HETCOMM_HIP_LIBRARY"}
EMULATED = {VARIABLE[vendor]: str(emulated_vendor.path(vendor)) for vendor in VARIABLE}
# A runtime with every function of the table, but without a device.
FAKE = """
#define FUNCTION(name) int name() {{ return {count_error}; }}
{functions}
const char *cudaGetErrorString(int error) {{ return "why of the fake"; }}
int cudaGetLastError() {{ return 0; }}
int cudaRuntimeGetVersion(int *version) {{ *version = {runtime}; return 0; }}
int cudaDriverGetVersion(int *version) {{ *version = {driver}; return 0; }}
"""

needs_emulated = pytest.mark.needs("emulated vendors")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HETCOMM_")}
    kept |= {key: value for key, value in os.environ.items() if key == "HETCOMM_EMULATED_HOSTILE"}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def open_device(
    vendor: str, index: int = 0, load: Sequence[Path] = (), **environment: str
) -> tuple[str, str]:
    """The output and the log of the program."""
    done = run("-c", OPEN, vendor, str(index), *map(str, load), **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def library(path: Path, source: str, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-shared", "-fPIC", "-w", f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run(
        [*command, "-x", "c", "-", "-x", "none", *options], input=source, text=True, check=True
    )
    return path


def fake(path: Path, *, runtime: int = 13000, driver: int = 13000, count_error: int = 0) -> Path:
    printed, _ = open_device("nvidia", HETCOMM_CUDA_LIBRARY=str(library(path, "int nothing;")))
    own = set(re.findall(r"\b(cuda\w+)\(", FAKE))
    names = {*re.findall(r"\bcuda\w+", printed.splitlines()[1].split("symbols")[1])} - own
    names.add("cudaGetDeviceProperties")
    functions = "\n".join(f"FUNCTION({name})" for name in sorted(names))
    source = FAKE.format(
        functions=functions, runtime=runtime, driver=driver, count_error=count_error
    )
    return library(path, source)


@needs_emulated
@pytest.mark.parametrize("vendor", VARIABLE)
@pytest.mark.parametrize("case", devices.CASES, ids=lambda case: case.__name__)
def test_emulated_devices_open(case: object, vendor: str) -> None:
    name = case.__name__  # type: ignore[attr-defined]
    done = run(devices.__file__, name, vendor, **EMULATED)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_emulated
@pytest.mark.parametrize("vendor", VARIABLE)
def test_a_loaded_kernel_launches_while_the_device_is_busy(vendor: str) -> None:
    waits = {"HETCOMM_EMULATED_HOSTILE": "sync,bound:60"}
    done = run(devices.__file__, "loaded", vendor, **EMULATED, **waits)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_emulated
@pytest.mark.parametrize("vendor", VARIABLE)
def test_description_names_device_and_driver(vendor: str) -> None:
    printed, _ = open_device(vendor, 3, (), **EMULATED)
    assert printed.startswith(f"made emulated {vendor} GPU 3: Emulated {vendor.upper()} GPU, ")
    assert EMULATED[VARIABLE[vendor]] in printed


@needs_emulated
@pytest.mark.parametrize("vendor", VARIABLE)
@pytest.mark.parametrize("index", [-1, 2, 1000])
def test_index_out_of_range_is_rejected(vendor: str, index: int) -> None:
    printed, _ = open_device(vendor, index, (), **EMULATED, HETCOMM_EMULATED_DEVICES="2")
    assert printed.startswith("VendorError expected the index of a device below 2")
    assert f"got {index};" in printed and "HETCOMM_DEVICE" in printed


@needs_emulated
@pytest.mark.parametrize("vendor", VARIABLE)
def test_missing_device_is_an_error(vendor: str) -> None:
    printed, _ = open_device(vendor, 0, (), **EMULATED, HETCOMM_EMULATED_DEVICES="0")
    assert printed.startswith(f"VendorError expected an accelerator of vendor {vendor}; got ")
    assert "(error 100)" in printed and "HETCOMM_VENDOR=cpu" in printed


@needs_emulated
@pytest.mark.parametrize("vendor", VARIABLE)
def test_old_emulated_runtime_is_rejected(vendor: str) -> None:
    printed, _ = open_device(vendor, 0, (), **EMULATED, HETCOMM_EMULATED_FAULT="old_runtime")
    assert re.match(r"VendorError expected (CUDA 11.8|HIP 6.0) or newer; got ", printed)


def test_label_without_devices_is_rejected() -> None:
    printed, _ = open_device("cpu")
    assert printed.startswith("VendorError expected a vendor with device memory (nvidia, amd); got")
    assert '"cpu"' in printed


@pytest.mark.parametrize("vendor", VARIABLE)
def test_setting_with_a_missing_file_is_an_error(tmp_path: Path, vendor: str) -> None:
    missing = str(tmp_path / "libnone.so")
    printed, _ = open_device(vendor, 0, (), **{VARIABLE[vendor]: missing})
    tried = printed.splitlines()[1:-1]
    assert printed.startswith("VendorError") and VARIABLE[vendor] in printed.splitlines()[-1]
    assert len(tried) == 1 and missing in tried[0]


@pytest.mark.needs("absence of HIP")
def test_every_tried_library_is_named() -> None:
    printed, _ = open_device("amd")
    assert printed.startswith("VendorError HIP runtime not found; tried:")
    for name in ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"):
        assert f"\n  {name}: " in printed


def test_library_without_symbols_is_rejected(tmp_path: Path) -> None:
    path = library(tmp_path / "libcudart.so.12", "int cudaSetDevice(int i) { return 0; }")
    printed, _ = open_device("nvidia", HETCOMM_CUDA_LIBRARY=str(path))
    assert f"{path}: lacks the symbols" in printed
    assert " cudaMemcpyAsync" in printed and " cudaSetDevice" not in printed


def test_old_runtime_is_rejected(tmp_path: Path) -> None:
    path = fake(tmp_path / "libcudart.so.11.0", runtime=11070)
    printed, _ = open_device("nvidia", HETCOMM_CUDA_LIBRARY=str(path))
    assert printed.startswith(f"VendorError expected CUDA 11.8 or newer; got CUDA 11.7 from {path}")


@pytest.mark.parametrize(
    ("driver", "error", "remedy"),
    [
        (0, 35, "finds no CUDA driver"),
        (12040, 35, "the driver is made for CUDA 12.4: update it"),
        (13000, 100, 'CUDA_VISIBLE_DEVICES="": name a device there'),
        (13000, 0, 'CUDA_VISIBLE_DEVICES="": name a device there'),
    ],
)
def test_a_missing_device_has_a_reason(
    tmp_path: Path, driver: int, error: int, remedy: str
) -> None:
    path = fake(tmp_path / "libcudart.so.13", driver=driver, count_error=error)
    printed, _ = open_device("nvidia", HETCOMM_CUDA_LIBRARY=str(path), CUDA_VISIBLE_DEVICES="")
    assert printed.startswith("VendorError expected an accelerator of vendor nvidia; got ")
    assert remedy in printed and str(path) in printed
    assert (f"why of the fake (error {error})" in printed) == (error != 0)


def test_loaded_runtime_is_taken(tmp_path: Path) -> None:
    path = library(tmp_path / "libcudart.so.12", "int nothing;")
    printed, logged = open_device("nvidia", load=[path])
    assert f"\n  {path}: lacks the symbols" in printed and logged == ""


def test_torchs_runtime_is_preferred(tmp_path: Path) -> None:
    source = "int cudaGetDeviceCount(int *count) { return 1; }"
    newer = library(tmp_path / "new" / "libcudart.so.13", source)
    older = library(tmp_path / "old" / "libcudart.so.12", source)
    torch = library(
        tmp_path / "libtorch_cuda.so",
        "int cudaGetDeviceCount(int *); int use() { return cudaGetDeviceCount(0); }",
        str(older),
        f"-Wl,-rpath,{older.parent}",
    )
    printed, logged = open_device("nvidia", load=[newer, torch])
    assert f"\n  {older}: lacks the symbols" in printed
    assert "more than one CUDA runtime" in logged and str(newer) in logged
    assert f"taking {older}, which libtorch_cuda.so uses" in logged


def test_two_runtimes_without_torchs_are_an_error(tmp_path: Path) -> None:
    one, two = (
        library(tmp_path / folder / f"libcudart.so.{version}", "int nothing;")
        for folder, version in (("one", 12), ("two", 13))
    )
    printed, _ = open_device("nvidia", load=[one, two])
    assert printed.startswith("VendorError expected one CUDA runtime in this process, got ")
    assert str(one) in printed and str(two) in printed and "set HETCOMM_CUDA_LIBRARY" in printed
    printed, logged = open_device("nvidia", load=[one, two], HETCOMM_CUDA_LIBRARY=str(two))
    assert f"\n  {two}: lacks the symbols" in printed and logged == ""


@pytest.mark.needs("absence of NVIDIA's driver")  # else the next runtime opens the device
def test_wheels_come_before_the_system(tmp_path: Path) -> None:
    folders = [tmp_path / "nvidia" / part / "lib" for part in ("cuda_runtime", "cu13")]
    older = library(folders[0] / "libcudart.so.12", "int nothing;")
    newer = library(folders[1] / "libcudart.so.13", "int nothing;")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    printed, _ = open_device("nvidia", PYTHONPATH=path)
    tried = [line.split(": ")[0].strip() for line in printed.splitlines()[1:]]
    assert tried[:2] == [str(newer), str(older)]


def test_setting_beside_a_loaded_runtime_is_warned_about(tmp_path: Path) -> None:
    loaded = library(tmp_path / "libcudart.so.12", "int nothing;")
    chosen = library(tmp_path / "libcudart.so.13", "int nothing;")
    printed, logged = open_device("nvidia", load=[loaded], HETCOMM_CUDA_LIBRARY=str(chosen))
    assert f"\n  {chosen}: lacks the symbols" in printed
    assert f"HETCOMM_CUDA_LIBRARY={chosen} is loaded beside {loaded}" in logged


def test_import_loads_no_library() -> None:
    done = run("-c", "from hetcomm import _core; print(open('/proc/self/maps').read())", **EMULATED)
    assert "libhetcomm.so" in done.stdout
    assert not re.search(r"cudart|amdhip|libcuda\.|nccl|rccl|hetcomm_emulated|ucp", done.stdout)


@pytest.mark.needs("CUDA runtime without a driver")
def test_a_real_runtime_without_a_driver_is_an_error() -> None:
    found = sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so.1[1-9]"))
    printed, _ = open_device("nvidia", HETCOMM_CUDA_LIBRARY=str(found[-1]))
    assert printed.startswith("VendorError expected an accelerator of vendor nvidia; got ")
    assert "cudaGetDeviceCount" in printed and "CUDA driver" in printed
    assert str(found[-1]) in printed or str(found[-1].resolve()) in printed


class Blocks:
    """Memory that is only counted."""

    def __init__(self, most: int) -> None:
        self.most, self.next = most, 4096
        self.sizes: dict[int, int] = {}

    def make(self, size: int) -> int:
        if sum(self.sizes.values()) + size > self.most:
            raise MemoryError("the blocks are used up")
        self.next += size
        self.sizes[self.next] = size
        return self.next

    def free(self, address: int) -> None:
        del self.sizes[address]


def test_pool_is_trimmed_to_its_bound() -> None:
    blocks = Blocks(1 << 30)
    pool = _core.Pool(blocks.make, blocks.free, 10_000)
    taken = [pool.take(size) for size in (8192, 4096, 1024)]
    pool.trim()
    for address in taken:
        pool.give(address)
    assert sorted(blocks.sizes.values()) == [1024, 4096, 8192]  # frees nothing meanwhile
    pool.trim()
    assert sorted(blocks.sizes.values()) == [1024, 4096]  # the largest block was freed
    assert pool.take(3000) == taken[1] and pool.take(700) == taken[2]


def test_pool_reuses_fitting_blocks() -> None:
    blocks = Blocks(10_000)
    pool = _core.Pool(blocks.make, blocks.free, 1 << 30)
    address = pool.take(8192)
    pool.give(address)
    assert pool.take(4000) == address  # up to twice the size
    pool.give(address)
    other = pool.take(1024)
    assert other != address
    assert pool.take(1024) == address  # any block, after memory is used up
    with pytest.raises(_core.VendorError, match="the blocks are used up"):
        pool.take(1024)


def test_pool_rejects_foreign_memory() -> None:
    blocks = Blocks(1 << 30)
    pool = _core.Pool(blocks.make, blocks.free, 1 << 30)
    address = pool.take(0)
    pool.give(address)
    for wrong in (address, 12345):
        with pytest.raises(_core.InvalidArgumentError, match="second release"):
            pool.give(wrong)


@given(st.integers(0, 1 << 40))
def test_pool_wastes_a_quarter_at_most_of_large_blocks(size: int) -> None:
    rounded = _core.Pool.rounded(size)
    assert rounded >= max(size, 256) and rounded % 256 == 0
    assert rounded < 2 * max(size, 129)
    if size > 1 << 20:
        assert rounded - size < size / 4
    assert _core.Pool.rounded(rounded) == rounded
