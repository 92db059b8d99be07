"""The facts of a rank about its device's memory: the fabrics for direct messages, or the reason
against."""

from __future__ import annotations

import pytest
from emulated_vendor import path, run

PROGRAM = """
from hetcomm import _core
info = _core.probe_rank()
info.vendor = "nvidia"
info.nics = [_core.Nic(name="mlx5_0", interface="ib0", fabric=_core.Fabric.infiniband)]
info = _core.probe_device(info)
print(sorted(fabric.name for fabric in info.direct), info.libraries["messages"])
"""
LIBRARY = {"HETCOMM_CUDA_LIBRARY": str(path("nvidia"))}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "[] staged: transports do not reach this emulated device"),
        (
            {"HETCOMM_EMULATED_DIRECT": "1"},
            "['infiniband', 'shm'] direct over shm from 2 MiB on, infiniband",
        ),
        (
            {"HETCOMM_EMULATED_DIRECT": "1", "HETCOMM_DIRECT_BYTES": "0"},
            "['infiniband', 'shm'] direct over shm, infiniband",
        ),
        (
            {"HETCOMM_EMULATED_DIRECT": "1", "HETCOMM_DIRECT": "0"},
            "[] staged: HETCOMM_DIRECT=0",
        ),
        (
            {"HETCOMM_EMULATED_DIRECT": "1", "HETCOMM_UCX_LIBRARY": "/nowhere/libucp.so.0"},
            "[] staged: there is no transport",
        ),
    ],
)
def test_direct_fabrics_are_found(settings: dict[str, str], expected: str) -> None:
    assert run(PROGRAM, **LIBRARY, **settings).strip() == expected


TOPO = "import sys; from hetcomm.cli import main; sys.argv[1:] = ['topo']; main()"


def test_topo_shows_direct_fabrics() -> None:
    for value, expected in (
        ("1", "direct over shm"),
        ("0", "staged: transports"),
    ):
        settings = {"HETCOMM_VENDOR": "nvidia", "HETCOMM_EMULATED_DIRECT": value, "COLUMNS": "200"}
        assert f"messages {expected}" in run(TOPO, **LIBRARY, **settings)
