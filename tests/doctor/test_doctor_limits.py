"""Limits of hosts, by their facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctored import GIGABIT, LIMITS, MIB, cluster, member, nic, texts

from hetcomm.doctor import limits


def found(ranks: int = 1, hosts: int = 1, size: int | None = None, **facts: Any) -> list[str]:
    """The findings of `ranks` ranks on each host with these facts."""
    members = [
        member(rank, "abcd"[rank // ranks], nic(rank + 1), limits=LIMITS | facts)
        for rank in range(ranks * hosts)
    ]
    return texts(limits.check(cluster(*members, size=size or len(members))))


def test_ample_limits_are_well() -> None:
    assert found(4, 2) == []


@pytest.mark.parametrize(("free", "severity"), [(4, "error"), (15, "warning"), (20, "")])
def test_dev_shm_must_hold_the_memory_of_all_ranks(free: int, severity: str) -> None:
    texts = found(4, shm_free=free * MIB, shm_size=64 * MIB)
    assert [text.split()[0] for text in texts] == ([severity] if severity else [])
    for text in texts:
        assert f"/dev/shm has {free} MiB free of 64 MiB | 20 MiB free" in text
        assert "--shm-size=1024m" in text


def test_dev_shm_must_be_writable() -> None:
    (text,) = found(shm_writable=False, shm_free=0)
    assert text.startswith("warning [0] /dev/shm cannot be written")
    assert "remount,rw" in text
    (text,) = found(shm_writable=False, shm_free=0, shm_size=0)
    assert text.startswith("warning [0] /dev/shm is missing")
    assert "mount -t tmpfs" in text


def test_memory_must_hold_the_slots() -> None:
    (text,) = found(memory=32 * MIB)
    assert text.startswith("error [0] 32 MiB of memory are available | 69 MiB")


@pytest.mark.parametrize(
    ("facts", "severity"),
    [
        ({"locked": 64 << 10}, "error"),
        ({"locked": 512 * MIB}, "warning"),
        ({"locked": -1}, ""),
        ({"locked": 64 << 10, "may_lock": True}, ""),
        ({"locked": 64 << 10, "rdma": False}, ""),
    ],
)
def test_rdma_needs_locked_memory(facts: dict[str, Any], severity: str) -> None:
    texts = found(**({"rdma": True} | facts))
    assert [text.split()[0] for text in texts] == ([severity] if severity else [])
    assert all("ulimit -l unlimited" in text for text in texts)


@pytest.mark.parametrize(("bound", "severity"), [(64, "error"), (256, "warning"), (400, "")])
def test_descriptors_are_counted_by_ranks(bound: int, severity: str) -> None:
    assert limits.descriptors_needed(64) == 155
    texts = found(size=64, descriptors=bound)
    assert [text.split()[0] for text in texts] == ([severity] if severity else [])
    assert all(f"{bound} open descriptors (ulimit -n) | 310" in text for text in texts)


def test_more_ranks_than_processors_are_a_warning() -> None:
    assert found(2, processors=[0, 1]) == []
    (text,) = found(3, processors=[0, 1])
    assert text.startswith("warning [0, 1, 2] 3 ranks share 2 processors")
    bound = [member(rank, limits=LIMITS | {"processors": [rank]}) for rank in range(3)]
    assert limits.check(cluster(*bound)) == []


def test_the_quota_of_a_container_is_a_bound() -> None:
    assert found(4, quota=4.0) == []
    (text,) = found(4, quota=1.5)
    assert text.startswith("warning [0, 1, 2, 3] the control group permits 1.5 processors for 4")
    assert "docker run --cpus=4" in text


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        ("0::/a", {}, None),
        ("0::/", {"cpu.max": "200000 100000"}, 2.0),
        (
            "3:cpu,cpuacct:/x",
            {
                "cpu,cpuacct/x/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (  # a container sees its own group as the root
            "3:cpu,cpuacct:/docker/abc",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            "3:cpu:/x",
            {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_quotas_are_read(
    tmp_path: Path, groups: str, files: dict[str, str], expected: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert limits.quota(tmp_path, groups) == expected


def test_ranks_of_one_host_share_their_processes_and_user() -> None:
    for fact, other in (("pid_namespace", "pid:[2]"), ("user", 7)):
        ranks = [member(0), member(1, limits=LIMITS | {fact: other})]
        (text,) = texts(limits.check(cluster(*ranks)))
        assert text.startswith("warning [0, 1] ranks of one host are in 2 ")


def test_ptrace_scope_is_a_note() -> None:
    assert found(1, ptrace_scope=1) == []
    (text,) = found(2, ptrace_scope=1)
    assert text.startswith("note [0, 1] kernel.yama.ptrace_scope is 1")


def test_small_buffers_of_tcp_are_a_note_on_fast_ethernet() -> None:
    def hosts(gigabits: int) -> list[str]:
        ranks = [member(r, "ab"[r], nic(r, bandwidth=gigabits * GIGABIT)) for r in range(2)]
        return texts(limits.check(cluster(*ranks)))

    assert hosts(10) == []
    assert [text.split(" ends")[0] for text in hosts(100)] == [
        "note [0] net.ipv4.tcp_rmem",
        "note [0] net.ipv4.tcp_wmem",
        "note [1] net.ipv4.tcp_rmem",
        "note [1] net.ipv4.tcp_wmem",
    ]


def test_unlike_congestion_control_is_a_note() -> None:
    ranks = [member(rank, "abc"[rank]) for rank in range(2)]
    ranks.append(member(2, "c", limits=LIMITS | {"congestion": "bbr"}))
    (text,) = texts(limits.check(cluster(*ranks)))
    assert text.startswith("note [2] congestion control of TCP: cubic on node-a, node-b; bbr on")


def test_capabilities_are_read() -> None:
    assert limits.may_lock("Name:\tx\nCapEff:\t000001ffffffffff\n")
    assert not limits.may_lock("Name:\tx\nCapEff:\t0000000000000000\n")


def test_this_machine_has_limits() -> None:
    facts = limits.facts()
    assert facts["processors"] and facts["descriptors"] and facts["memory"] > 0
