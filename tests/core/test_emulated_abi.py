"""The emulated libraries have their vendors' ABIs: names, argument order, enum values, structs.

The emulated ABI is always compared with the published facts. The facts are compared with the
vendors' headers if these are installed.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import published_abi as published
import pytest
from emulated_vendor import path
from installed_abilities import include_folders

ROOT = Path(__file__).resolve().parents[2]
COMPILER = os.environ.get("CXX", "g++")
PREFIX = {"nvidia": "cuda", "amd": "hip"}
pytestmark = pytest.mark.needs("compiler")

# Published types as the ABI sees them: handles are void*, enums are int.
NEUTRAL = """
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include "emulated/ccl_abi.h"
#include "emulated/runtime_abi.h"
namespace ours = hetcomm::emulated;
template <typename T> struct Neutral { using type = T; };
template <typename T> requires std::is_enum_v<T> struct Neutral<T> { using type = int; };
template <typename T> concept Opaque = std::is_class_v<T> && !requires { sizeof(T); };
template <typename T> struct Neutral<T*> { using type = typename Neutral<T>::type*; };
template <Opaque T> struct Neutral<T*> { using type = void*; };
template <typename R, typename... A> struct Neutral<R(A...)> {
  using type = typename Neutral<R>::type(typename Neutral<A>::type...);
};
"""


def functions(vendor: str) -> dict[str, tuple[str, str, str]]:
    """[symbol] -> (published result, published arguments, name in the emulated library)"""
    own = published.RUNTIME_NVIDIA if vendor == "nvidia" else published.RUNTIME_AMD
    p, found = PREFIX[vendor], {}
    for name, arguments in {**published.RUNTIME, **own}.items():
        found[p + name] = (f"{p}Error_t", arguments.format(p=p), name)
    if vendor == "nvidia":
        for name, arguments in published.DRIVER_NVIDIA.items():
            found[name] = ("CUresult", arguments, name)
    for name, arguments in published.CCL.items():
        found["nccl" + name] = ("ncclResult_t", arguments.format(p=p), name)
    return found


def values(vendor: str) -> dict[str, tuple[int, str]]:
    own = published.VALUES_NVIDIA if vendor == "nvidia" else published.VALUES_AMD
    shared = {
        key.format(p=PREFIX[vendor]): value for key, value in published.RUNTIME_VALUES.items()
    }
    named = {published.AMD_NAMES.get(key, key): value for key, value in shared.items()}
    return named | own | published.CCL_VALUES


def structs(vendor: str) -> dict[str, tuple[str, dict[str, tuple[int, str]]]]:
    nvidia = vendor == "nvidia"
    attributes = "cudaPointerAttributes" if nvidia else "hipPointerAttribute_t"
    properties = "cudaDeviceProp" if nvidia else "hipDeviceProp_tR0600"
    return {
        "ncclConfig_t": ("Config", published.CONFIG),
        attributes: ("PointerAttributes", published.ATTRIBUTES),
        properties: ("DeviceProperties", published.PROPERTIES),
    }


def compile_text(
    text: str, file: Path, vendor: str, includes: list[Path]
) -> subprocess.CompletedProcess[str]:
    file.write_text(text)
    return subprocess.run(
        [
            *(
                COMPILER,
                "-std=c++20",
                "-fsyntax-only",
                f"-DHETCOMM_EMULATED_{PREFIX[vendor].upper()}",
            ),
            *(f"-I{folder}" for folder in [ROOT, *includes]),
            *(["-D__HIP_PLATFORM_AMD__"] if vendor == "amd" else []),
            str(file),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )


def ours_against_facts(vendor: str) -> str:
    p = PREFIX[vendor]
    nvidia = vendor == "nvidia"
    lines = [NEUTRAL]
    handles = [f"{p}Stream", f"{p}Event", f"{p}Graph", f"{p}GraphExec", "ncclComm"]
    lines += [f"struct {handle}_s; using {handle}_t = {handle}_s*;" for handle in handles]
    kinds = ["Error_t", "MemcpyKind", "StreamCaptureStatus", "StreamCaptureMode"]
    enums = [p + kind for kind in kinds]
    enums += ["ncclResult_t", "ncclDataType_t", "ncclRedOp_t", "ncclScalarResidence_t"]
    enums += ["CUresult", "cudaDeviceAttr"] if nvidia else ["hipDeviceAttribute_t"]
    lines += [f"enum {enum} {{}};" for enum in enums]
    lines.append(f"using {p}HostFn_t = void (*)(void*);")
    lines.append("using ncclUniqueId = ours::UniqueId; using ncclConfig_t = ours::Config;")
    lines.append("static_assert(sizeof(ncclUniqueId) == 128);")
    if nvidia:
        lines.append("struct CUstream_s; using CUstream = CUstream_s*; struct cudaDeviceProp;")
        lines.append("using CUdeviceptr = unsigned long long; using cuuint32_t = uint32_t;")
        lines.append("using cudaPointerAttributes = ours::PointerAttributes;")
    else:
        lines.append("struct hipDeviceProp_tR0600;")
        lines.append("using hipPointerAttribute_t = ours::PointerAttributes;")
    for _, (result, arguments, name) in functions(vendor).items():
        lines.append(f"using published_{name} = {result}({arguments});")
    if nvidia:  # by its name in CUDA 12
        lines.append("using published_GetDeviceProperties_v2 = published_GetDeviceProperties;")
    lines.append("#define X(name, parameters) static_assert(std::is_same_v<int parameters, \\")
    lines.append('  typename Neutral<published_##name>::type>, "the arguments of " #name);')
    lines.append("HETCOMM_EMULATED_RUNTIME(X) HETCOMM_EMULATED_CCL(X)")
    lines += ["HETCOMM_EMULATED_DRIVER(X)"] if nvidia else []
    for name, (value, own) in values(vendor).items():
        lines.append(f'static_assert({value}ll == ours::{own}, "{name}");')
    for name, (own, fields) in structs(vendor).items():
        for field, (offset, own_field) in fields.items():
            place = f"offsetof(ours::{own}, {own_field})"
            lines.append(f'static_assert({place} == {offset}, "{name}.{field}");')
    return "\n".join(lines) + "\n"


def facts_against_headers(vendor: str, headers: list[str]) -> str:
    lines = ["#include <cstddef>", "#include <type_traits>"]
    lines += [f"#include <{header}>" for header in headers]
    with_ccl = any("ccl" in header for header in headers)
    for symbol, (result, arguments, _) in functions(vendor).items():
        if symbol.startswith("nccl") and not with_ccl:
            continue
        # The driver's header renames the functions of this name.
        shown = symbol.removesuffix("_v2") if symbol.startswith("cuS") else symbol
        # C++ overloads of this name do not count: a C function has one type.
        lines.append(f'extern "C" {result} {shown}({arguments});')
        lines.append(f"static {result} (*const pointer_{shown})({arguments}) = &{shown};")
    for name, (value, _) in values(vendor).items():
        if with_ccl or not name.lower().startswith("nccl"):
            text = f'static_assert(static_cast<long long>({name}) == {value}ll, "{name}");'
            newer = name in published.SINCE_2_24
            lines.append(f"#if NCCL_VERSION_CODE >= 22400\n{text}\n#endif" if newer else text)
    for name, (_, fields) in structs(vendor).items():
        for field, (offset, _) in fields.items():
            if with_ccl or not name.startswith("nccl"):
                place = f"offsetof({name}, {field})"
                lines.append(f'static_assert({place} == {offset}, "{name}.{field}");')
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_emulated_abi_matches_the_published_one(vendor: str, tmp_path: Path) -> None:
    done = compile_text(ours_against_facts(vendor), tmp_path / "abi.cc", vendor, [])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize(
    ("correct", "planted"),
    [
        (
            "size_t, ncclDataType_t, ncclRedOp_t, int, ",
            "ncclDataType_t, size_t, ncclRedOp_t, int, ",
        ),
        ("static_assert(3ll == ours::op_min", "static_assert(2ll == ours::op_min"),
        ("offsetof(ours::Config, net_name) == 32", "offsetof(ours::Config, net_name) == 40"),
    ],
)
def test_a_difference_is_detected(vendor: str, correct: str, planted: str, tmp_path: Path) -> None:
    text = ours_against_facts(vendor)
    assert correct in text
    text = text.replace(correct, planted)
    assert compile_text(text, tmp_path / "abi.cc", vendor, []).returncode != 0


@pytest.mark.parametrize(
    ("vendor", "headers"),
    [
        pytest.param(vendor, headers, id=name, marks=pytest.mark.needs(f"{name}'s headers"))
        for name, vendor, headers in (
            ("CUDA", "nvidia", ["cuda.h", "cuda_runtime.h"]),
            ("NCCL", "nvidia", ["cuda.h", "cuda_runtime.h", "nccl.h"]),
            ("HIP", "amd", ["hip/hip_runtime_api.h"]),
            ("RCCL", "amd", ["hip/hip_runtime_api.h", "rccl/rccl.h"]),
        )
    ],
)
def test_published_facts_match_the_headers(vendor: str, headers: list[str], tmp_path: Path) -> None:
    text = facts_against_headers(vendor, headers)
    done = compile_text(text, tmp_path / "facts.cc", vendor, include_folders())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_the_library_exports_what_the_header_declares(vendor: str) -> None:
    library = ctypes.CDLL(str(path(vendor)))
    missing = [symbol for symbol in functions(vendor) if not hasattr(library, symbol)]
    assert missing == []
    other = "hip" if vendor == "nvidia" else "cuda"
    assert not hasattr(library, other + "Malloc")
