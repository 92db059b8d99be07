"""Variables across ranks, by their facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctored import cluster, member, texts

from hetcomm.doctor import settings
from hetcomm.doctor.cluster import Member


def with_values(rank: int, host: str = "a", vendor: str = "cpu", **values: str) -> Member:
    facts: dict[str, Any] = {"values": values, "unknown": [], "interfaces": ["eth0", "lo"]}
    return member(rank, host, vendor=vendor, settings=facts | {"ports": []})


def test_a_likely_typo_is_named_and_its_value_is_not() -> None:
    facts = settings.facts({"HETCOMM_PROFIL": "hunter2", "HETCOMM_TEST_SEED": "1"})
    assert facts["unknown"] == ["HETCOMM_PROFIL"]
    assert "hunter2" not in str(facts)
    (text,) = texts(settings.check(cluster(member(3, settings=facts))))
    assert text.startswith("warning [3] HETCOMM_PROFIL is no variable")
    assert "rename HETCOMM_PROFIL to HETCOMM_PROFILE" in text


def test_a_strange_variable_is_to_be_unset() -> None:
    facts = settings.facts({"HETCOMM_ZZZZZZZZZZZZ": "1"})
    (text,) = texts(settings.check(cluster(member(0, settings=facts))))
    assert text.endswith("unset HETCOMM_ZZZZZZZZZZZZ")


def test_values_of_other_variables_stay_on_the_rank() -> None:
    facts = settings.facts({"NCCL_SECRET": "hunter2", "UCX_X": "hunter2", "TOKEN": "hunter2"})
    assert "hunter2" not in str(facts)


def test_job_keys_are_compared_and_stay_on_the_rank(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    by_file = settings.facts({"HETCOMM_JOB_KEY_FILE": str(file)})["values"]
    by_value = settings.facts({"HETCOMM_JOB_KEY": "0123456789abcdef"})["values"]
    another = settings.facts({"HETCOMM_JOB_KEY": "fedcba9876543210"})["values"]
    assert by_file == by_value != another and list(another) == ["HETCOMM_JOB_KEY"]
    assert "0123" not in str(by_file) and "fedc" not in str(another)
    assert "HETCOMM_JOB_KEY" in settings.equal_everywhere()
    assert not settings.facts({})["values"]


def test_the_table_says_what_must_be_equal() -> None:
    assert settings.equal_everywhere() == [
        "HETCOMM_SELECT",
        "HETCOMM_PROFILE",
        "HETCOMM_DETERMINISTIC",
        "HETCOMM_BRIDGE_CODEC",
        "HETCOMM_JOB_KEY_FILE",
        "HETCOMM_JOB_KEY",
    ]


def test_an_unlike_setting_is_an_error_on_its_rank() -> None:
    ranks = [with_values(0), with_values(1), with_values(2, HETCOMM_DETERMINISTIC="1")]
    (text,) = texts(settings.check(cluster(*ranks)))
    assert text.startswith("error [2] HETCOMM_DETERMINISTIC: unset on ranks 0-1; 1 on rank 2")
    assert text.endswith("unset HETCOMM_DETERMINISTIC on all ranks")


def test_settings_of_one_vendor_may_differ_from_those_of_another() -> None:
    green = [with_values(rank, vendor="nvidia", HETCOMM_CCL="max_ctas=4") for rank in range(2)]
    assert settings.check(cluster(*green, with_values(2, vendor="amd"))) == []
    (text,) = texts(settings.check(cluster(*green, with_values(2, vendor="nvidia"))))
    assert "HETCOMM_CCL: max_ctas=4 on ranks 0-1; unset on rank 2" in text


def test_unlike_settings_of_nccl_matter_to_ranks_of_nccl() -> None:
    for vendor, expected in (("cpu", []), ("nvidia", ["warning"])):
        ranks = [with_values(0, vendor=vendor, NCCL_ALGO="Ring"), with_values(1, vendor=vendor)]
        found = settings.check(cluster(*ranks))
        assert [each.severity.name for each in found] == expected


def test_profiles_are_compared_by_content(tmp_path: Path) -> None:
    for name, text in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / name).write_text(text)

    def rank(number: int, name: str) -> Member:
        return member(number, settings=settings.facts({"HETCOMM_PROFILE": str(tmp_path / name)}))

    assert settings.check(cluster(rank(0, "one"), rank(1, "same"))) == []
    (text,) = texts(settings.check(cluster(rank(0, "one"), rank(1, "same"), rank(2, "other"))))
    assert text.startswith("error [2] HETCOMM_PROFILE: content")
    (text,) = texts(settings.check(cluster(rank(0, "one"), rank(1, "missing"))))
    assert text.startswith("error [1] HETCOMM_PROFILE names a file that cannot be read: No such")


@pytest.mark.parametrize(
    ("tls", "rdma", "crosses"),
    [
        ("tcp,shm", False, True),
        ("all", False, True),
        ("shm,self", False, False),
        ("rc,sm,self", False, False),
        ("rc,sm,self", True, True),
        ("^tcp", False, False),
        ("^tcp", True, True),
        ("^rc", False, True),
    ],
)
def test_ucx_tls_without_a_transport_between_hosts_is_an_error(
    tls: str, rdma: bool, crosses: bool
) -> None:
    assert settings.crosses_hosts(tls, rdma) == crosses
    ranks = [with_values(0, "a", UCX_TLS=tls), with_values(1, "b", UCX_TLS=tls)]
    errors = texts(settings.check(cluster(*ranks)))
    assert bool(errors) == (not settings.crosses_hosts(tls, False))
    assert settings.check(cluster(with_values(0, UCX_TLS=tls))) == []


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("eth", True),
        ("eth0", True),
        ("=eth0", True),
        ("=eth", False),
        ("^docker", True),
        ("^eth,lo", False),
        ("ib0", False),
        ("ib0,eth0:29500", True),
    ],
)
def test_names_of_interfaces_as_nccl_reads_them(wanted: str, chosen: bool) -> None:
    assert settings.names_interface(wanted, ["eth0", "lo"]) == chosen
    found = settings.check(cluster(with_values(0, vendor="nvidia", NCCL_SOCKET_IFNAME=wanted)))
    assert [each.severity.name for each in found] == ([] if chosen else ["error"])


def test_a_missing_device_of_ucx_is_an_error() -> None:
    assert settings.check(cluster(with_values(0, UCX_NET_DEVICES="eth0"))) == []
    (text,) = texts(settings.check(cluster(with_values(0, UCX_NET_DEVICES="eth0,mlx5_9:1"))))
    assert text.startswith("error [0] UCX_NET_DEVICES names mlx5_9, which this host lacks")


def test_rdma_switched_off_is_a_warning() -> None:
    facts = {"values": {"NCCL_IB_DISABLE": "1"}, "ports": ["mlx5_0"], "interfaces": ["eth0"]}
    (text,) = texts(settings.check(cluster(member(0, settings=facts))))
    assert text.startswith("warning [0] NCCL_IB_DISABLE=1 on a host with RDMA ports (mlx5_0)")
