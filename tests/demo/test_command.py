"""The command: a whole quick demo in an emulated cluster, and the message of each failure."""

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
import typer
from preloaded import stand_in
from rich.console import Console
from typer.testing import CliRunner, Result

from hetcomm.demo import command, launcher, planning
from hetcomm.demo.launcher import Launcher, RunError
from hetcomm.demo.training import Comparison, Training
from hetcomm.emulate import Cluster, ClusterError, RefusedError, load, run
from hetcomm.emulate import Result as Ended
from hetcomm.plan import Layout

ONE_LINK = '[[host.nic]]\nrate = "1gbit"\n'
ONE_RANK_EACH = "".join(
    f'[[host]]\nname = "{name}"\nranks = 1\n{ONE_LINK}' for name in ("north", "south")
)


def invoke(output: Path, *words: str) -> Result:
    app = typer.Typer()
    app.command()(command.demo)
    arguments = ["--quick", "--backend", "gloo", "--output", str(output), *words]
    return CliRunner().invoke(app, arguments)


def cluster() -> Cluster:
    return load(command.HERE / "cluster.toml")


def settings(cluster: Cluster) -> command.Settings:
    return command.Settings(Launcher(run), cluster, steps=1, seed=0, timeout=60)


@pytest.fixture
def measures_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "PROFILE_SECONDS", 0.03)
    monkeypatch.setattr(planning, "TUNE_SIZES", "64k:1M:4")
    monkeypatch.setattr(planning, "TUNE_SECONDS", 0.003)


@pytest.mark.needs("namespaces")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("measures_briefly")
def test_a_quick_demo_agrees_and_writes_its_results(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--backend", "hetcomm", "--order", "interleaved")
    assert result.exit_code == 0, result.output
    assert "rank order: north south north south" in result.output
    assert "The losses agree at every step" in result.output
    assert "\x1b" not in result.output
    written = json.loads((tmp_path / "demo.json").read_text())
    for layout in ("ddp", "pipeline"):
        run = written["layouts"][layout]["candidate"]
        assert len(run["losses"]) == command.QUICK_STEPS
        assert run["median_network_bytes"] > 10_000
    lossless, int8 = written["codecs"]["lossless"], written["codecs"]["int8"]
    assert lossless["largest_loss_difference"] == 0 and 1 < lossless["fewer_bytes"] < 2
    assert 0 < int8["largest_loss_difference"] < 0.05 and 3 < int8["fewer_bytes"] < 5
    assert len(int8["candidate"]["losses"]) == command.QUICK_STEPS
    assert len(written["vendors"]["losses"]) == command.QUICK_STEPS
    assert "nvidia and amd islands (emulated GPUs) trained together" in result.output
    steps = written["plan"]["steps"]
    assert set(steps) == {"ddp", "pipeline", "planned"}
    assert all(step["predicted_seconds"] > 0 for step in steps.values())
    assert written["plan"]["largest_loss_difference"] < 1e-4
    assert "Planned layout: " in result.output
    assert Layout.load(tmp_path / "layout.json").ranks == [0, 1, 2, 3]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["demo.json", "demo.png", "layout.json"]


@pytest.mark.needs("namespaces")
def test_a_failing_rank_is_quoted(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--baseline", "carrier_pigeon")
    assert result.exit_code == 1
    assert "ddp on carrier_pigeon: rank" in result.output
    assert "The last lines of rank" in result.output
    assert "carrier_pigeon" in result.output.partition("The last lines")[2]


def test_a_timeout_after_which_all_ranks_exit_with_0_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("late\n")
    late = Ended((0, 0), ("north", "south"), (), "", (), 5.0, None, timed_out=True)
    with pytest.raises(RunError, match=r"exit with 0: none\nThe last lines of rank 0:\n  late"):
        Launcher(lambda *_, **__: late).run_ranks(cluster(), ["true"], tmp_path, 5)


@pytest.mark.needs("namespaces")
def test_an_overlong_run_is_ended(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--timeout", "1")
    assert result.exit_code == 1
    assert "timed out after" in result.output


def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RefusedError("namespaces", "the kernel to make them", "EPERM", "run as root")

    monkeypatch.setattr(launcher, "run", refuse)


def test_ranks_import_where_modules_cannot_be_preloaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[dict[str, object]] = []

    def run(*_: object, **options: object) -> Ended:
        calls.append(options)
        if "preload" in options:
            raise ClusterError("preload", "modules that start no threads", "1", "leave them out")
        return Ended((0, 0), ("north", "south"), (), "cubic", (), 1.0, None, False)

    Launcher(run).run_ranks(cluster(), ["true"], tmp_path, 5, ["torch"])
    assert [call.get("preload") for call in calls] == [["torch"], None]
    assert "start no threads, got 1; leave them out: each rank imports" in caplog.text


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("measures_briefly")
def test_without_namespaces_the_demo_runs_on_the_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_namespaces(monkeypatch)
    monkeypatch.setattr(sys, "executable", stand_in())  # each rank of a run would import torch
    small = tmp_path / "small.toml"
    small.write_text(ONE_RANK_EACH)
    result = invoke(tmp_path, "--backend", "hetcomm", "--cluster", str(small))
    assert result.exit_code == 0, result.output
    refusal = "namespaces: expected the kernel to make them, got EPERM; run as root"
    assert f"This machine cannot emulate a cluster: {refusal}." in result.output
    assert "plain processes on one machine's loopback, no link shaped" in result.output
    assert "2 islands, 2 hosts" in result.output
    assert "tcp over eth" not in result.output
    assert "not counted" in result.output
    assert "The losses agree at every step" in result.output
    written = json.loads((tmp_path / "demo.json").read_text())
    assert (written["links_are_shaped"], written["missing"]) == (False, refusal)
    for layout in ("ddp", "pipeline"):
        candidate = written["layouts"][layout]["candidate"]
        assert len(candidate["losses"]) == command.QUICK_STEPS
        assert candidate["network_bytes"] is candidate["median_network_bytes"] is None
    assert written["plan"]["steps"]["planned"]["predicted_seconds"] is None
    assert len(written["plan"]["losses"]) == command.QUICK_STEPS
    assert "no link is shaped here" in result.output
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_failing_rank_on_the_loopback_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_namespaces(monkeypatch)
    result = invoke(tmp_path, "--baseline", "carrier_pigeon")
    assert result.exit_code == 1
    assert "ddp on carrier_pigeon: rank" in result.output
    assert "carrier_pigeon" in result.output.partition("The last lines")[2]


def test_a_wrong_cluster_is_an_error(tmp_path: Path) -> None:
    """The loopback replaces only clusters that the machine cannot run, not mistakes."""
    file = tmp_path / "cluster.toml"
    text = (command.HERE / "cluster.toml").read_text()
    file.write_text(f"[network]\nmtu = 3\n{text}")
    result = invoke(tmp_path, "--cluster", str(file))
    assert result.exit_code == 2
    assert "network.mtu: expected an integer from 1280" in result.output


def test_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = invoke(tmp_path / "file")
    assert result.exit_code == 1
    assert "expected a folder that files can be written to, got [Errno 17]" in result.output
    assert "name one by --output" in result.output


def test_an_odd_number_of_ranks_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "three.toml"
    file.write_text(f'[[host]]\nname = "a"\nranks = 3\n{ONE_LINK}')
    result = invoke(tmp_path, "--cluster", str(file))
    assert result.exit_code == 2
    assert "expected an even number of ranks" in result.output


@pytest.mark.parametrize(("ranks", "batch"), [(2, 8), (4, 8), (6, 12), (10, 20)])
def test_the_batch_is_shared_evenly(tmp_path: Path, ranks: int, batch: int) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(f'[[host]]\nname = "a"\nranks = {ranks}\n{ONE_LINK}')
    chosen = settings(load(file)).batch
    assert chosen == batch
    assert chosen % ranks == 0


def test_diverging_losses_end_in_failure(tmp_path: Path) -> None:
    def made_up(backend: str, last: float) -> Training:
        return Training("ddp", backend, [5.0, last], [1.0, 1.0], [10, 10], 4_000_000)

    comparison = Comparison(made_up("gloo", 4.0), made_up("hetcomm", 4.1), tolerance=1e-4)
    screen = StringIO()
    with pytest.raises(typer.Exit) as raised:
        facts = settings(cluster())
        results = command.Results([comparison])
        command.finish(Console(file=screen, width=200), results, facts, tmp_path)
    assert raised.value.exit_code == 1
    assert "LOSSES DIFFER: ddp: from step 1" in screen.getvalue()
    assert json.loads((tmp_path / "demo.json").read_text())["layouts"]["ddp"]["agrees"] is False
