"""Congestion control: cubic where the machine permits cubic, else reno, with one note."""

import errno
import io
import logging
import os
from pathlib import Path

import pytest
from emulated import two_hosts

from hetcomm.emulate import Cluster, ClusterError, congestion, launch, run
from hetcomm.emulate.congestion import choose, note

SHOW = ["sh", "-c", f"cat {congestion.CONTROL}"]


class Control:
    """A kernel's tcp_congestion_control that permits some names and rejects all others."""

    def __init__(self, default: str, permitted: str) -> None:
        self.value, self.permitted, self.refusal = default, permitted.split(), errno.EPERM

    def read_text(self, encoding: str) -> str:
        return f"{self.value}\n"

    def write_text(self, name: str, encoding: str) -> None:
        if name not in self.permitted:
            raise OSError(self.refusal, os.strerror(self.refusal))
        self.value = name


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Control:
    """The default is bbr, and cubic is restricted: a common server setting."""
    control = Control("bbr", "reno bbr")
    monkeypatch.setattr(congestion, "CONTROL", control)
    for name, controls in {"ALLOWED": "reno bbr\n", "AVAILABLE": "reno bbr cubic\n"}.items():
        file = tmp_path / name
        file.write_text(controls)
        monkeypatch.setattr(congestion, name, file)
    return control


def test_cubic_is_taken_where_it_is_permitted(machine: Control) -> None:
    machine.permitted.append("cubic")
    assert choose(None) == machine.value == "cubic"
    assert note(None, "cubic") is None


def test_the_default_is_taken_where_neither_cubic_nor_reno_is_permitted(machine: Control) -> None:
    machine.permitted = ["bbr"]
    assert choose(None) == machine.value == "bbr"


def test_reno_is_taken_where_cubic_is_restricted(machine: Control) -> None:
    assert choose(None) == machine.value == "reno"
    sentence = note(None, "reno")
    assert sentence is not None
    assert "does not permit cubic" in sentence
    assert "hosts use reno" in sentence
    assert "container, sysctl net.ipv4.tcp_allowed_congestion_control='reno bbr cubic'" in sentence


def test_an_unloaded_module_is_loaded_first(machine: Control) -> None:
    congestion.AVAILABLE.write_text("reno bbr\n")
    sentence = note(None, "bbr")
    assert sentence is not None and "modprobe tcp_cubic; sysctl net.ipv4" in sentence


def test_a_permitted_control_needs_no_note(machine: Control) -> None:
    assert choose("reno") == machine.value == "reno"
    assert note("reno", "reno") is None


def test_a_restricted_control_is_an_error(machine: Control) -> None:
    with pytest.raises(ClusterError) as caught:
        choose("cubic")
    error = caught.value
    assert error.key == "network.congestion"
    assert error.expected == "a machine that permits cubic in a network namespace"
    assert error.got.startswith("EPERM")
    assert "sysctl net.ipv4.tcp_allowed_congestion_control='reno bbr cubic'" in error.remedy
    assert error.remedy.endswith("or delete the key and get bbr")


def test_unwritable_settings_are_an_error(machine: Control) -> None:
    machine.refusal = errno.EROFS
    with pytest.raises(ClusterError, match="expected a writable /proc/sys, got EROFS"):
        choose("cubic")


def _run(cluster: Cluster) -> tuple[str, tuple[str, ...], set[str]]:
    output = io.StringIO()
    result = run(cluster, SHOW, stdout=output, timeout=30)
    assert result.ok
    return (
        result.congestion,
        result.notes,
        {line.split()[-1] for line in output.getvalue().splitlines()},
    )


@pytest.mark.needs("namespaces")
def test_a_run_notes_its_control_once(caplog: pytest.LogCaptureFixture) -> None:
    launch._log_once.cache_clear()
    for _ in range(2):
        used, notes, seen = _run(two_hosts())
        assert seen == {used}
        assert len(notes) == (used != "cubic")
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert [each.getMessage() for each in warnings] == [f"hetcomm emulate: {n}" for n in notes]


@pytest.mark.needs("namespaces")
def test_reno_is_permitted_everywhere() -> None:
    assert _run(Cluster(two_hosts().hosts, congestion="reno")) == ("reno", (), {"reno"})


@pytest.mark.needs("namespaces")
def test_a_control_missing_in_the_kernel_is_an_error() -> None:
    with pytest.raises(ClusterError) as caught:
        run(Cluster(two_hosts().hosts, congestion="carrier_pigeon"), SHOW, timeout=30)
    assert caught.value.key == "network.congestion"
    assert "reno" in caught.value.expected
    assert "modprobe tcp_carrier_pigeon" in caught.value.remedy
