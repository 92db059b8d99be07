"""Refusals of the kernel, each with the remedy for its reason, and of reports."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner
from typer.testing import Result as Invoked

import hetcomm
from hetcomm.cli import app
from hetcomm.emulate import RefusedError, Result, command
from hetcomm.emulate.error import refusal


@pytest.mark.parametrize(
    ("code", "got", "remedy"),
    [
        (errno.EPERM, "EPERM (Operation not permitted)", "be someone else"),
        (errno.EMFILE, "EMFILE (Too many open files)", "raise the limit of open files (ulimit -n)"),
        (errno.EAGAIN, "EAGAIN (", "raise the limit of processes (ulimit -u"),
        (errno.ENOMEM, "ENOMEM (", "free memory"),
    ],
)
def test_an_exhausted_resource_has_its_own_remedy(code: int, got: str, remedy: str) -> None:
    with (
        pytest.raises(RefusedError) as caught,
        refusal("red0", "the kernel to make namespaces", "be someone else"),
    ):
        raise OSError(code, os.strerror(code))
    error = caught.value
    assert error.got.startswith(got)
    assert error.remedy.startswith(remedy)
    assert str(error).startswith("red0: expected the kernel to make namespaces, got E")


def test_a_report_without_a_folder_is_refused_before_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", lambda *_, **__: pytest.fail("the job ran"))
    error = emulate(tmp_path, tmp_path / "no/where").exception
    assert isinstance(error, hetcomm.InvalidArgumentError)
    assert "--report: expected an existing folder" in str(error)


def test_a_report_that_cannot_be_written_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Result((0,), ("red0",), (), "cubic", (), 1.0, None, timed_out=False)
    monkeypatch.setattr(command, "run", lambda *_, **__: done)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)  # that of this process
    result = emulate(tmp_path, tmp_path)
    assert result.exit_code == 2
    assert f"a file that can be written, got {tmp_path}: Is a directory" in result.output


def emulate(folder: Path, report: Path) -> Invoked:
    cluster = folder / "cluster.toml"
    cluster.write_text('[[host]]\nname = "red0"\nranks = 1\n[[host.nic]]\nrate = "1gbit"\n')
    return CliRunner().invoke(app, ["emulate", str(cluster), "--report", str(report), "--", "true"])
