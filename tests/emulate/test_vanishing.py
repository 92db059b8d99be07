"""A host whose network fails is noticed within HETCOMM_PEER_TIMEOUT, long before the timeout. A
shorter outage ends no job."""

import pytest
from emulated import RunProgram

from hetcomm.emulate import Cluster, Host, Nic

NOTICE = 10.0  # seconds; far above the bound of 2 s


@pytest.mark.parametrize("how", ["down", "swallowed", "gone"])
@pytest.mark.parametrize("hosts", [2, 3])
def test_an_unreachable_host_is_named(run_program: RunProgram, hosts: int, how: str) -> None:
    cluster = Cluster(tuple(Host(f"host{number}", 1, (Nic(),)) for number in range(hosts)))
    result, lines = run_program(cluster, "vanishing.py", how, "amid", timeout=100)
    gone = how == "gone"
    assert result.failed_rank == 0 if gone else result.ok, lines
    assert_named(lines, range(int(gone), hosts))


@pytest.mark.parametrize("how", ["down", "swallowed"])
def test_a_first_message_to_an_unreachable_host_has_a_bound(
    run_program: RunProgram, how: str
) -> None:
    """No link to the receiver exists yet, and none comes about."""
    cluster = Cluster((Host("host0", 1, (Nic(),)), Host("host1", 4, (Nic(),))))
    result, lines = run_program(cluster, "vanishing.py", how, "first", timeout=100)
    assert result.ok, lines
    assert_named(lines, range(cluster.ranks))


def test_a_short_outage_ends_no_job(run_program: RunProgram) -> None:
    """TCP sends again 0.2, 0.6 and 1.4 s after the beginning of an outage, so these outages look as
    long as 1.4 s to its connections. The kernel may remember the first outage in the third."""
    cluster = Cluster(tuple(Host(f"host{number}", 1, (Nic(),)) for number in range(3)))
    result, lines = run_program(cluster, "outages.py", "0.7", "1.0", "1.2", timeout=100)
    assert result.ok, lines
    assert sum("] right: " in line for line in lines) == cluster.ranks, lines


def assert_named(lines: list[str], ranks: range) -> None:
    """Each of the ranks has an error that names a failed rank, and one error says why. A rank that
    had no processor for seconds may see its link fail before the rank judges."""
    failed = sorted(line for line in lines if "] failed: " in line)
    assert len(failed) == len(ranks), lines
    for rank, line in zip(ranks, failed, strict=True):
        seconds, kind, text = line.split("] failed: ")[1].split(" ", 2)
        assert kind == "PeerFailedError" and float(seconds) < NOTICE, lines
        if "unreachable" in text:
            assert "HETCOMM_PEER_TIMEOUT" in text, lines
            assert rank == 0 or "rank 0 is unreachable" in text or "by rank 0]" in text, lines
        else:
            assert rank > 0 and "rank 0" in text, lines
    assert any("unreachable" in line for line in failed), lines
