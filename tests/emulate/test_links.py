"""The kernel limits links to their rates, and the switch counts their bytes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from emulated import PROGRAMS, RunProgram, two_hosts

from hetcomm.emulate import Cluster, Nic, Result

pytestmark = pytest.mark.alone  # these tests measure rates
MEGABIT = 1_000_000


def _passes(
    run_program: RunProgram,
    cluster: Cluster,
    sender: int,
    count: int,
    good: Callable[[float], bool],
) -> Result:
    """The first run whose stream has a good rate. A busy machine disturbs single runs."""
    rates = []
    for _ in range(5):
        result, lines = run_program(cluster, "stream.py", sender, count)
        assert result.ok, lines
        (line,) = lines
        rates.append(float(line.split("] ")[1]))
        if good(rates[-1]):
            return result
    pytest.fail(f"no stream had the rate that was expected: {rates} bit/s")


def _near(rate: int) -> Callable[[float], bool]:
    return lambda measured: 0.9 <= measured / rate <= 1.1


@pytest.mark.parametrize("rate", [20, 100, 500])
def test_stream_runs_at_the_nominal_rate(run_program: RunProgram, rate: int) -> None:
    nic = Nic(rate * MEGABIT, rate * MEGABIT)
    count = rate * MEGABIT // 8
    _passes(run_program, two_hosts(nic=nic), 0, count, _near(rate * MEGABIT))


@pytest.mark.parametrize(("out", "into"), [(50, 200), (200, 50)])
def test_the_slower_of_two_nics_limits_a_stream(
    run_program: RunProgram, out: int, into: int
) -> None:
    """Each direction of a stream passes the sender's NIC outward and the receiver's NIC inward."""
    nic = Nic(out * MEGABIT, into * MEGABIT)
    _passes(run_program, two_hosts(nic=nic), 1, 50 * MEGABIT // 8, _near(50 * MEGABIT))


def test_an_unlimited_link_is_not_shaped(run_program: RunProgram) -> None:
    result = _passes(run_program, two_hosts(), 0, 100 * MEGABIT, lambda rate: rate > 300 * MEGABIT)
    assert result.links[0].rate_out is None


def test_counters_match_the_bytes_sent(run_program: RunProgram) -> None:
    count = 20_000_000
    result, lines = run_program(
        two_hosts(nic=Nic(400 * MEGABIT, 400 * MEGABIT)), "stream.py", 0, count
    )
    assert result.ok, lines
    red, blue = result.links
    assert (red.host, red.nic, blue.host) == ("red0", "eth0", "blue0")
    assert count <= red.out_bytes <= 1.03 * count
    assert count <= blue.in_bytes <= 1.03 * count
    assert blue.out_bytes < 0.03 * count  # for acknowledgements


def test_a_host_shapes_many_connections_together(run_program: RunProgram) -> None:
    """Six times the capacity of a switch port at once, and the sender's host drops no packet."""
    rate = 400 * MEGABIT
    cluster = two_hosts(ranks=(1, 6), nic=Nic(rate, rate))
    result, lines = run_program(cluster, "crowd.py", rate // 8 // 100)
    assert result.ok, lines
    assert lines[0].endswith("tbf 0"), lines


def test_traffic_inside_a_host_crosses_no_link(run_program: RunProgram) -> None:
    cluster = two_hosts(ranks=(2, 1), nic=Nic(MEGABIT, MEGABIT))
    count = 100_000_000  # more bytes than the link carries before the timeout of the run
    result, lines = run_program(cluster, "isolation.py", count)
    assert result.ok, lines
    assert result.links[0].out_bytes < 0.01 * count


@pytest.mark.needs("namespaces")
def test_the_command_writes_a_report(tmp_path: Path) -> None:
    cluster, report = tmp_path / "cluster.toml", tmp_path / "report.json"
    host = '[[host]]\nname = "{}"\nranks = 1\n[[host.nic]]\nrate = "500mbit"\n'
    cluster.write_text(host.format("red0") + host.format("blue0"))
    command = [sys.executable, "-m", "hetcomm", "emulate", str(cluster), "--report", str(report)]
    command += ["--order", "blue0,red0", "--timeout", "60", "--"]
    command += [sys.executable, str(PROGRAMS / "stream.py"), "0", "1000000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=80)
    assert done.returncode == 0, done.stderr
    assert "[1 red0]" in done.stdout
    assert "500mbit" in done.stdout
    written = json.loads(report.read_text())
    assert written["ok"] and written["exit_codes"] == [0, 0]
    blue = next(link for link in written["links"] if link["host"] == "blue0")
    assert 1_000_000 <= blue["out_bytes"] <= 1_030_000
    assert blue["rate_out"] == 500 * MEGABIT
