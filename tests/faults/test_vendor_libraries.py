"""Vendors' libraries that are absent, too old, of another vendor, fail or stand still, and dead
ranks.

Every rank of the group hears in time which rank failed, where, why and the remedy.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from job import (
    BOUND,
    NOTICE,
    Job,
    assert_first_cause_stays,
    emulated,
    errors_within,
    wait_for,
)

# Two NVIDIA ranks that share an island, an AMD rank and a CPU rank, on three hosts.
HOSTS, VENDORS = "xxyz", "nnac"
TIMEOUT = 16.0  # seconds; the group's timeout for tests that wait for it
LONG = 100.0  # the group's timeout for other tests; its error is another than theirs

pytestmark = pytest.mark.needs("emulated vendors")


def fault(name: str) -> dict[str, str]:
    return {"HETCOMM_EMULATED_FAULT": name}


def mixed(folder: Path, settings: dict[int, dict[str, str]], timeout: float, joins: bool) -> Job:
    return Job(folder, HOSTS, timeout=timeout, vendors=VENDORS, settings=settings, joins=joins)


REFUSED = {
    "NCCL is too old": (
        fault("old_version"),
        ["expected NCCL 2.18.0 or newer; got NCCL 2.14.3", "HETCOMM_NCCL_LIBRARY"],
    ),
    "NCCL is absent": (
        {"HETCOMM_NCCL_LIBRARY": "/nowhere/libnccl.so.2"},
        ["NCCL not found", "/nowhere/libnccl.so.2", "HETCOMM_NCCL_LIBRARY"],
    ),
    "NCCL lacks symbols": (
        {"HETCOMM_NCCL_LIBRARY": "libc.so.6"},
        ["lacks the symbols", "ncclAllReduce", "HETCOMM_NCCL_LIBRARY"],
    ),
    "NCCL is no library": (
        {"HETCOMM_NCCL_LIBRARY": __file__},
        ["no usable NCCL", "NCCL not found", Path(__file__).name, "HETCOMM_NCCL_LIBRARY"],
    ),
    "NCCL of another version": (
        fault("version:22203"),
        ["ranks 0 and 1", "got NCCL 2.28.3 on ", "and NCCL 2.22.3 on ", "install the same"],
    ),
    "RCCL instead of NCCL": (
        {"HETCOMM_NCCL_LIBRARY": emulated("amd")},
        ["expected NCCL, since this rank's vendor is nvidia", "vendor amd", "HETCOMM_VENDOR"],
    ),
    "HIP instead of CUDA": (
        {"HETCOMM_CUDA_LIBRARY": emulated("amd")},
        ["CUDA runtime not found", "lacks the symbols", "HETCOMM_CUDA_LIBRARY"],
    ),
    "CUDA is too old": (
        fault("old_runtime"),
        ["expected CUDA 11.8 or newer; got CUDA 10.2", "HETCOMM_CUDA_LIBRARY"],
    ),
    "CUDA is absent": (
        {"HETCOMM_CUDA_LIBRARY": "/nowhere/libcudart.so.13"},
        ["CUDA runtime not found", "/nowhere/libcudart.so.13", "HETCOMM_CUDA_LIBRARY"],
    ),
    "no such device": (
        {"HETCOMM_DEVICE": "9"},
        ["expected the index of a device below 8", "got 9", "HETCOMM_DEVICE"],
    ),
    "no device": (
        {"HETCOMM_EMULATED_DEVICES": "0"},
        ["expected an accelerator of vendor nvidia", "HETCOMM_VENDOR=cpu"],
    ),
    "AMD on a machine without HIP": (
        {"HETCOMM_VENDOR": "amd", "HETCOMM_HIP_LIBRARY": "/nowhere/libamdhip64.so.7"},
        ["HIP runtime not found", "/nowhere/libamdhip64.so.7", "correct HETCOMM_VENDOR"],
    ),
    "NCCL fails to start": (
        fault("init_error"),
        ["NCCL 2.28.3: ncclCommInitRankConfig: unhandled system error", "NCCL_DEBUG=INFO"],
    ),
}


@pytest.mark.parametrize(
    ("case", "victim"),
    [(case, 1) for case in REFUSED]
    + [(case, 0) for case in ("NCCL is absent", "CUDA is absent", "NCCL fails to start")],
)
def test_every_rank_names_a_rank_without_library(tmp_path: Path, case: str, victim: int) -> None:
    settings, words = REFUSED[case]
    with mixed(tmp_path, {victim: settings}, LONG, joins=False) as job:
        errors = errors_within(job.ranks, BOUND)
        for error in errors:
            assert error["peer"] == victim, error
            assert error["error"] in ("VendorError", "PeerFailedError"), error
            assert f"on {socket.gethostname()}" in error["text"], error
            assert f"rank {victim}" in error["text"], error
            assert all(word in error["text"] for word in words), error
        assert errors[victim]["error"] == "VendorError"
        assert_nothing_left(job)


def copies(folder: Path, name: str) -> dict[str, str]:
    """Two copies of the emulated NVIDIA library, loaded under the names of two versions."""
    paths = [folder / place / name for place in ("one", "two")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        shutil.copy(emulated("nvidia"), path)
    return {"LD_PRELOAD": ":".join(map(str, paths))}


@pytest.mark.parametrize(
    ("name", "what", "variable"),
    [
        ("libcudart.so.13", "CUDA runtime", "HETCOMM_CUDA_LIBRARY"),
        ("libnccl.so.2", "NCCL", "HETCOMM_NCCL_LIBRARY"),
    ],
)
def test_every_rank_names_two_copies_in_one_process(
    tmp_path: Path, name: str, what: str, variable: str
) -> None:
    settings = copies(tmp_path, name) | {variable: ""}
    with mixed(tmp_path, {1: settings}, LONG, joins=False) as job:
        for error in errors_within(job.ranks, BOUND):
            assert error["peer"] == 1, error
            assert f"rank 1 on {socket.gethostname()}" in error["text"], error
            assert f"expected one {what} in this process, got {tmp_path}" in error["text"], error
            assert f"set {variable} to the path" in error["text"], error
        for rank in job.ranks:
            rank.exits_cleanly()


def test_the_named_copy_is_used(tmp_path: Path) -> None:
    settings = copies(tmp_path, "libcudart.so.13")
    taken = str(tmp_path / "two" / "libcudart.so.13")
    settings |= {"HETCOMM_CUDA_LIBRARY": taken, "HETCOMM_NCCL_LIBRARY": taken}
    with mixed(tmp_path, {1: settings}, LONG, joins=True) as job:
        assert job.do("all_reduce", 1000) == [10.0] * 4
        assert "hetcomm warning" not in job[1].log.read_text()


def test_every_rank_names_a_label_of_two_vendors(tmp_path: Path) -> None:
    label = {"HETCOMM_ISLAND": "rack"}
    with mixed(tmp_path, {0: label, 2: label}, LONG, joins=False) as job:
        for error in errors_within(job.ranks, BOUND):
            assert error["error"] in ("InvalidArgumentError", "PeerFailedError"), error
            for word in ("HETCOMM_ISLAND=rack", "nvidia on rank 0", "amd on rank 2", "HETCOMM_VEN"):
                assert word in error["text"], error
            assert f"({socket.gethostname()})" in error["text"], error
        for rank in job.ranks:
            rank.exits_cleanly()


def test_every_rank_names_a_label_of_two_versions(tmp_path: Path) -> None:
    label = {"HETCOMM_ISLAND": "rack"}
    settings = {1: label, 3: label | fault("version:32203")}
    with Job(tmp_path, "xyxz", vendors="cana", settings=settings, joins=False) as job:
        for error in errors_within(job.ranks, BOUND):
            for word in ("ranks 1 and 3 are", "RCCL 2.28.3", "RCCL 3.22.3", "install the same"):
                assert word in error["text"], error
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("case", ["NCCL is too old", "NCCL is absent", "HIP instead of CUDA"])
def test_every_torch_rank_gets_the_error(tmp_path: Path, case: str) -> None:
    settings, words = REFUSED[case]
    with Job(
        tmp_path, HOSTS, "torch", LONG, vendors=VENDORS, settings={1: settings}, joins=False
    ) as job:
        for error in errors_within(job.ranks, BOUND):  # when torch is imported
            assert error["peer"] == 1, error
            assert f"rank 1 on {socket.gethostname()}" in error["text"], error
            assert all(word in error["text"] for word in words), error
        for rank in job.ranks:
            rank.exits_cleanly()


def assert_nothing_left(job: Job) -> None:
    """The ranks failed to join. Only their own threads are left, no memory, and they exit
    cleanly."""
    for number, rank in enumerate(job.ranks):
        # The library of the first member may still wait for the others.
        allowed = 4 if number == 0 else 3
        deadline = time.monotonic() + 2 * NOTICE
        while (held := rank.do("resources"))["threads"] > allowed:
            assert time.monotonic() < deadline, (number, held)  # a thread that aborts ends soon
            time.sleep(0.05)
        assert held["maps of islands"] == 0
        rank.exits_cleanly()


def test_a_library_hanging_in_initialisation_times_out(tmp_path: Path) -> None:
    """No rank can tell which member hangs, so the error names the island."""
    with mixed(tmp_path, {1: fault("init_hang")}, TIMEOUT, joins=False) as job:
        for error in errors_within(job.ranks, TIMEOUT + 2 * NOTICE):
            assert error["error"] in ("TimeoutError", "PeerFailedError"), error
            assert "NCCL 2.28.3: expected the ranks 0, 1 in one communicator" in error["text"]
            assert f"on {socket.gethostname()}" in error["text"]
        assert_nothing_left(job)


def test_a_hanging_split_times_out(tmp_path: Path) -> None:
    """Rank 1 gives up first, or rank 0. The other rank's library then reports that it has left."""
    with mixed(tmp_path, {1: fault("split_hang")}, TIMEOUT, joins=False) as job:
        errors = errors_within(job.ranks, TIMEOUT + 2 * NOTICE)
        for error in errors:
            assert error["error"] in ("TimeoutError", "VendorError", "PeerFailedError"), error
            assert "ncclCommSplit" in error["text"], error
        late = [error["text"] for error in errors if "is still under way" in error["text"]]
        assert late and "expected the ranks 0, 1 in one communicator" in late[0]
        assert_nothing_left(job)


def test_different_settings_inside_an_island_are_an_error(tmp_path: Path) -> None:
    with mixed(tmp_path, {1: {"HETCOMM_CCL": "max_ctas=4"}}, LONG, joins=False) as job:
        for error in errors_within(job.ranks, BOUND):
            assert "expected equal settings on the ranks of a native island" in error["text"]
            assert "HETCOMM_CCL=max_ctas=4" in error["text"] and "on rank 0" in error["text"]
        assert_nothing_left(job)


def test_a_rank_death_during_island_set_up_is_reported(tmp_path: Path) -> None:
    with mixed(tmp_path, {1: fault("init_hang")}, LONG, joins=False) as job:
        wait_for((tmp_path / "first" / "named-1").exists)
        job[1].signal(signal.SIGKILL)
        for error in errors_within(job.others(1), NOTICE):
            assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
            assert "rank 1 is gone" in error["text"], error
        for rank in job.others(1):
            rank.exits_cleanly()


def test_a_rank_alone_in_its_island_needs_no_library(tmp_path: Path) -> None:
    settings = {2: {"HETCOMM_RCCL_LIBRARY": "/nowhere/librccl.so.1"}}
    with mixed(tmp_path, settings, LONG, joins=True) as job:
        assert job.do("all_reduce", 1000) == [10.0] * 4


@pytest.mark.parametrize(("dtype", "op"), [("int16", "sum"), ("int32", "band")])
def test_an_unsupported_reduction_is_rejected_on_all_ranks(
    tmp_path: Path, dtype: str, op: str
) -> None:
    with mixed(tmp_path, {}, LONG, joins=True) as job:
        job.tell("reduce", dtype, op)
        for error in errors_within(job.ranks, NOTICE):
            assert error["error"] == "InvalidArgumentError", error
            assert f"has no {op} of {dtype}" in error["text"], error
            assert "ranks 0 and 1" in error["text"] and "use another" in error["text"], error
        assert job.do("reduce", "int32", "sum") == [4] * 4  # the group stays usable


def assert_all_end(job: Job, victim: int, errors: list[dict[str, Any]]) -> None:
    assert_first_cause_stays(job.others(victim), errors)
    for rank in job.others(victim):
        rank.exits_cleanly()


@pytest.mark.parametrize("victim", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [16, 300_000], ids=["small", "large"])
def test_a_kill_amid_all_reduces_is_reported(tmp_path: Path, victim: int, count: int) -> None:
    with mixed(tmp_path, {}, LONG, joins=True) as job:
        assert set(job.do("turn", count)) == {"turning"}
        job[victim].signal(signal.SIGKILL)
        errors = errors_within(job.others(victim), NOTICE)
        for error in errors:
            assert error["error"] == "PeerFailedError" and error["peer"] == victim, error
        assert_all_end(job, victim, errors)


def test_a_kill_amid_several_calls_is_reported(tmp_path: Path) -> None:
    """The library fails all of them at once, before the news of the dead rank comes."""
    with Job(tmp_path, "xy", vendors="nn", timeout=LONG) as job:
        job.do("all_reduce", 1000)
        job[0].do("submit_many", 3, 1000)
        job[1].signal(signal.SIGKILL)
        for _ in range(3):
            job[0].tell("wait", LONG)
            error = job[0].error(NOTICE)
            assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
        job[0].exits_cleanly()


def test_a_library_failure_amid_all_reduces_is_reported(tmp_path: Path) -> None:
    with mixed(tmp_path, {1: fault("async_error:40")}, LONG, joins=True) as job:
        assert set(job.do("turn", 1000)) == {"turning"}
        errors = errors_within(job.ranks, NOTICE)
        for error in errors:
            assert error["error"] == "VendorError", error
            assert "NCCL 2.28.3: asynchronous error: remote process" in error["text"], error
            assert re.search(f"rank [01] on {socket.gethostname()}: NCCL", error["text"]), error
            assert "make a new process group" in error["text"], error
        assert_first_cause_stays(job.ranks, errors)
        for rank in job.ranks:
            rank.exits_cleanly()


@pytest.mark.parametrize("count", [16, 300_000], ids=["small", "large"])
@pytest.mark.parametrize(("hosts", "vendors"), [(HOSTS, VENDORS), ("xx", "nn")])
def test_a_stuck_library_times_out(tmp_path: Path, hosts: str, vendors: str, count: int) -> None:
    """No rank can tell which member hangs, so the error names the island."""
    stuck = {1: fault("hang:40")}
    with Job(tmp_path, hosts, timeout=TIMEOUT, vendors=vendors, settings=stuck, joins=True) as job:
        assert set(job.do("turn", count)) == {"turning"}
        errors = errors_within(job.ranks, TIMEOUT + 2 * NOTICE)
        for error in errors:
            assert error["error"] == "TimeoutError", error
            assert "within 16 s, waiting at" in error["text"], error
            stuck_in = r"s before: all of ranks 0, 1 are in steps? island_"
            assert re.search(stuck_in, error["text"]), error
        assert_first_cause_stays(job.ranks, errors)
        for rank in job.ranks:
            rank.do("leave")
            assert "kept until the process ends" not in rank.log.read_text()
            rank.exits_cleanly()


@pytest.mark.parametrize("order", ["all_reduce", "submit"])
def test_a_process_ends_whose_driver_never_answers(tmp_path: Path, order: str) -> None:
    """No thread of that process can go on, and none can be taken out of the driver. No call of the
    other member waits for the device, which would wait for that process."""
    calm = {"HETCOMM_EMULATED_HOSTILE": "poison"}
    settings = fault("query_hang:0") | {"HETCOMM_LIBRARY_TIMEOUT": "3"} | calm
    with mixed(tmp_path, {0: calm, 1: settings}, TIMEOUT, joins=True) as job:
        job[1].tell(order, 300_000)  # a thread waits, or none does
        for rank in job.others(1):
            rank.tell("all_reduce", 300_000)
        for error in errors_within(job.others(1), TIMEOUT + NOTICE):
            assert error["error"] == "TimeoutError" and error["peer"] == 1, error
        assert job[1].process.wait(BOUND) == -signal.SIGABRT
        assert "has kept the engine's lock for" in job[1].log.read_text()


@pytest.mark.parametrize("ends", [False, True], ids=["goes-on", "ends"])
def test_a_rank_may_leave_before_the_others(tmp_path: Path, ends: bool) -> None:
    """The library ends a communicator together with all members."""
    settings = {"HETCOMM_EMULATED_HOSTILE": "ends", "HETCOMM_LOG_LEVEL": "info"}
    with Job(
        tmp_path, "xx", kind="torch", vendors="nn", timeout=LONG, store_on_rank_0=True,
        settings=dict.fromkeys(range(2), settings),
    ) as job:  # fmt: skip
        assert job.do("all_reduce", 1000) == [3.0] * 2
        job[0].do("leave")
        assert "keeps the communicator until the other ranks" in job[0].log.read_text()
        if ends:
            job[0].exits_cleanly()
        job[1].do("leave")
        for rank in job.ranks[ends:]:
            rank.exits_cleanly()


def test_a_rank_that_leaves_amid_a_call_is_named(tmp_path: Path) -> None:
    """The call and the end of the communicator wait for each other inside the library."""
    settings = {"HETCOMM_EMULATED_HOSTILE": "ends"}
    with Job(
        tmp_path, "xx", vendors="nn", timeout=LONG, settings=dict.fromkeys(range(2), settings)
    ) as job:
        job.do("all_reduce", 1000)
        job[0].do("submit", 1000)
        job[1].exits_cleanly()
        job[0].tell("wait", LONG)
        error = job[0].error(NOTICE)
        assert error["error"] == "PeerFailedError" and error["peer"] == 1, error
        assert "rank 1 has left" in error["text"], error
        job[0].exits_cleanly()


def test_a_hanging_abort_delays_no_other_group(tmp_path: Path) -> None:
    """The library keeps the memory and a thread of its own. Everything else continues, if streams
    share no hardware queue, and no call of the runtime waits for the device: both would wait for
    ever."""
    calm = {"HETCOMM_EMULATED_HOSTILE": "poison"}
    settings = {0: calm, 1: calm | fault("abort_hang")}  # both members of the native island
    with mixed(tmp_path, settings, LONG, joins=True) as job:
        job.do("use", "second")
        assert job.do("all_reduce", 1000) == [10.0] * 4
        job.do("use", "first")
        job[1].do("submit", 1000)
        begin = time.monotonic()
        job[1].do("abort")
        assert time.monotonic() - begin < NOTICE  # the library's abort never ends
        job[1].tell("wait", LONG)
        assert "aborted" in job[1].error(NOTICE)["text"]
        job.do("use", "second")
        assert job.do("all_reduce", 1000) == [10.0] * 4
        for rank in job.ranks:
            rank.exits_cleanly()
