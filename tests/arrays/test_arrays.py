"""The array API against NumPy, with ranks as processes on one host and on several."""

from __future__ import annotations

import pydoc
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ranks_of_arrays import run
from vendors import environments

import hetcomm

HOSTS = ["aa", "aaa", "ab", "abab", "aabcc"]


@pytest.fixture
def seed() -> int:
    chosen = random.randrange(2**31)
    print("seed", chosen)
    return chosen


@pytest.mark.parametrize("hosts", HOSTS)
def test_every_collective_matches_numpy(tmp_path: Path, hosts: str, seed: int) -> None:
    run(tmp_path, len(hosts), "collectives", seed, hosts=hosts)


@pytest.mark.parametrize(
    "program",
    [
        "scales",
        "messages",
        "asynchronous",
        "alternating",
        "unequal_parts",
        "disagreeing_parts",
        "disagreeing_at_last",
        "traced",
        "splits",
        "ends_after_split",
        "threads",
        "bad_input",
    ],
)
@pytest.mark.parametrize("hosts", ["aa", "abab"])
def test_programs_run_on_every_layout(tmp_path: Path, hosts: str, program: str, seed: int) -> None:
    run(tmp_path, len(hosts), program, seed, hosts=hosts)


@pytest.mark.parametrize(
    "program", ["roots", "codecs", "strides", "own_blocks", "sendrecv", "objects"]
)
@pytest.mark.parametrize("hosts", ["aa", "abb"])
def test_everyday_programs_run(tmp_path: Path, hosts: str, program: str, seed: int) -> None:
    run(tmp_path, len(hosts), program, seed, hosts=hosts)


@pytest.mark.parametrize("key", ["", "0123456789abcdef" * 4], ids=["no-key", "key"])
def test_no_pickle_is_read_without_the_seal_of_its_sender(tmp_path: Path, key: str) -> None:
    environments = [{"HETCOMM_JOB_KEY": key}] * 2
    printed = run(tmp_path, 2, "changed_objects", 0, hosts="ab", environments=environments)
    assert all("done" in one for one in printed)
    assert "the stranger's code ran" not in "".join(printed)


def test_mpi4py_operations_are_accepted(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("mpi4py")
    run(tmp_path, 2, "operations_of_mpi", seed)


def test_torch_strides_are_handled(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("torch")
    run(tmp_path, 2, "strides_of_torch", seed)


def test_every_rank_hears_of_an_unwritable_result(tmp_path: Path) -> None:
    printed = run(tmp_path, 3, "refused_strides", 0)
    assert all("told" in one for one in printed[1:]), printed


@pytest.mark.parametrize("name", [name for name in hetcomm.__all__ if name != "__version__"])
def test_help_shows_no_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """People print help, and send it to others."""
    monkeypatch.setenv("HETCOMM_PLANTED", "a secret of the environment")
    assert "a secret of the environment" not in pydoc.render_doc(getattr(hetcomm, name))


@pytest.mark.parametrize("hosts", ["aa", "aaa", "abab"])
def test_shared_allocations_work_in_every_collective(tmp_path: Path, hosts: str, seed: int) -> None:
    printed = run(tmp_path, len(hosts), "shared_allocations", seed, hosts=hosts)
    if "b" not in hosts:  # else nearly all data passes through scratch
        assert all(int(direct) > 10 for direct in printed), printed


@pytest.mark.needs("torch")
def test_arrays_of_other_libraries_are_accepted(tmp_path: Path, seed: int) -> None:
    run(tmp_path, 2, "libraries", seed)


@pytest.mark.parametrize(("hosts", "vendors"), [("aaa", "nnc"), ("abaca", "nanac")])
def test_device_arrays_are_accepted(tmp_path: Path, hosts: str, vendors: str, seed: int) -> None:
    settings = environments(vendors)
    for rank, vendor in enumerate(vendors):
        if vendor == "c":  # only this test gives such a rank a device
            settings[rank] = environments("n")[0] | settings[rank]
    run(tmp_path, len(hosts), "devices", seed, hosts=hosts, environments=settings)


@pytest.mark.parametrize(("hosts", "vendors"), [("aa", "nn"), ("ab", "nc"), ("aba", "nan")])
def test_streams_and_memory_of_cupy_are_honoured(
    tmp_path: Path, hosts: str, vendors: str, seed: int
) -> None:
    # Without queues that streams share, and calls that wait for the device: a missing wait shows.
    parts = {"HETCOMM_EMULATED_HOSTILE": f"poison,delays:{seed}"}
    settings = [each | parts for each in environments(vendors)]
    printed = run(tmp_path, len(hosts), "arrays_of_cupy", seed, hosts=hosts, environments=settings)
    assert all("right" in one for one in printed), printed


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    for printed in run(tmp_path, 2, "loads", 0):
        assert printed.strip() == "[]"


def test_an_exception_in_with_aborts_the_group(tmp_path: Path) -> None:
    printed = run(tmp_path, 3, "one_leaves_with_an_error", 0, may_fail=[0])
    assert "raised lost the data" in printed[0]
    assert all("heard" in one for one in printed[1:])


@pytest.mark.parametrize(
    ("program", "word"),
    [("refused_by_one", "told 3"), ("from_env_again", "thrice"), ("set_up_fails", "heard")],
)
def test_every_rank_reports_the_error(tmp_path: Path, program: str, word: str) -> None:
    printed = run(tmp_path, 3, program, 0)
    assert all(word in one for one in printed[1:]), printed


def test_an_interrupt_ends_a_wait(tmp_path: Path) -> None:
    printed = run(tmp_path, 3, "interrupted", 0)
    assert "KeyboardInterrupt" in printed[0]
    assert all("AbortedError rank 0 aborted the group: KeyboardInterrupt" in p for p in printed[1:])


def test_an_interrupt_wins_over_a_failing_operation(tmp_path: Path) -> None:
    assert "interrupted nothing" in run(tmp_path, 2, "interrupted_while_it_fails", 0)[0]


def test_an_interrupt_ends_a_store_wait(tmp_path: Path) -> None:
    assert "interrupted" in run(tmp_path, 2, "interrupted_in_a_store", 0)[0]


def test_exit_in_with_leaves_the_group(tmp_path: Path) -> None:
    assert "in order" in run(tmp_path, 3, "exits", 0)[2]


def test_unknown_devices_are_rejected() -> None:
    for device in ("cuda:0", "cpu:3", "nvidia:", "gpu"):
        with pytest.raises(hetcomm.InvalidArgumentError, match=f'"amd:1"; got "{device}"'):
            hetcomm.Communicator.from_env({}, device=device)


def test_a_rank_death_before_a_split_is_reported(tmp_path: Path) -> None:
    printed = run(tmp_path, 3, "dies_before_split", 0)
    assert all("rank 1" in printed[rank] for rank in (0, 2)), printed


def test_the_progress_thread_ends_with_the_process() -> None:
    """The thread ends before libraries are unloaded, because it still uses them."""
    program = """
import atexit, pathlib, time
def threads():
    return [file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
atexit.register(lambda: print("hetcomm" in threads()))  # runs after those registered later
import hetcomm
kept = hetcomm.Communicator.from_env({})
while "hetcomm" not in threads():
    time.sleep(0.001)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False"]
