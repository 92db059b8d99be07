"""`hetcomm doctor` as a command: alone, in a job of this machine, and without some ranks."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from doctored import cluster, member
from job_command import JOB, start
from ports import free_port
from rich.console import Console
from typer.testing import CliRunner

from hetcomm.cli import app
from hetcomm.doctor import diagnosis, gather, limits, page
from hetcomm.doctor.cluster import Member
from hetcomm.doctor.finding import Finding, Severity, group, listed, outsiders

LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID", "PMI_RANK")


def alone(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in LAUNCHERS} | variables
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-P", "-m", "hetcomm", "doctor", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_alone_it_checks_this_machine_and_says_what_it_could_not_check() -> None:
    result = alone("--json")
    found = json.loads(result.stdout)
    assert found["ranks"] == 1 and len(found["hosts"]) == 1
    (note,) = [each for each in found["findings"] if each["check"] == "reach"]
    assert note["severity"] == "note" and "this process is alone" in note["found"]
    errors = [each for each in found["findings"] if each["severity"] == "error"]
    assert result.returncode == (1 if errors else 0)


def test_a_rank_that_cannot_probe_is_a_finding() -> None:
    result = alone("--json", HETCOMM_SOCKET_IFNAME="nowhere9")
    assert result.returncode == 1
    errors = [each for each in json.loads(result.stdout)["findings"] if each["check"] == "nics"]
    assert [each["severity"] for each in errors] == ["error"]
    assert "HETCOMM_SOCKET_IFNAME" in errors[0]["found"] and "nowhere9" in errors[0]["found"]


@pytest.mark.parametrize("arguments", [["--timeout", "soon"], ["--nothing"], ["--timeout", "0"]])
def test_bad_use_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["doctor", *arguments]).exit_code == 2


def test_a_broken_job_exits_with_2() -> None:
    result = alone(RANK="5", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29400")
    assert result.returncode == 2
    assert "RANK below WORLD_SIZE, and fewer than 2^31 ranks; got 5 and 2" in result.stderr


def test_missing_ranks_are_named_and_the_others_are_checked() -> None:
    job = JOB | {"WORLD_SIZE": "3", "MASTER_PORT": str(free_port())}
    result = alone("--json", "--timeout", "1", **job)
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout)
    assert found["missing"] == [1, 2]
    assert found["findings"][0]["check"] == "ranks"
    assert found["findings"][0]["ranks"] == [1, 2]


def test_a_rank_without_rank_0_ends_within_the_timeout() -> None:
    result = alone("--timeout", "1", **(JOB | {"RANK": "1", "MASTER_PORT": str(free_port())}))
    assert result.returncode == 2
    assert "found no store at 127.0.0.1" in result.stderr


def test_two_hosts_on_one_machine_connect() -> None:
    port = str(free_port())
    lo = {"HETCOMM_SOCKET_IFNAME": "lo"}
    first = start("doctor", port, 0, "--json", HETCOMM_HOST_ID="a", **lo)
    second = start("doctor", port, 1, HETCOMM_HOST_ID="b", HETCOMM_SELECT="x", **lo)
    output, errors = first.communicate(timeout=100)
    assert second.communicate(timeout=100) == ("", "")
    assert (first.returncode, second.returncode) == (1, 0), errors
    found = json.loads(output)
    assert [link["failure"] for link in found["links"]] == ["", ""]
    whys = {each["found"] for each in found["findings"] if each["severity"] == "error"}
    assert any("hetcomm uses lo: the loopback reaches this host only" in why for why in whys)
    assert any("HETCOMM_SELECT: unset on rank 0; x on rank 1" in why for why in whys)


def text(found: list[Finding], width: int = 160) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(page.render(cluster(member(0), member(1)), found))
    return output.getvalue()


def finding(severity: Severity, found: str, **fields: Any) -> Finding:
    return Finding(severity, "limits", fields.pop("hosts", ()), (1,), found, **fields)


def test_the_page_has_a_line_and_a_fix_for_each_finding() -> None:
    shown = text(
        [
            finding(Severity.error, "no [memory]", expected="some", fix="add [more]"),
            finding(Severity.note, "known", hosts=("node-a",)),
        ]
    ).splitlines()
    assert shown[0].strip() == "2 ranks, 1 host: 1 error, 0 warnings, 1 note"
    assert shown[1].strip() == "error limits, rank 1: no [memory]; expected some"
    assert shown[2].strip() == "fix: add [more]"
    assert shown[3].strip() == "note limits, node-a: known"


def test_a_healthy_page_says_what_was_checked() -> None:
    shown = text([])
    assert "2 ranks, 1 host: healthy, 0 errors, 0 warnings, 0 notes" in shown
    for check in diagnosis.CHECKS:
        assert f"{check.NAME} (well): {check.CHECKED}" in shown


def test_errors_come_first() -> None:
    broken = cluster(member(0, settings={"unknown": ["HETCOMM_X"]}), missing=[1], size=2)
    severities = [each.severity for each in diagnosis.diagnose(broken)]
    assert severities == sorted(severities) and severities[0] == Severity.error


def test_a_check_without_facts_is_a_note_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> dict[str, Any]:
        raise PermissionError("/proc/self/ns/pid: permission denied")

    monkeypatch.setattr(limits, "facts", refused)
    mine = Member.of_report(0, gather.report())
    notes = [each for each in diagnosis.diagnose(cluster(mine)) if each.check == "limits"]
    (note,) = notes
    assert note.severity == Severity.note and note.ranks == (0,)
    assert note.found == "could not be checked: /proc/self/ns/pid: permission denied"


def test_values_are_grouped_by_how_common_they_are() -> None:
    groups = group([(0, "b"), (1, "a"), (2, "a"), (3, "c")])
    assert listed(groups) == "a on ranks 1-2; b on rank 0; c on rank 3"
    assert outsiders(groups) == (0, 3)
    assert outsiders(group([(0, "a"), (1, "b")])) == (0, 1)
