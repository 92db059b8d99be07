"""Where ranks meet: variables of launchers, the TCP store, torchrun and mpiexec themselves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from ports import free_port
from ranks_of_arrays import BOUND, PROGRAMS, run

import hetcomm
from hetcomm import rendezvous
from hetcomm.rendezvous import Job, job_of

MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "1234"}
SLURM = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "gpu[07-09,12],login",
}  # fmt: skip


def test_launcher_variables_give_the_job() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2"} | MASTER
    openmpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    assert job_of({}) is None
    assert job_of(torchrun) == Job(1, 2, "node1", 1234)
    assert job_of(torchrun | {"MASTER_ADDR": "[fd00::1]"}) == Job(1, 2, "fd00::1", 1234)
    assert job_of(openmpi) == Job(1, 2)
    assert job_of({"PMI_RANK": "0", "PMI_SIZE": "1"} | MASTER) == Job(0, 1, "node1", 1234)
    name = "job 17, step 2 of Slurm"
    assert job_of(SLURM) == Job(3, 8, "gpu07", 20_000 + 17 * 64 + 2, name)
    assert job_of(SLURM | MASTER) == Job(3, 8, "node1", 1234)
    # `srun --preserve-env` keeps the number of the allocation in SLURM_NTASKS.
    assert job_of(SLURM | {"SLURM_STEP_NUM_TASKS": "4"}) == Job(
        3, 4, "gpu07", 20_000 + 17 * 64 + 2, name
    )
    pmi2 = {"PMI_RANK": "3", "PMI_SIZE": "8"}  # of `srun --mpi=pmi2`
    assert job_of(SLURM | pmi2) == Job(3, 8, "gpu07", 20_000 + 17 * 64 + 2, name)
    assert job_of(SLURM | pmi2 | {"MPI_LOCALRANKID": "0"}) == Job(3, 8)  # MPICH's mpiexec by srun
    assert job_of(SLURM | openmpi) == Job(1, 2)  # mpiexec inside an allocation
    assert job_of(SLURM | openmpi | torchrun) == Job(1, 2, "node1", 1234)


IN_ALLOCATION = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "gpu[07-09]"}
IN_BATCH_SCRIPT = IN_ALLOCATION | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.mark.parametrize("environment", [{}, MASTER, IN_ALLOCATION, IN_BATCH_SCRIPT | MASTER])
def test_no_variable_of_a_rank_is_a_process_alone(environment: dict[str, str]) -> None:
    """MASTER_ADDR and MASTER_PORT stand in scripts that start the ranks."""
    assert job_of(environment) is None
    assert hetcomm.torch_env(environment)["WORLD_SIZE"] == "1"


def test_the_shell_of_an_interactive_step_is_alone() -> None:
    """salloc starts its shell as a step of one task, and keeps the job's SLURM_NTASKS."""
    shell = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290"}
    assert job_of(shell | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    assert job_of(shell | {"SLURM_STEP_NUM_TASKS": "1", "MASTER_ADDR": "node1"}) is None


RANKS = (
    {"RANK": "1", "WORLD_SIZE": "2"} | MASTER,
    {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
    {"PMI_RANK": "1", "PMI_SIZE": "2"},
    SLURM,
    SLURM | {"SLURM_STEP_NUM_TASKS": "8"},
)
WRONG = ("", "abc", "-1", "1.0", " ", "1 2", "\u0663", "9" * 5000, "99999999999")


@pytest.mark.parametrize("environment", RANKS, ids=lambda names: next(iter(names)))
def test_an_incomplete_environment_is_rejected(environment: dict[str, str]) -> None:
    """No rank may take itself for a process alone."""
    assert job_of(environment) is not None
    for name in environment:
        left = {other: value for other, value in environment.items() if other != name}
        if name == "SLURM_STEP_NUM_TASKS":
            continue  # SLURM_NTASKS says it
        if name == "SLURM_NTASKS" and "SLURM_STEP_NUM_TASKS" in environment:
            continue
        for find in (job_of, hetcomm.torch_env):
            with pytest.raises(hetcomm.InvalidArgumentError, match=f"expected {name}"):
                find(left)


@pytest.mark.parametrize("environment", RANKS[:4], ids=lambda names: next(iter(names)))
def test_a_wrong_number_of_a_launcher_is_rejected(environment: dict[str, str]) -> None:
    rank, size = list(environment)[:2]
    for name in (rank, size):
        for value in WRONG:
            with pytest.raises(hetcomm.InvalidArgumentError, match=name):
                job_of(environment | {name: value})


@pytest.mark.parametrize(
    "name",
    ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMIX_RANK", "SLURM_PROCID"],
)
def test_a_rank_without_its_number_of_ranks_is_rejected(name: str) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match="start with torchrun"):
        job_of({name: "1"})
    with pytest.raises(hetcomm.InvalidArgumentError, match="start with torchrun"):
        hetcomm.torch_env({name: "1"} | MASTER)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"} | MASTER, "expected RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "expected MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "expected MASTER_ADDR"),
        ({"RANK": "2", "WORLD_SIZE": "2"} | MASTER, "RANK below WORLD_SIZE, .*; got 2 and 2"),
        ({"RANK": "x", "WORLD_SIZE": "2"} | MASTER, 'RANK: expected a whole number, got "x"'),
        ({"RANK": "0", "WORLD_SIZE": "2"} | MASTER | {"MASTER_PORT": "70000"}, "got 70000"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, "expected SLURM_JOB_ID"),
    ],
)
def test_a_broken_environment_is_rejected(environment: dict[str, str], words: str) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=words):
        job_of(environment)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("n[1-3]", "n1"), ("n[007,9]-ib,x", "n007-ib"), ("n1,n[2-3]", "n1")],
)
def test_the_first_slurm_host_is_found(nodes: str, first: str) -> None:
    assert rendezvous.first_host(nodes) == first


def test_a_process_without_launcher_is_alone() -> None:
    with hetcomm.Communicator.from_env({}) as alone:
        assert (alone.rank, alone.size) == (0, 1)
        data = bytearray(b"abc")
        assert alone.all_reduce(data, data) == b"abc"
        again = alone.split(4)
        assert again is not None and again.size == 1


@pytest.fixture
def server() -> Iterator[hetcomm.TcpStoreServer]:
    with contextlib.closing(hetcomm.TcpStoreServer()) as found:
        yield found


def test_get_waits_for_a_later_set(server: hetcomm.TcpStoreServer) -> None:
    store = hetcomm.TcpStore("127.0.0.1", server.port)
    other = hetcomm.PrefixStore(hetcomm.TcpStore("localhost", server.port), "a/")
    large = os.urandom(3_000_000)
    timer = threading.Timer(0.05, store.set, ("a/key", large))
    timer.start()
    assert other.get("key", timedelta(seconds=BOUND)) == large
    other.set("key", b"")
    assert store.get("a/key", timedelta(seconds=BOUND)) == b""
    with pytest.raises(TimeoutError, match="no rank has set missing"):
        store.get("missing", timedelta(milliseconds=1))
    store.set("missing", b"x")  # its connection stays usable
    assert store.get("missing", timedelta(seconds=BOUND)) == b"x"


def test_threads_do_not_wait_for_each_other(server: hetcomm.TcpStoreServer) -> None:
    store = hetcomm.TcpStore("127.0.0.1", server.port)
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(store.get("late", timedelta(seconds=BOUND)))
    )
    waiting.start()
    store.set("other", b"1")
    assert store.get("other", timedelta(seconds=BOUND / 4)) == b"1"
    store.set("late", b"2")
    waiting.join(BOUND)
    assert found == [b"2"]


def test_an_interrupted_wait_leaves_no_answer_behind(server: hetcomm.TcpStoreServer) -> None:
    """The next wait cannot take an answer to an interrupted wait."""

    class Interrupt(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    store = hetcomm.TcpStore("127.0.0.1", server.port)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupt):
            store.get("late", timedelta(seconds=BOUND))
    finally:
        signal.signal(signal.SIGALRM, before)
    store.set("late", b"late")
    store.set("x", b"x")
    assert store.get("x", timedelta(seconds=BOUND)) == b"x"


@pytest.mark.parametrize("missing", ["set", "get", "bytes"])
def test_an_incomplete_store_is_rejected(missing: str) -> None:
    def put(self: hetcomm.Store, key: str, value: bytes) -> None:
        pass

    def get(self: hetcomm.Store, key: str, timeout: timedelta) -> None:
        return None

    methods = {"set": put, "get": get}
    methods.pop(missing, None)
    store = type("Mine", (hetcomm.Store,), methods)()
    with pytest.raises(hetcomm.Error, match=f"store: expected .*{missing}"):
        hetcomm.Communicator.from_store(store, 0, 2, timeout=2.0)


def test_a_slurm_job_with_the_same_port_is_refused() -> None:
    """Ports repeat after 625 jobs. The other job would read and write the values of the first."""
    here = {"SLURM_STEP_NODELIST": "localhost"}
    first, second = (
        job_of(SLURM | {"SLURM_JOB_ID": job, "SLURM_PROCID": rank} | here)
        for job, rank in (("1000007", "0"), ("1000632", "1"))
    )
    assert first is not None and second is not None and first.port == second.port
    rendezvous.open_store(first, {}, 10.0)
    with pytest.raises(hetcomm.TransportError, match="job 1000007, step 2 of Slurm, and this rank"):
        rendezvous.open_store(second, {}, 10.0)


def test_a_stranger_disturbs_no_rank(server: hetcomm.TcpStoreServer) -> None:
    for sent in (b"GET / HTTP/1.0\r\n\r\n" * 10, b"s" + b"\xff" * 30, b"s"):
        with (
            socket.create_connection(("127.0.0.1", server.port), BOUND) as stranger,
            contextlib.suppress(OSError),  # after the server has dropped the connection
        ):
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):  # the challenge, then the end
                pass
    store = hetcomm.TcpStore("127.0.0.1", server.port)
    store.set("a", b"b")


def test_a_missing_and_a_second_server_are_errors(server: hetcomm.TcpStoreServer) -> None:
    with pytest.raises(hetcomm.TransportError, match="found no store at"):
        hetcomm.TcpStore("127.0.0.1", free_port(), timeout=0.1)
    with pytest.raises(hetcomm.TransportError, match="choose another MASTER_PORT"):
        hetcomm.TcpStoreServer(server.port)


def test_a_stopped_server_is_an_error() -> None:
    server = hetcomm.TcpStoreServer()
    store = hetcomm.TcpStore("127.0.0.1", server.port)
    store.set("a", b"b")
    server.close()
    with pytest.raises(hetcomm.TransportError, match="see whether rank 0 still runs"):
        for _ in range(100):
            store.get("a", timedelta(seconds=0.1))


@pytest.mark.needs("torch")
def test_torchruns_own_store_is_used(tmp_path: Path) -> None:
    launched(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2",
         f"--master-port={free_port()}", str(PROGRAMS), "collectives", "5"],
        tmp_path,
    )  # fmt: skip


@pytest.mark.needs("mpiexec")
def test_ranks_meet_under_mpiexec(tmp_path: Path) -> None:
    mpiexec = str(Path(sys.executable).with_name("mpiexec"))
    command = [mpiexec, "-launcher", "fork", "-iface", "lo", "-n", "4", sys.executable]
    for program, printed in (("from_mpi", "done"), ("ends_after_split", "made")):
        said = launched([*command, str(PROGRAMS), program, "5"], tmp_path)
        assert said.count(printed) == 4, said


def launched(command: list[str], folder: Path) -> str:
    cleared = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
    }
    with (folder / "log").open("w") as log:
        code = subprocess.run(
            command, env=cleared, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            timeout=BOUND,
        ).returncode  # fmt: skip
    printed = (folder / "log").read_text()
    assert code == 0, printed
    return printed


def test_a_missing_rank_is_a_timeout(tmp_path: Path) -> None:
    printed = run(tmp_path, 2, "missing_rank", 0)
    assert all("rank 2 of 3 did not come" in one for one in printed), printed


LATE = """
import os, sys, time, hetcomm
time.sleep(float(sys.argv[1]))
began = time.monotonic()
try:
    hetcomm.Communicator.from_env(timeout=60)
except hetcomm.Error as error:
    print(time.monotonic() - began, error)
"""


def test_a_rank_that_starts_late_learns_why_rank_0_failed() -> None:
    """Rank 0 serves the store, fails at once, and would end before rank 1 has begun."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", LATE, str(2 * rank)],
            env={**os.environ, **job, "RANK": str(rank), **wrong},
            text=True, stdout=subprocess.PIPE,
        )
        for rank, wrong in enumerate(({"HETCOMM_ISA": "pdp11"}, {}))
    ]  # fmt: skip
    with contextlib.ExitStack() as ends:
        for process in ranks:
            ends.callback(process.kill)
        printed = [process.communicate(timeout=BOUND)[0] for process in ranks]
    for rank, said in enumerate(printed):
        seconds, why = said.split(maxsplit=1)
        assert why.startswith("rank 0 on ") and 'got "pdp11"' in why, f"rank {rank}: {said}"
        assert float(seconds) < 50, "the whole timeout has passed"
