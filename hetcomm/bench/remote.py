"""MPI on an emulated cluster: mpiexec runs on the first host, and starts an agent in place of ssh.

The agent sends the command to the process that serves the host. The socket lies in a folder common
to all emulated hosts, so nothing listens on a network.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hetcomm.bench import rank
from hetcomm.emulate import Cluster
from hetcomm.emulate.job import Job

PORT = 29500
END = "end"
BOUND = 60.0  # seconds until a host is served
# Settings of MPICH and Open MPI, unless the user has set them. Ranks outnumber cores here.
OF_MPIEXEC = {
    "HYDRA_LAUNCHER": "ssh",
    "HYDRA_IFACE": "eth0",
    "PRTE_MCA_rmaps_default_mapping_policy": "slot",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_prte_if_include": "eth0",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def prepare(folder: Path, cluster: Cluster, mpiexec: str) -> list[str]:
    """Writes the files of the hosts. Returns the command of each emulated rank."""
    job = Job(cluster, (), {}, PORT, None, 0.0, None)
    environments = [job.environment_of(each) for each in range(cluster.ranks)]
    (folder / "environments.json").write_text(json.dumps(environments))
    for file, form in (("hydra", "{}:{}\n"), ("prte", "{} slots={}\n")):
        lines = (form.format(host.name, host.ranks) for host in cluster.hosts)
        (folder / file).write_text("".join(lines))
    program = f"exec {sys.executable} -P -m hetcomm.bench.remote"
    agent = folder / "agent"
    agent.write_text(f'#!/bin/sh\n{program} agent {folder} "$@"\n')
    agent.chmod(0o700)
    return [sys.executable, "-P", "-m", "hetcomm.bench.remote", "host", str(folder), mpiexec]


def host(folder: Path, mpiexec: str, environment: Mapping[str, str]) -> int:
    """An emulated rank: the first rank of each host serves the host, rank 0 runs mpiexec."""
    if environment["LOCAL_RANK"] != "0":
        return 0
    name = environment["HETCOMM_EMULATED_HOST"]
    if environment["RANK"] != "0":
        return serve(folder, name)
    command = [mpiexec, "-n", environment["WORLD_SIZE"]]
    command += [sys.executable, "-P", "-m", "hetcomm.bench.remote", "rank", str(folder)]
    given = {
        "HYDRA_LAUNCHER_EXEC": "agent",
        "HYDRA_HOST_FILE": "hydra",
        "PRTE_MCA_plm_ssh_agent": "agent",
        "PRTE_MCA_prte_default_hostfile": "prte",
    }
    files = {variable: str(folder / file) for variable, file in given.items()}
    try:
        return subprocess.run(command, env={**OF_MPIEXEC, **environment, **files}).returncode
    finally:
        for line in (folder / "hydra").read_text().split():
            other = line.partition(":")[0]
            if other == name:
                continue
            with suppress(OSError), _connect(folder, other) as connection:
                connection.sendall(END.encode())


def serve(folder: Path, name: str) -> int:
    """Runs the commands of agents until END arrives. Each command is a process group, which ends
    with its agent."""
    running: dict[socket.socket, subprocess.Popen[bytes]] = {}
    with socket.socket(socket.AF_UNIX) as server:
        path = folder / f"{name}.socket"
        server.bind(f"{path}.new")
        server.listen()
        os.rename(f"{path}.new", path)  # the name appears once the socket accepts
        while True:
            server.settimeout(0.1 if running else None)
            with suppress(TimeoutError):
                connection, _ = server.accept()
                command = connection.recv(1 << 16).decode()
                if command == END:
                    break
                running[connection] = subprocess.Popen(
                    ["sh", "-c", command], stdin=subprocess.DEVNULL, start_new_session=True
                )
            for connection, process in list(running.items()):
                if process.poll() is not None or _closed(connection):
                    _finish(connection, process)
                    del running[connection]
    for connection, process in running.items():
        _finish(connection, process)
    return 0


def _closed(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _finish(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with suppress(OSError), connection:
        connection.sendall(str(abs(process.returncode)).encode())


def _connect(folder: Path, name: str, bound: float = 0.0) -> socket.socket:
    """Retries for `bound` seconds, because a host may still be starting."""
    deadline = time.monotonic() + bound
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(folder / f"{name}.socket"))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def agent(folder: Path, words: list[str]) -> int:
    """`agent [-options] HOST COMMAND...`, as ssh. Returns the exit status of the command."""
    while words and words[0].startswith("-"):
        words = words[1:]
    with _connect(folder, words[0], BOUND) as connection:
        connection.sendall(" ".join(words[1:]).encode())
        return int(connection.recv(16) or b"1")


def mpi_rank(folder: Path) -> int:
    """A rank started by mpiexec: finds the emulated rank that it stands for."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    here = socket.gethostname()
    hosts = world.allgather(here)
    environments = json.loads((folder / "environments.json").read_text())
    wanted = [each["HETCOMM_EMULATED_HOST"] for each in environments]
    if sorted(hosts) != sorted(wanted):
        print(f"expected mpiexec to start ranks on {wanted}, it did on {hosts}", file=sys.stderr)
        return rank.EXIT_FAILED
    of_host = [each for each in environments if each["HETCOMM_EMULATED_HOST"] == here]
    # mpiexec has passed its own environment to all ranks.
    os.environ.update(of_host[hosts[: world.rank].count(here)])
    return rank.main(folder)


def main(what: str, folder: Path, *words: str) -> int:
    if what == "host":
        return host(folder, words[0], os.environ)
    return agent(folder, list(words)) if what == "agent" else mpi_rank(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
