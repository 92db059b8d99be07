"""`hetcomm profile` as a user runs it, and `hetcomm plan` with its files."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from planned import MODEL, profile
from preloaded import stand_in
from typer.testing import CliRunner, Result

import hetcomm
from hetcomm import rendezvous
from hetcomm.cli import app
from hetcomm.emulate import Cluster, Host, Nic
from hetcomm.emulate.cluster_text import text
from hetcomm.plan import Layout, Profile
from hetcomm.plan.profile import HostWork

LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE")
QUICK = ("--micro-batches", "1,2", "--seconds", "0.001")
BOUND = 480.0  # seconds; far above the time of any run, also on a busy machine
RANK = Path(__file__).with_name("profiling_rank.py")
STUBBED = 1.5e-5  # seconds; the host's work, where it is not measured


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a model's file."""
    (tmp_path / "model.json").write_text(MODEL.text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stubbed_host_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its measurement imports torch in two more processes; other tests here measure it."""
    stubbed = HostWork(STUBBED, STUBBED, STUBBED)
    monkeypatch.setattr("hetcomm.plan.measure.job.host_work_apart", lambda: stubbed)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), terminal_width=120)


def refused(*words: str) -> str:
    error = run(*words).exception
    assert isinstance(error, hetcomm.InvalidArgumentError), error
    return str(error)


def cluster_of(*kinds: str) -> str:
    nics = (Nic(10**9, 10**9),)
    hosts = (Host(f"host{i}", 2, nics, device=kind) for i, kind in enumerate(kinds))
    return text(Cluster(tuple(hosts)))


def test_a_measured_profile_serves_a_plan(folder: Path) -> None:
    done = run("profile", "model.json", "--device", "box", *QUICK)
    assert done.exit_code == 0, done.output
    assert "use it with hetcomm plan CLUSTER.toml model.json --profile profile.json" in done.output
    found = Profile.load("profile.json")
    assert found.model == MODEL and list(found.devices) == ["box"]
    assert {row.micro_batch for row in found.rows} == {1, 2}
    assert found.origins["box"]["hetcomm"] == hetcomm.__version__
    assert {scaling for _, scaling in found.errors} == {"micro-batch", "model"}
    work = found.host_work["box"]
    assert 0 < work.each_pass < 1 and 0 < work.message < 1 and 0 <= work.byte < 1e-6
    assert "the host works" in done.output
    (folder / "cluster.toml").write_text(cluster_of("box"))
    planned = run(
        "plan", "cluster.toml", "model.json", "--profile", "profile.json", "--batch", "8",
        "--layout", "layout.json", "--tolerance", "0.5",
    )  # fmt: skip
    assert planned.exit_code == 0, planned.output
    assert Layout.load("layout.json").layers == MODEL.layers


@pytest.mark.usefixtures("stubbed_host_work")
def test_the_command_that_a_plan_names_measures_what_lacks(folder: Path) -> None:
    profile().save("known.json")
    (folder / "cluster.toml").write_text(cluster_of("fast", "new box"))
    plan = ("plan", "cluster.toml", "model.json", "--profile", "known.json", "--batch", "4")
    said = refused(*plan)
    assert "times of new box, got only fast, slow" in said
    command, option = re.search(r"run `(.*)` on a host with new box, and add (.*)$", said).groups()
    program, *words = shlex.split(command)
    assert program == "hetcomm"
    assert run(*words, *QUICK).exit_code == 0
    assert run(*plan, *shlex.split(option), "--tolerance", "0.5").exit_code == 0


@pytest.mark.usefixtures("stubbed_host_work")
def test_a_kind_of_device_is_added_or_measured_again(folder: Path) -> None:
    profile().save("known.json")
    done = run("profile", "model.json", "--device", "fast", "--add", "known.json", *QUICK)
    assert done.exit_code == 0, done.output
    found = Profile.load("profile.json")
    assert sorted(found.devices) == ["fast", "slow"]
    before, after = (each.layer(MODEL, "slow", "block", 4, 1) for each in (profile(), found))
    assert before == after
    assert found.layer(MODEL, "fast", "block", 2, 1).forward < 1.0  # of known.json: 2 s
    replace(profile(), model=replace(MODEL, blocks=5)).save("other.json")
    said = refused("profile", "model.json", "--add", "other.json")
    assert "profiles of one model, got one with blocks=4" in said


def test_a_plan_takes_each_device_of_one_file(folder: Path) -> None:
    profile().save("known.json")
    (folder / "cluster.toml").write_text(cluster_of("fast"))
    said = refused("plan", "cluster.toml", "model.json", *("--profile", "known.json") * 2)
    assert "each device in one profile, got ['fast', 'slow'] in several" in said


def ranks(
    labels: tuple[str, ...],
    folder: Path,
    *options: str,
    apart: bool = False,
    stubbed: tuple[str, ...] = (),
) -> list[tuple[int, str]]:
    """Exit status and output of each rank; a label is the name of a rank's kind of device. apart:
    unlike kinds are on hosts of their own. stubbed: kinds whose host work is not measured."""
    port = rendezvous.free_port()
    clean = {name: each for name, each in os.environ.items() if name not in LAUNCHERS}
    command = [stand_in(), "-P", str(RANK), "profile", "model.json", *options, *QUICK]
    processes = []
    for rank, label in enumerate(labels):
        of_rank = {
            "RANK": str(rank), "WORLD_SIZE": str(len(labels)), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "HETCOMM_VENDOR": label, "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if apart:
            of_rank["HETCOMM_HOST_ID"] = f"{folder}-{label}"
        if label in stubbed:
            of_rank["STUBBED_HOST_WORK"] = str(STUBBED)
        processes.append(
            subprocess.Popen(
                [*command, "--timeout", "120"], cwd=folder, env=clean | of_rank,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    try:
        outputs = [process.communicate(timeout=BOUND)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, said) for process, said in zip(processes, outputs, strict=True)]


@pytest.mark.slow
def test_ranks_of_unlike_devices_write_one_file(folder: Path) -> None:
    found = ranks(("red", "blue", "red"), folder, stubbed=("red",))
    assert [status for status, _ in found] == [0, 0, 0], found
    assert "Written: profile.json" in found[0][1] and found[1][1] == found[2][1] == ""
    mine = Profile.load(folder / "profile.json")
    assert sorted(mine.devices) == ["blue", "red"]
    assert mine.host_work["red"] == HostWork(STUBBED, STUBBED, STUBBED)
    assert 0 < mine.host_work["blue"].message < 1 and mine.host_work["blue"].each_pass != STUBBED
    assert {(row.device, row.layer) for row in mine.rows} == {
        (device, kind) for device in mine.devices for kind in ("embedding", "block", "head")
    }
    (folder / "cluster.toml").write_text(cluster_of("red", "blue"))
    planned = run(
        "plan", "cluster.toml", "model.json", "--profile", "profile.json", "--batch", "8",
        "--tolerance", "0.5",
    )  # fmt: skip
    assert planned.exit_code == 0, planned.output


@pytest.mark.slow
def test_groups_of_ranks_measure_tensor_degrees(folder: Path) -> None:
    """Two ranks on one host, and a host with one rank, which cannot measure the degree 2."""
    found = ranks(
        ("red", "red", "blue"), folder, "--tensor", "2", apart=True, stubbed=("red", "blue")
    )
    assert [status for status, _ in found] == [0, 0, 0], found
    assert "blue: tensor degree 2, its host has 1 ranks" in found[0][1]
    mine = Profile.load(folder / "profile.json")
    measured = {(row.device, row.layer, row.tensor) for row in mine.rows}
    kinds = ("embedding", "block", "head")
    assert measured == {
        (device, kind, tensor)
        for device, tensor in (("red", 1), ("red", 2), ("blue", 1))
        for kind in kinds
    }
    assert mine.layer(MODEL, "red", "block", 2, 2).error == 0
    norms = 2 * 2 * 4 * MODEL.sequence
    assert mine.kept["block", 2] == MODEL.kept_bytes("block", 2) + norms


def test_tensor_degrees_that_no_host_can_measure_are_refused(folder: Path) -> None:
    said = refused("profile", "model.json", "--tensor", "2", *QUICK)
    assert "--tensor: expected a multiple of 2 ranks on a host" in said
    assert "torchrun --no-python --nproc-per-node 2" in said
    assert "3" in refused("profile", "model.json", "--tensor", "3", *QUICK)
    layers = "hetcomm.plan.measure.layers:plain"
    said = refused("profile", "model.json", "--tensor", "2", "--layers", layers, *QUICK)
    assert "--divide: expected both --layers and --divide" in said


def test_one_name_for_unlike_devices_is_refused_on_all_ranks(folder: Path) -> None:
    found = ranks(("red", "blue"), folder, "--device", "both")
    assert [status for status, _ in found] == [2, 2]
    assert "one kind of device for both, got ['red', 'blue']; leave --device out" in found[0][1]
    assert not (folder / "profile.json").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--micro-batches", "1,x"), "--micro-batches: expected numbers such as 1,2,4, got 1,x"),
        (("--micro-batches", "0"), "write numbers of at least 1"),
        (("--out", "no/where.json"), "--out: expected an existing folder"),
        (("--add", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_options_are_refused(folder: Path, words: tuple[str, ...], expected: str) -> None:
    assert expected in refused("profile", "model.json", *QUICK, *words)


def test_a_broken_model_is_refused(folder: Path) -> None:
    (folder / "broken.json").write_text('{"hetcomm model": 1, "blocks": 0}')
    assert "broken.json" in refused("profile", "broken.json")
