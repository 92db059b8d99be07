"""torch's environment variables, from those of srun and mpiexec."""

from __future__ import annotations

import math
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, Any

import typer

from hetcomm import _core
from hetcomm.emulate.kernel import die_with_parent
from hetcomm.job_key import FILE, KEY, new_key
from hetcomm.rendezvous import (
    Job,
    free_port,
    job_of,
    listen_on_free_port,
    whole_number,
    world_of_mpi,
)

# Local rank and number of local ranks, by launcher.
_LOCAL_VARIABLES = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH's, Intel's
    ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)
# An MPI finds its mpiexec by these. mpiexec accepts MPI_Init from one process per rank.
_OF_MPIEXEC = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPI_LOCAL", "HYDI_")
_ANSWER_SECONDS = 2.0  # for a host to answer
EXIT_NOT_FOUND = 127  # as of a shell


def torch_env(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of torch's `env://`, under torchrun, srun, mpiexec or no launcher.

    Call `os.environ.update(hetcomm.torch_env())` before `init_process_group`. Under mpiexec without
    MASTER_ADDR and MASTER_PORT, all ranks must call it: they agree on an address by mpi4py.

    Args:
        environment: of the launcher; the process's if None.

    Returns:
        RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; also LOCAL_RANK and LOCAL_WORLD_SIZE if the
        launcher sets them. A process without launcher is rank 0 of 1. Where the ranks agree by
        mpi4py, also HETCOMM_JOB_KEY, if the launcher gives no job key.

    Raises:
        InvalidArgumentError: a variable is missing or wrong, or mpi4py does not work.
        TransportError: some rank reaches no address of rank 0.
    """
    given = os.environ if environment is None else environment
    job = job_of(given)
    if job is None:
        job = Job(0, 1, "127.0.0.1", free_port())
        local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    else:
        local = _local_variables(given)
    made = {}
    if not job.address:
        world = world_of_mpi(job)
        job = Job(job.rank, job.size, *_reachable_address(world))
        made = _key_of_mpi(world, given)
    return {
        "RANK": str(job.rank),
        "WORLD_SIZE": str(job.size),
        "MASTER_ADDR": job.address,
        "MASTER_PORT": str(job.port),
        **local,
        **made,
    }


def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command of this rank.")
    ],
) -> None:
    """Run a torch program under srun or mpiexec: sets RANK, WORLD_SIZE, MASTER_ADDR and so on.

    For instance `srun hetcomm launch -- python train.py`, or the same after `mpiexec -n 8`.
    """
    if job_of(os.environ) is None:
        typer.echo(
            "hetcomm launch: no variables of torchrun, srun or mpiexec are set, so this is a job "
            "of one process; to start more, put srun or mpiexec before this command",
            err=True,
        )
    environment = os.environ | torch_env()
    try:
        if "mpi4py.MPI" in sys.modules:
            raise typer.Exit(_run_beside_mpi(command, environment))
        os.execvpe(command[0], command, environment)
    except OSError as error:
        typer.echo(f"hetcomm launch: {command[0]}: {error.strerror}", err=True)
        raise typer.Exit(EXIT_NOT_FOUND) from None


def _run_beside_mpi(command: list[str], environment: dict[str, str]) -> int:
    """Runs a child: MPICH's mpiexec kills a job if a rank calls exec after MPI_Init."""
    clean = {name: environment[name] for name in environment if not name.startswith(_OF_MPIEXEC)}
    child = subprocess.Popen(command, env=clean, preexec_fn=die_with_parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: child.send_signal(number))
    code = child.wait()
    if code == 0:
        return 0
    sys.stdout.flush()
    # MPI_Finalize would wait for other ranks. Without it, mpiexec ends them.
    os._exit(code if code > 0 else 128 - code)


def _key_of_mpi(world: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """A new job key, which MPI carries, if no rank has one."""
    given = any(world.allgather(any(environment.get(name) for name in (KEY, FILE))))
    made = world.bcast(new_key() if world.Get_rank() == 0 and not given else "")
    return {KEY: made} if made else {}


def _local_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """LOCAL_RANK and LOCAL_WORLD_SIZE, if the launcher sets them."""
    for rank, size in _LOCAL_VARIABLES:
        # A script of sbatch has number 0, too, which its processes inherit.
        if rank not in environment or (
            rank == "SLURM_LOCALID" and "SLURM_STEP_ID" not in environment
        ):
            continue
        found = {"LOCAL_RANK": whole_number(environment, rank)}
        if rank.startswith("SLURM"):
            if count := tasks_on(environment.get(size, ""), environment.get("SLURM_NODEID", "")):
                found["LOCAL_WORLD_SIZE"] = int(count)
        elif size in environment:
            found["LOCAL_WORLD_SIZE"] = whole_number(environment, size)
        if not found["LOCAL_RANK"] < found.get("LOCAL_WORLD_SIZE", math.inf):
            raise _core.InvalidArgumentError(
                f"expected {rank} below {size}, got {' and '.join(map(str, found.values()))}; "
                "correct the launcher's variables, or unset both"
            )
        return {name: str(value) for name, value in found.items()}
    return {}


def tasks_on(counts: str, node: str) -> str:
    """Tasks of a node in Slurm's list: "4(x2),3" has 4 for nodes "0" and "1". "" if missing."""
    each: list[str] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        each += [count] * min(int(times or 1), 100_000)
    return each[int(node)] if node.isdecimal() and int(node) < len(each) else ""


def _reachable_address(world: Any) -> tuple[str, int]:
    """An address of rank 0 that all ranks reach, and a free port there."""
    with ExitStack() as closing:
        sent = None
        if world.Get_rank() == 0:
            listener, port = listen_on_free_port()
            token = secrets.token_bytes(16)
            closing.enter_context(_serving_token(listener, token))
            names = [nic.address for nic in _core.probe_rank().nics if nic.address]
            sent = (["127.0.0.1", *dict.fromkeys(names), socket.gethostname()], port, token)
        names, port, token = world.bcast(sent)
        reached = world.allgather([_reaches(name, port, token) for name in names])
    for name, answers in zip(names, zip(*reached, strict=True), strict=True):
        if all(answers):
            return name, port
    raise _core.TransportError(
        f"expected an address of rank 0 that every rank reaches, tried {', '.join(names)}; "
        "set MASTER_ADDR and MASTER_PORT on all ranks, and see that no firewall is in between"
    )


@contextmanager
def _serving_token(listener: socket.socket, token: bytes) -> Iterator[None]:
    """Sends the token to each rank at once: a listener's queue is shorter than a large job."""

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # shut down below
                return
            with connection, suppress(OSError):
                connection.settimeout(_ANSWER_SECONDS)
                connection.sendall(token)
                connection.recv(1)  # the rank closes first, so the port is free at once

    thread = threading.Thread(target=answer, name="token", daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def _reaches(address: str, port: int, token: bytes) -> bool:
    """Whether rank 0 answers there, with its token: 127.0.0.1 is another machine on each host."""
    with (
        suppress(OSError),
        socket.create_connection((address, port), _ANSWER_SECONDS) as connection,
    ):
        return connection.recv(len(token)) == token
    return False
