"""Versions across ranks, by their facts."""

from __future__ import annotations

import pytest
from doctored import cluster, member, texts

from hetcomm.doctor import diagnosis, gather, versions
from hetcomm.doctor.cluster import Member

ONE = {"hetcomm": "0.1.0", "python": "3.11", "torch": "2.9.0", "ucx": "1.22.0"}


def test_equal_versions_are_well() -> None:
    found = versions.check(cluster(*(member(rank, versions=ONE) for rank in range(3))))
    assert found == []


@pytest.mark.parametrize(
    ("name", "severity", "fix"),
    [
        ("hetcomm", "error", "pip install hetcomm==0.1.0"),
        ("python", "warning", "Python 3.11"),
        ("torch", "warning", "pip install torch==2.9.0"),
        ("ucx", "warning", "HETCOMM_UCX_LIBRARY"),
    ],
)
def test_another_version_is_named_with_its_rank(name: str, severity: str, fix: str) -> None:
    other = member(2, versions=ONE | {name: "9.9"})
    (text,) = texts(
        versions.check(cluster(member(0, versions=ONE), member(1, versions=ONE), other))
    )
    assert text.startswith(f"{severity} [2] {name}: {ONE[name]} on ranks 0-1; 9.9 on rank 2")
    assert fix in text


def test_a_rank_whose_facts_this_version_cannot_read_is_a_finding() -> None:
    mine = gather.report()
    other = mine | {"facts": "hetcomm rank 999\n", "error": ""}
    other["checks"] = {versions.NAME: mine["checks"][versions.NAME] | {"hetcomm": "9.9"}}
    members = [Member.of_report(0, mine), Member.of_report(1, mine), Member.of_report(2, other)]
    assert members[2].info is None and "expected" in members[2].error
    found = diagnosis.diagnose(cluster(*members))
    by_check = {each.check: each for each in found if each.ranks == (2,)}
    assert "9.9 on rank 2" in by_check["versions"].found
    assert by_check["nics"].found == members[2].error


def test_islands_have_runtimes_of_their_own() -> None:
    green = {"vendor": "nvidia", "ccl": "NCCL 2.28.3", "runtime": "CUDA 13.0"}
    red = {"vendor": "amd", "ccl": "RCCL 2.22.3", "runtime": "HIP 6.3"}
    ranks = [
        member(0, vendor="nvidia", versions=ONE | green),
        member(1, vendor="amd", versions=ONE | red),
    ]
    assert versions.check(cluster(*ranks)) == []
    older = ONE | green | {"ccl": "NCCL 2.21.5"}
    elsewhere = member(2, "b", vendor="nvidia", versions=older)
    assert versions.check(cluster(*ranks, elsewhere)) == []
    (text,) = texts(versions.check(cluster(*ranks, member(2, vendor="nvidia", versions=older))))
    assert text.startswith("error [0, 2] ccl: NCCL 2.28.3 on rank 0; NCCL 2.21.5 on rank 2")


def test_a_device_that_cannot_be_used_is_an_error() -> None:
    facts = ONE | {"vendor": "nvidia", "device_error": "no CUDA runtime: libcudart.so.13"}
    (text,) = texts(versions.check(cluster(member(0, versions=facts))))
    assert text.startswith("error [0] the device cannot be used: no CUDA runtime")


@pytest.mark.parametrize(("hosts", "severity"), [("ab", "error"), ("aa", "warning")])
def test_missing_ucx_is_an_error_between_hosts(hosts: str, severity: str) -> None:
    without = {"hetcomm": "0.1.0", "ucx_missing": "no libucp.so.0"}
    ranks = [member(rank, host, versions=without) for rank, host in enumerate(hosts)]
    (text,) = texts(versions.check(cluster(*ranks)))
    assert text.startswith(f"{severity} [0, 1] no UCX: no libucp.so.0")


def test_torch_needs_the_runtime_and_the_driver_of_its_cuda() -> None:
    facts = ONE | {"torch_runtime": "12.8", "vendor": "nvidia", "driver": "580.65.06"}
    well = facts | {"runtimes": {"nvidia": ["libcudart.so.12"]}}
    assert versions.check(cluster(member(0, versions=well))) == []
    several = facts | {"runtimes": {"nvidia": ["libcudart.so.12", "libcudart.so.13"]}}
    (text,) = texts(versions.check(cluster(member(0, versions=several))))
    assert "several runtimes of nvidia: libcudart.so.12, libcudart.so.13" in text
    assert "HETCOMM_CUDA_LIBRARY" in text
    other = facts | {"runtimes": {"nvidia": ["libcudart.so.13"]}}
    (text,) = texts(versions.check(cluster(member(0, versions=other))))
    assert "torch is built for CUDA 12.8, the runtime found is libcudart.so.13" in text
    old = well | {"driver": "470.82"}
    (text,) = texts(versions.check(cluster(member(0, versions=old))))
    assert text.startswith("error [0] driver 470.82 with torch for CUDA 12.8 | driver 525.60")


def test_the_versions_of_torch_are_read_without_an_import() -> None:
    source = "__version__ = '2.9.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    assert versions.literals(source) == {"version": "2.9.0", "cuda": "13.0", "hip": None}


def test_this_process_has_versions() -> None:
    facts = versions.facts(None)
    assert facts["hetcomm"] and facts["python"] and ("ucx" in facts) != ("ucx_missing" in facts)


def test_like_findings_of_ranks_are_one() -> None:
    facts = ONE | {"torch_runtime": "12.8", "runtimes": {"nvidia": ["libcudart.so.13"]}}
    ranks = [member(rank, versions=facts) for rank in range(3)]
    (found,) = versions.check(cluster(*ranks))
    assert found.ranks == (0, 1, 2)
