"""`hetcomm bench` as the command of a job, by mpiexec, and on emulated clusters."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from benching import CLUSTER, COMMAND, QUICK, backends_of, bench, measured

import hetcomm.bench.backends

MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))


@pytest.mark.needs("mpiexec")
def test_mpi_starts_by_itself() -> None:
    found = measured("all_gather", "--backend", "hetcomm", "--backend", "mpi", "--ranks", 2)
    assert backends_of(found) == [(name, size) for size in (8, 1024) for name in ("hetcomm", "mpi")]
    assert found["backends"][1]["library"].startswith("MPICH ")


@pytest.mark.needs("mpiexec")
def test_bench_runs_under_mpiexec() -> None:
    command = (MPIEXEC, "-launcher", "fork", "-iface", "lo", "-n", "2", *COMMAND)
    done = bench("--backend", "mpi", "--backend", "hetcomm", *QUICK, command=command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks on 1 host") == 1  # of rank 0 alone
    assert done.stdout.count("  mpi ") == 2 and done.stdout.count("  hetcomm ") == 2
    refused = bench("--backend", "mpi", "--op", "avg", *QUICK, command=command)
    assert refused.returncode != 0
    assert refused.stderr.count("mpi cannot do all_reduce avg") == 1
    assert "MPI has no avg" in refused.stderr


@pytest.mark.needs("torch")
def test_bench_runs_under_torchrun() -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone")
    command = (*torchrun, "--nproc-per-node", "2", *COMMAND)
    done = bench("--backend", "gloo", "--backend", "hetcomm", *QUICK, command=command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks on 1 host") == 1
    assert "gloo = gloo of torch" in done.stdout


@pytest.mark.needs("namespaces")
def test_bench_runs_on_an_emulated_cluster() -> None:
    found = measured("all_reduce", "--cluster", CLUSTER, "--legs", "--order", "block")
    assert found["hosts"] == [0, 0, 1, 1]
    for row in found["rows"]:
        legs, predicted = row["legs"], row["predicted"]
        assert predicted["bridge_bytes"] == row["bytes"] and predicted["bridge"] > 0
        assert legs["bridge_bytes"] >= row["bytes"]
        assert sum(legs["last"]) == pytest.approx(1) and min(legs["waits"]) >= 0


@pytest.mark.needs("namespaces")
def test_legs_show_the_rank_waited_for() -> None:
    options = ("--sizes", "512k", "--iterations", 3, "--legs", "--json", "--cluster", CLUSTER)
    done = bench(*options)  # 4 ms on the wire
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    for told in (row["legs"]["inside"], row["legs"]["expected"]):
        assert len(told) == 4 and all(seconds > 0 for legs in told for seconds in legs.values())
        for rank, legs in enumerate(told):
            assert f"for {rank}" not in legs
            assert max(legs.values()) == legs["total"] and legs["bridge"] > 0 and legs["island"] > 0


@pytest.mark.needs("namespaces")
def test_bench_runs_as_the_command_of_an_emulated_cluster() -> None:
    emulate = (*COMMAND[:-1], "emulate", str(CLUSTER), "--")
    done = bench("broadcast", *QUICK, command=(*emulate, *COMMAND))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("[0 red0] 4 ranks on 2 hosts") == 1


@pytest.mark.needs("mpiexec", "namespaces")
def test_mpi_runs_on_an_emulated_cluster() -> None:
    found = measured(
        "all_gather", "--cluster", CLUSTER, "--legs", "--backend", "mpi", "--backend", "hetcomm"
    )
    assert found["hosts"] == [0, 1, 0, 1]  # MPI starts ranks in another order
    assert backends_of(found) == [(b, size) for size in (16, 1024) for b in ("mpi", "hetcomm")]
    for row in found["rows"]:  # MPI has used the bridge, not memory that both hosts share
        assert row["legs"]["bridge_bytes"] >= row["bytes"] / 2


def test_impossible_clusters_are_rejected(tmp_path: Path) -> None:
    broken = tmp_path / "cluster.toml"
    broken.write_text("[[host]]\n")
    done = bench("--cluster", broken, *QUICK)
    assert done.returncode == 2 and "host[0]." in done.stderr


def test_ranks_and_cluster_are_rejected_under_a_launcher() -> None:
    settings = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    done = bench("--ranks", 2, **settings)
    assert done.returncode == 2 and "a launcher has started them" in done.stderr


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hetcomm.bench.backends, "find_spec", lambda name: None)
    for backend, package in (("mpi", "mpi4py"), ("gloo", "torch")):
        with pytest.raises(hetcomm.InvalidArgumentError, match=f"{package} is not installed; pip"):
            hetcomm.bench.backends.family_of(backend)


@pytest.mark.needs("mpiexec")  # and so no mpi4py
def test_a_missing_mpiexec_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tmp_path / "python"
    alone.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(alone))
    monkeypatch.setenv("PATH", str(tmp_path))
    from hetcomm.bench import launch
    from hetcomm.bench.settings import Settings

    settings = Settings(("all_reduce",), ("mpi",), (8,))
    with pytest.raises(hetcomm.InvalidArgumentError, match="found no mpiexec"):
        launch.by_mpiexec(settings, 2, lambda event: None)
