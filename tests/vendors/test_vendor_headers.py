"""Tables of functions and values by which hetcomm calls vendors, against the vendors' headers."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import vendor_wheels as wheels

from hetcomm._vendors import vendors

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.needs("compiler"), pytest.mark.needs("vendors' wheels")]
NVIDIA = vendors()["nvidia"]
NEWEST_CUDA = f"CUDA {list(wheels.CUDA)[-1]}"
BESIDE_NCCL = "CUDA 12.9"  # whose headers NCCL's header takes in

# Types as an ABI sees them: handles and structures behind pointers are void*, enums are int.
NEUTRAL = """
#include <cstddef>
#include <cstdint>
#include <type_traits>
template <size_t bytes> struct Bytes;
template <typename T> struct Neutral { using type = T; };
template <typename T> requires std::is_enum_v<T> struct Neutral<T> { using type = int; };
template <typename T> requires std::is_class_v<T> struct Neutral<T> {
  using type = Bytes<sizeof(T)>;
};
template <> struct Neutral<unsigned long long> { using type = uint64_t; };
template <typename T> struct Neutral<T*> { using type = typename Neutral<T>::type*; };
template <typename T> requires std::is_class_v<T> struct Neutral<T*> { using type = void*; };
template <typename T> requires std::is_class_v<T> struct Neutral<const T*> { using type = void*; };
template <typename R, typename... A> struct Neutral<R(A...)> {
  using type = typename Neutral<R>::type(typename Neutral<A>::type...);
};
template <typename A, typename B>
inline constexpr bool same = std::is_same_v<typename Neutral<A>::type, typename Neutral<B>::type>;
"""

RUNTIME_VALUES = {
    "kSuccess": "cudaSuccess",
    "kInsufficientDriver": "cudaErrorInsufficientDriver",
    "kNotReady": "cudaErrorNotReady",
    "kCaptureImplicit": "cudaErrorStreamCaptureImplicit",
    "kCopyAny": "cudaMemcpyDefault",
    "kMemoryDevice": "cudaMemoryTypeDevice",
    "kMemoryManaged": "cudaMemoryTypeManaged",
    "kStreamNonBlocking": "cudaStreamNonBlocking",
    "kEventWithoutTiming": "cudaEventDisableTiming",
    "kHostPortable": "cudaHostAllocPortable",
    "kHostMapped": "cudaHostAllocMapped",
    "kCaptureRelaxed": "cudaStreamCaptureModeRelaxed",
    "kSeenByOwner": "cudaGPUDirectRDMAWritesOrderingOwner",
}
CCL_VALUES = {
    "nccl::success": "ncclSuccess",
    "nccl::internal_error": "ncclInternalError",
    "nccl::invalid_argument": "ncclInvalidArgument",
    "nccl::remote_error": "ncclRemoteError",
    "nccl::in_progress": "ncclInProgress",
    "nccl::kBytes": "ncclInt8",
    "nccl::sum": "ncclSum",
    "nccl::prod": "ncclProd",
    "nccl::max": "ncclMax",
    "nccl::min": "ncclMin",
    "nccl::avg": "ncclAvg",
    "nccl::scalar_host_immediate": "ncclScalarHostImmediate",
    "nccl::Config::kUndefined": "NCCL_CONFIG_UNDEF_INT",
    "sizeof(nccl::UniqueId)": "sizeof(ncclUniqueId)",
}
CONFIG = {
    "size": "size",
    "magic": "magic",
    "version": "version",
    "blocking": "blocking",
    "cga_cluster_size": "cgaClusterSize",
    "min_ctas": "minCTAs",
    "max_ctas": "maxCTAs",
    "net_name": "netName",
    "split_share": "splitShare",
}
CCL_TYPES = {
    "float32": "ncclFloat32",
    "float64": "ncclFloat64",
    "float16": "ncclFloat16",
    "bfloat16": "ncclBfloat16",
    "int8": "ncclInt8",
    "uint8": "ncclUint8",
    "int32": "ncclInt32",
    "uint32": "ncclUint32",
    "int64": "ncclInt64",
    "uint64": "ncclUint64",
    "boolean": "ncclUint8",
}
CCL_TYPES_SINCE_2_24 = {"float8_e4m3fn": "ncclFloat8e4m3", "float8_e5m2": "ncclFloat8e5m2"}


def equal(values: dict[str, str], scope: str = "hetcomm") -> Iterable[str]:
    for ours, theirs in values.items():
        name = ours if ours.startswith("sizeof") else f"{scope}::{ours}"
        name = name.replace("(nccl", f"({scope}::nccl")
        yield (
            f"static_assert(static_cast<long long>({name}) == static_cast<long long>({theirs}), "
            f'"{ours} is {theirs}");'
        )


def compiler_table() -> str:
    """The macro HETCOMM_COMPILER_SYMBOLS, which its source file keeps for itself."""
    text = (ROOT / "csrc/device/kernel_compiler.cc").read_text()
    found = re.search(r"#define HETCOMM_COMPILER_SYMBOLS\(X\)(?:.*\\\n)+.*\n", text)
    assert found is not None
    return "using Program = void*;\n" + found[0]


def driver_table() -> dict[str, str]:
    """[name in the vendor's row] -> the type of the function, as hetcomm calls the function."""
    text = (ROOT / "csrc/device/device_kernels.cc").read_text()
    found = re.findall(r"(int) \(\*(\w+)\)(\([^)]*\)) = nullptr;", text)
    table = {name: result + parameters for result, name, parameters in found}
    assert table.keys() == NVIDIA["driver"]["functions"].keys()
    return table


def cuda_text() -> str:
    lines = [NEUTRAL, "#include <cuda.h>", "#include <cuda_runtime_api.h>", "#include <nvrtc.h>"]
    lines.append('#include "device/runtime.h"')
    lines.append("#define X(name, result, parameters) \\")
    lines.append('  static_assert(same<result parameters, decltype(cuda##name)>, "cuda" #name);')
    lines += ["HETCOMM_RUNTIME_SYMBOLS(X)", "#undef X"]
    lines.append("#define X(name, result, parameters) \\")
    lines.append('  static_assert(same<result parameters, decltype(nvrtc##name)>, "nvrtc" #name);')
    lines += [compiler_table(), "HETCOMM_COMPILER_SYMBOLS(X)", "#undef X"]
    code = f"nvrtcGet{NVIDIA['compiler']['code']}"
    lines.append(f"static_assert(same<int(Program, size_t*), decltype({code}Size)>);")
    lines.append(f"static_assert(same<int(Program, char*), decltype({code})>);")
    for name, own in driver_table().items():
        symbol = NVIDIA["driver"]["functions"][name]
        lines.append(f'static_assert(same<{own}, decltype({symbol})>, "{symbol}");')
    lines.append("static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75);")
    lines.append("static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76);")
    lines.append("static_assert(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK == 0);")
    order = NVIDIA["driver"]["remote_writes"]
    lines.append(f"static_assert({order} == cudaDevAttrGPUDirectRDMAWritesOrdering);")
    # What csrc/device/device.cc reads of structures.
    lines.append("static_assert(sizeof(cudaDeviceProp) < 16384);")
    lines.append("static_assert(offsetof(cudaDeviceProp, name) == 0);")
    lines.append("static_assert(offsetof(cudaPointerAttributes, type) == 0);")
    lines.append("static_assert(offsetof(cudaPointerAttributes, device) == 4);")
    lines += equal(RUNTIME_VALUES)
    return "\n".join(lines) + "\n"


def ccl_text(newest: bool) -> str:
    lines = [NEUTRAL, "#include <nccl.h>", '#include "base/dtype.h"']
    lines.append('#include "island/ccl/library.h"')
    lines.append("#define X(name, result, parameters) \\")
    lines.append("  namespace of_##name { using namespace hetcomm; \\")
    lines.append('  static_assert(same<result parameters, decltype(nccl##name)>, "nccl" #name); }')
    lines.append("HETCOMM_CCL_SYMBOLS(X)")
    lines += ["HETCOMM_CCL_OPTIONAL_SYMBOLS(X)"] if newest else []
    lines.append("#undef X")
    lines += equal(CCL_VALUES)
    for ours, theirs in CONFIG.items():
        lines.append(
            f"static_assert(offsetof(hetcomm::nccl::Config, {ours}) == "
            f'offsetof(ncclConfig_t, {theirs}), "{theirs}");'
        )
    lines.append("static_assert(sizeof(ncclConfig_t) >= sizeof(hetcomm::nccl::Config));")
    types = CCL_TYPES | (CCL_TYPES_SINCE_2_24 if newest else {})
    # `row` is the same table as csrc/base/dtype.cc has, as constants.
    lines.append("namespace row { enum : int {")
    lines.append("#define X(name, bytes, kind, ccl, ...) name = ccl,")
    lines += ["HETCOMM_DTYPES(X)", "#undef X", "}; }"]
    lines += equal(types, scope="row")
    return "\n".join(lines) + "\n"


def compiled(text: str, file: Path, rows: Iterable[str]) -> subprocess.CompletedProcess[str]:
    file.write_text(text)
    folders = [ROOT / "csrc", *(folder for row in rows for folder in wheels.includes(row))]
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fsyntax-only"]
    command += [f"-isystem{folder}" for folder in folders]
    return subprocess.run(
        [*command, str(file)],
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("version", wheels.CUDA)
def test_tables_match_the_headers_of_cuda(version: str, tmp_path: Path) -> None:
    done = compiled(cuda_text(), tmp_path / "cuda.cc", [f"CUDA {version}"])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", wheels.NCCL)
def test_tables_match_the_headers_of_nccl(version: str, tmp_path: Path) -> None:
    newest = version == list(wheels.NCCL)[-1]
    done = compiled(ccl_text(newest), tmp_path / "nccl.cc", [f"NCCL {version}", BESIDE_NCCL])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "correct", "planted"),
    [
        ("cuda", "hetcomm::kNotReady) ==", "hetcomm::kNotReady + 1) =="),
        ("cuda", "same<int(int* device, int ordinal)", "same<int(long* device, int ordinal)"),
        ("nccl", "offsetof(ncclConfig_t, netName)", "offsetof(ncclConfig_t, maxCTAs)"),
        ("nccl", "row::bfloat16) ==", "row::float16) =="),
        ("nccl", "decltype(nccl##name)>", "decltype(ncclAllReduce)>"),
    ],
)
def test_a_difference_from_the_headers_is_detected(
    kind: str, correct: str, planted: str, tmp_path: Path
) -> None:
    text = cuda_text() if kind == "cuda" else ccl_text(newest=True)
    assert correct in text
    rows = [NEWEST_CUDA] if kind == "cuda" else [f"NCCL {list(wheels.NCCL)[-1]}", BESIDE_NCCL]
    done = compiled(text.replace(correct, planted), tmp_path / "planted.cc", rows)
    assert "static assertion failed" in done.stderr
