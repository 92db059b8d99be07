"""Hosts with emulated GPUs: a vendor's library spans hosts, and rejects the other vendor."""

from pathlib import Path

import pytest
from emulated import RunProgram

from hetcomm.emulate import Cluster, ClusterError, Host, Nic, run, vendors


def test_a_communicator_spans_hosts(run_program: RunProgram, tmp_path: Path) -> None:
    nics = (Nic(1_000_000_000, 1_000_000_000),)
    hosts = tuple(Host(name, 2, nics, "nvidia") for name in ("green0", "green1"))
    result, lines = run_program(Cluster(hosts, order="interleaved"), "gpus.py", tmp_path / "id")
    assert result.ok, lines
    assert sorted(lines) == [
        "[0 green0] device 0 sum 10.0 10.0",
        "[1 green1] device 0 sum 10.0 10.0",
        "[2 green0] device 1 sum 10.0 10.0",
        "[3 green1] device 1 sum 10.0 10.0",
    ]
    # Every rank reduces a quarter, so half of the bytes leave each host, twice.
    for link in result.links:
        assert link.out_bytes > 800_000


def test_another_vendor_is_rejected(run_program: RunProgram, tmp_path: Path) -> None:
    hosts = (Host("green0", 1, (Nic(),), "nvidia"), Host("red0", 1, (Nic(),), "amd"))
    result, lines = run_program(Cluster(hosts), "gpus.py", tmp_path / "id", grace=0.5)
    assert result.failed_rank == 1  # rank 0 waits for this rank until its timeout
    refused = [line for line in lines if "refused" in line]
    assert len(refused) == 1 and "[1 red0] refused 4: the unique id is of the nvidia" in refused[0]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendors, "_PACKAGE", Path("/nowhere"))
    with pytest.raises(ClusterError, match=r"libhetcomm_emulated_amd\.so in /nowhere, got nothing"):
        run(Cluster((Host("red0", 1, (Nic(),), "amd"),)), ["true"])
