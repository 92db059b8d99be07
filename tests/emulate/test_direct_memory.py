"""Device memory that transports reach: messages go from and to this memory, without copies."""

import json
from pathlib import Path

import pytest
from emulated import RunProgram
from typer.testing import CliRunner

from hetcomm.cli import app
from hetcomm.emulate import Cluster, Host, Nic

ROCE, ETHERNET = (Nic(fabric="roce"),), (Nic(),)
DIRECT = "direct over shm, roce"
STAGED = "staged: transports do not reach this emulated device"
# A copy between device and pinned memory then takes longer than the long timeout of an operation.
COPY_MICROSECONDS, TIMEOUT = 60_000_000, 55.0


def lines_of(
    run_program: RunProgram,
    cluster: Cluster,
    folder: Path,
    what: str = "all",
    timeout: float = 60.0,
) -> list[str]:
    folder.mkdir()
    result, lines = run_program(cluster, "direct.py", folder, what, timeout, timeout=150)
    assert result.ok, "\n".join(lines)
    return sorted(lines)


def test_direct_messages_are_not_copied(run_program: RunProgram, tmp_path: Path) -> None:
    """Two ranks on each of two hosts, of different vendors, over RDMA and inside the hosts. A copy
    takes longer than any operation may, so one copy would be an error."""
    slow = {"copy_latency": COPY_MICROSECONDS, "direct": True}
    hosts = (Host("green0", 2, ROCE, "nvidia", **slow), Host("red0", 2, ROCE, "amd", **slow))
    found = lines_of(
        run_program, Cluster(hosts, order="interleaved"), tmp_path / "meet", "moves", TIMEOUT
    )
    for rank, line in enumerate(found):
        assert line.startswith(f"[{rank} ") and f"right; staged with []; {DIRECT}" in line, found


def test_slow_copies_would_be_noticed(run_program: RunProgram, tmp_path: Path) -> None:
    slow = {"copy_latency": 10_000_000}
    hosts = (Host("green0", 1, ROCE, "nvidia", **slow), Host("red0", 1, ROCE, "amd", direct=True))
    (tmp_path / "meet").mkdir()
    result, lines = run_program(Cluster(hosts), "direct.py", tmp_path / "meet", "moves", 6.0)
    assert not result.ok and any("TimeoutError" in line for line in lines), lines


def test_direct_staged_and_cpu_ranks_work_together(run_program: RunProgram, tmp_path: Path) -> None:
    hosts = (
        Host("green0", 2, ROCE, "nvidia", direct=True),
        Host("red0", 2, ROCE, "amd"),
        Host("grey0", 1, ROCE),
    )
    found = lines_of(run_program, Cluster(hosts, order="interleaved"), tmp_path / "meet")
    assert f"right; staged with []; {DIRECT}" in found[0] and DIRECT in found[3]
    assert f"right; staged with [0, 2, 3, 4]; {STAGED}" in found[1] and STAGED in found[4]
    assert "right; staged with []; host" in found[2]


def test_hosts_on_ethernet_are_direct_inside_only(run_program: RunProgram, tmp_path: Path) -> None:
    hosts = (
        Host("green0", 2, ETHERNET, "nvidia", direct=True),
        Host("grey0", 1, ETHERNET),
    )
    found = lines_of(run_program, Cluster(hosts), tmp_path / "meet")
    assert [line.split("] ")[1] for line in found[:2]] == [
        "right; staged with [2]; direct over shm"
    ] * 2, found


CLUSTER = """
[[host]]
name = "green0"
ranks = 1
vendor = "nvidia"
direct = true
[[host.nic]]
rate = "10gbit"
fabric = "roce"
[[host]]
name = "red0"
ranks = 1
vendor = "amd"
DIRECT[[host.nic]]
rate = "10gbit"
fabric = "roce"
"""


@pytest.mark.parametrize("both", [True, False])
def test_explain_shows_direct_messages(tmp_path: Path, both: bool) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER.replace("DIRECT", "direct = true\n" if both else ""))
    arguments = ["explain", "all_gather", "--topology", str(file), "--rank", "0", "--rank", "1"]
    page = CliRunner().invoke(app, arguments)
    assert page.exit_code == 0 and "messages direct over shm from 2 MiB on, roce" in page.output, (
        page.output
    )
    assert ("messages staged: the file does not say direct" in page.output) != both
    told = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    moves = [[leg["moves"] for leg in plan["legs"]] for plan in told["plans"]]
    assert not any("staging" in move for move in moves[0])
    assert any("staging" in move for move in moves[1]) != both
