"""`hetcomm launch` and torch_env(): variables for torch's programs under other launchers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hetcomm
from hetcomm import launch
from hetcomm.launch import tasks_on

BOUND = 200.0
BIN = Path(sys.executable).parent
MPIEXEC = (str(BIN / "mpiexec"), "-launcher", "fork", "-iface", "lo")
MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "1234"}
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "7", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_NODEID": "1",
    "SLURM_LOCALID": "1",
}  # fmt: skip
TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SHOW = f"import json, os; print(json.dumps([os.environ.get(name) for name in {TOLD!r}]))"
# Every rank sends its number to all, over the group that torch makes from the variables.
TRAIN = """
import os, sys, torch, torch.distributed as dist
if "torch_env" in sys.argv:
    import hetcomm
    os.environ.update(hetcomm.torch_env())
dist.init_process_group("hetcomm")
numbers = [None] * dist.get_world_size()
dist.all_gather_object(numbers, int(os.environ["LOCAL_RANK"]))
assert numbers == list(range(3)), numbers
print("fine", flush=True)
dist.destroy_process_group()
"""


def test_srun_gives_torchs_variables() -> None:
    port = str(20_000 + 17 * 64)
    expected = ["5", "7", "gpu07", port, "1", "3"]
    assert list(map(hetcomm.torch_env(SLURM).get, TOLD)) == expected
    told = hetcomm.torch_env(SLURM | MASTER)
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("node1", "1234")
    fewer = {name: value for name, value in SLURM.items() if name != "SLURM_NODEID"}
    assert "LOCAL_WORLD_SIZE" not in hetcomm.torch_env(fewer)


def test_torchrun_and_mpiexec_with_an_address_give_torchs_variables() -> None:
    torchrun = MASTER | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert hetcomm.torch_env(SLURM | torchrun) == torchrun
    openmpi = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    places = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert hetcomm.torch_env(openmpi | places | MASTER) == torchrun


def test_a_lone_process_gets_torchs_variables() -> None:
    told = hetcomm.torch_env({})
    assert 0 < int(told["MASTER_PORT"]) < 65536
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == ("0", "1", "0")


@pytest.mark.parametrize(
    ("counts", "node", "found"),
    [("4", "0", "4"), ("4(x2),3", "1", "4"), ("4(x2),3", "2", "3"), ("4", "1", ""), ("", "0", "")],
)
def test_slurm_tasks_per_node_are_parsed(counts: str, node: str, found: str) -> None:
    assert tasks_on(counts, node) == found


def test_ranks_of_a_batch_script_have_no_local_rank_of_slurms() -> None:
    script = {"SLURM_JOB_ID": "17", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    told = hetcomm.torch_env(script | MASTER | {"RANK": "1", "WORLD_SIZE": "2"})
    assert told["RANK"] == "1" and "LOCAL_RANK" not in told


def test_a_wrong_local_rank_is_rejected() -> None:
    torchrun = MASTER | {"RANK": "1", "WORLD_SIZE": "2"}
    for wrong in ({"LOCAL_RANK": "abc"}, {"LOCAL_RANK": "-1"}, {"LOCAL_RANK": ""},
                  {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}):  # fmt: skip
        with pytest.raises(hetcomm.InvalidArgumentError, match="LOCAL_RANK"):
            hetcomm.torch_env(torchrun | wrong)
    with pytest.raises(hetcomm.InvalidArgumentError, match="SLURM_LOCALID"):
        hetcomm.torch_env(SLURM | {"SLURM_LOCALID": "3"})


def test_a_wrong_variable_is_rejected() -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match="expected SLURM_JOB_ID"):
        hetcomm.torch_env({name: SLURM[name] for name in SLURM if name != "SLURM_JOB_ID"})


def launched(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    known = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "PMI_", "OMPI_", "MPI_LOCAL")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(known)}
    return subprocess.run(
        command, env=clean | variables, capture_output=True, text=True, timeout=BOUND, check=False
    )


def test_the_command_runs_under_srun() -> None:
    result = launched(
        str(BIN / "hetcomm"), "launch", "--", sys.executable, "-c", SHOW, **SLURM
    )  # fmt: skip
    assert json.loads(result.stdout) == ["5", "7", "gpu07", "21088", "1", "3"], result.stderr
    assert result.stderr == ""


def test_the_command_warns_without_a_launcher() -> None:
    result = launched(str(BIN / "hetcomm"), "launch", "--", sys.executable, "-c", SHOW)
    assert json.loads(result.stdout)[:2] == ["0", "1"]
    assert "a job of one process" in result.stderr


def test_the_command_returns_the_programs_exit_code() -> None:
    ends = [sys.executable, "-c", "raise SystemExit(7)"]
    assert launched(str(BIN / "hetcomm"), "launch", "--", *ends, **SLURM).returncode == 7
    absent = launched(str(BIN / "hetcomm"), "launch", "--", "no-such-program", **SLURM)
    assert absent.returncode == 127
    assert "no-such-program: No such file" in absent.stderr
    wrong = launched(str(BIN / "hetcomm"), "launch", "--", "true", **SLURM | {"SLURM_NTASKS": "x"})
    assert wrong.returncode == 2
    assert 'SLURM_NTASKS: expected a whole number, got "x"' in wrong.stderr


class World:
    """Rank 0 of a world of mpi4py. Other ranks connect to it as mpi4py would."""

    def __init__(self, size: int) -> None:
        self.size = size

    def Get_rank(self) -> int:
        return 0

    def bcast(self, told: tuple[list[str], int, bytes]) -> tuple[list[str], int, bytes]:
        self.told = told
        return told

    def allgather(self, mine: list[bool]) -> list[Any]:
        names, port, token = self.told
        reached = [launch._reaches(names[0], port, token) for _ in range(self.size - 1)]
        return [mine, *([one, *mine[1:]] for one in reached)]


def test_more_ranks_than_the_listen_queue_can_meet() -> None:
    address, port = launch._reachable_address(World(3000))
    assert address == "127.0.0.1"
    # A store listens like this, which tolerates connections that are still closing.
    socket.create_server(("", port)).close()


def test_another_program_at_the_port_is_not_taken_for_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as another:
        assert not launch._reaches("127.0.0.1", another.getsockname()[1], b"token")


@pytest.mark.needs("mpiexec", "torch")
@pytest.mark.parametrize("by", ["launch", "torch_env"])
def test_a_torch_group_works_under_mpiexec(by: str) -> None:
    program = [sys.executable, "-c", TRAIN, by]
    if by == "launch":
        program = [str(BIN / "hetcomm"), "launch", "--", *program]
    result = launched(*MPIEXEC, "-n", "3", *program)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("fine") == 3


@pytest.mark.needs("mpiexec")
def test_mpiexec_notices_a_failing_program() -> None:
    fails = "import os, time; int(os.environ['RANK']) or exit(7); time.sleep(300)"
    program = [str(BIN / "hetcomm"), "launch", "--", sys.executable, "-c", fails]
    result = launched(*MPIEXEC, "-n", "2", *program)
    # Under load MPICH may report the rank that it killed afterwards.
    assert result.returncode in (7, 9), result.stdout + result.stderr
