"""Devices without kernels and machines without a compiler: the errors name the remedy."""

import os
import subprocess
import sys

import emulated_vendor


def test_kernels_can_be_turned_off() -> None:
    program = (
        "from hetcomm import _core\n"
        "try:\n    _core.DeviceKernels.of(_core.Device.open('nvidia', 0))\n"
        "except _core.VendorError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={
            **os.environ,
            "HETCOMM_CUDA_LIBRARY": str(emulated_vendor.path("nvidia")),
            "HETCOMM_KERNELS": "0",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "runs no kernels: HETCOMM_KERNELS=0" in result.stdout


def test_a_missing_compiler_names_the_search_and_the_remedy() -> None:
    program = (
        "from hetcomm import _core\n"
        "try:\n    _core.describe_compiler('amd')\n"
        "except _core.VendorError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "HETCOMM_HIPRTC_LIBRARY": "/nowhere/libhiprtc.so"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "/nowhere/libhiprtc.so" in result.stdout
    assert "HETCOMM_HIPRTC_LIBRARY" in result.stdout
