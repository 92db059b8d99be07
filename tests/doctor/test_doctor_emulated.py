"""`hetcomm doctor` on all ranks of an emulated cluster, healthy and with planted faults."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from undisturbed import undisturbed

from hetcomm.emulate import Cluster, Host, Nic, run

pytestmark = [pytest.mark.needs("namespaces"), pytest.mark.alone]
PLANTED = Path(__file__).with_name("planted.py")
MEGABIT = 1_000_000


NIC = Nic(100 * MEGABIT, 100 * MEGABIT)
TWO = (Host("red0", 2, (NIC, NIC)), Host("blue0", 2, (NIC, NIC)))
THREE = tuple(Host(name, 1, (NIC,)) for name in ("red0", "blue0", "green0"))


def diagnosis(
    faults: str, *arguments: str, hosts: tuple[Host, ...] = TWO
) -> tuple[dict[str, Any], dict[int, int]]:
    """The findings of rank 0, and the exit codes."""
    cluster = Cluster(hosts)
    output = io.StringIO()
    command = [sys.executable, "-P", str(PLANTED), faults, "--json", *arguments]
    result = run(cluster, command, stdout=output, timeout=120)
    text = output.getvalue()
    assert "hunter2" not in text
    assert "[0 red0] {" in text, text
    ours = [line.split("] ", 1)[1] for line in text.splitlines() if line.startswith("[0 ")]
    return json.loads("\n".join(ours)), dict(enumerate(result.exit_codes))


def test_a_healthy_cluster_has_no_errors() -> None:
    # A busy machine may keep a rank from its processor for the whole time of a rate.
    found, codes = undisturbed(
        lambda: diagnosis("none"),
        lambda outcome: all(link["rate"] is not None for link in outcome[0]["links"]),
        times=3,
    )
    assert set(codes.values()) == {0}, found
    assert found["missing"] == []
    assert [host["ranks"] for host in found["hosts"]] == [[0, 1], [2, 3]]
    unwell = [
        each
        for each in found["findings"]
        if each["severity"] == "error" or (each["check"] != "limits" and each["severity"] != "note")
    ]
    assert unwell == []
    assert len(found["links"]) == 4
    for link in found["links"]:
        assert link["failure"] == ""
        assert 0 < link["rate"] < 20 * MEGABIT
        assert abs(link["clock_ahead"]) < 0.5


def test_planted_faults_are_found_with_their_places() -> None:
    faults = "mtu,slow,unanswered,shm,descriptors,setting,unknown"
    found, codes = diagnosis(faults)
    assert codes[0] == 1 and {codes[rank] for rank in (1, 2, 3)} == {0}
    rows = {(each["severity"], each["check"]): [] for each in found["findings"]}
    for each in found["findings"]:
        place = each["hosts"] or each["ranks"]
        rows[each["severity"], each["check"]].append((place, each["found"], each["fix"]))

    def row(severity: str, check: str, words: str) -> tuple[list[Any], str]:
        (match,) = [each for each in rows[severity, check] if words in each[1]]
        return match[0], match[2]

    assert row("error", "nics", "MTU on network 198.18.0.0/24: 1500 (blue0 eth0)") == (
        ["blue0"],
        "ip link set eth0 mtu 9000, and the same MTU at the switch",
    )
    slow = [each for each in rows["warning", "reach"] if "Gbit/s measured" in each[1]]
    assert {each[1][: each[1].index(":")] for each in slow} == {
        "from red0 eth0 to blue0 eth0",
        "from blue0 eth0 to red0 eth0",
    }
    place, fix = row("warning", "reach", "red0 eth1 198.18.1.1 does not reach blue0 eth1")
    assert place == ["red0", "blue0"] and "HETCOMM_SOCKET_IFNAME" in fix
    assert row("error", "limits", "/dev/shm has")[0] == ["blue0"]
    assert row("error", "limits", "32 open descriptors")[0] == [3]
    assert row("error", "settings", "HETCOMM_BRIDGE_CODEC: unset")[0] == [1]
    assert row("warning", "settings", "HETCOMM_DETERMINISTC") == (
        [1],
        "rename HETCOMM_DETERMINISTC to HETCOMM_DETERMINISTIC, or unset it",
    )
    severities = [each["severity"] for each in found["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)


def test_strict_makes_warnings_count() -> None:
    assert diagnosis("unknown", "--strict")[1][0] == 1
    assert diagnosis("unknown")[1][0] == 0


def test_two_hosts_that_nothing_joins_are_an_error() -> None:
    found, codes = diagnosis("unroutable", hosts=THREE)
    assert codes[0] == 1
    (error,) = [each for each in found["findings"] if each["severity"] == "error"]
    assert (error["check"], error["hosts"]) == ("reach", ["blue0", "green0"])
    assert "blue0 eth0 198.18.0.2 does not reach green0 eth0 198.18.0.3" in error["found"]
    assert "green0 eth0 198.18.0.3 does not reach blue0 eth0 198.18.0.2" in error["found"]
    assert error["fix"].startswith("on blue0: ip route get 198.18.0.3")
    joined = [link for link in found["links"] if "red0" in link["hosts"]]
    assert [link["failure"] for link in joined] == [""] * 4
