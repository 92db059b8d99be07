"""The engine over libraries with NCCL's ABI, on emulated vendors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ccl_members import END, PROGRAMS, environment, run
from emulated_ccl import INVALID_USAGE

emulated = pytest.mark.needs("emulated vendors")


@emulated
@pytest.mark.parametrize(("vendor", "members"), [("nvidia", 1), ("nvidia", 3), ("amd", 4)])
def test_every_collective_dtype_and_operation_is_correct(vendor: str, members: int) -> None:
    seed = 1000 + members
    done = run("cases", vendor, members, seed)
    assert done["cases"] > 80
    assert f"{members} rank" in done["describe"]
    assert "network Socket [0]" in done["describe"]


@emulated
def test_equal_blocks_take_the_librarys_own_collectives() -> None:
    assert run("uniform", "nvidia", 3)["functions"] == ["AllGather", "ReduceScatter"]


@emulated
def test_a_call_completes_after_all_members_made_it() -> None:
    done = run("absent", "amd")
    assert (done["early"], done["right"]) == (False, True)


@emulated
def test_a_collective_is_in_the_stream_at_once() -> None:
    """Messages may enter the stream later: the library makes their connections in the
    background."""
    done = run("in_the_stream", "nvidia")
    assert done["launched"]["all_reduce"]
    assert done["values"] == [[3, 3, 3, 3, 3, 3]] * 2
    assert "each call costs" not in done["describe"]


@emulated
def test_without_the_blocking_communicator_a_call_takes_a_thread() -> None:
    done = run("in_the_stream", "amd", HETCOMM_CCL="blocking=0")
    assert "each call costs a thread (HETCOMM_CCL=blocking=0)" in done["describe"]
    assert done["values"] == [[3, 3, 3, 3, 3, 3]] * 2


@emulated
def test_a_hanging_split_times_out() -> None:
    """The member that gives up first leaves, which the other member's library may report."""
    ends = run("opening", "nvidia", 3, fault="split_hang@1")
    for end in ends:
        assert end["error"] in ("TimeoutError", "VendorError"), ends
        assert "ncclCommSplit" in end["text"], ends
        assert end["seconds"] < 20
    late = [end["text"] for end in ends if end["error"] == "TimeoutError"]
    assert late, ends
    for text in late:
        assert "expected the ranks 10, 11 in one communicator within 3 s" in text
        assert "ncclCommSplit is still under way" in text
        assert "aborted" not in text


@emulated
def test_a_failing_split_fails_the_set_up() -> None:
    """The library does not let a communicator be used after that."""
    for end in run("opening", "amd", 20, fault="split_error"):
        assert end["error"] == "VendorError"
        assert "ncclCommSplit: unhandled system error: the split" in end["text"]


@emulated
def test_a_blocked_call_is_ended() -> None:
    late, other = reversed(run("late_call", "nvidia", fault="call_hang:1@1"))
    assert late["error"] == "TimeoutError"
    assert "rank 11 on " in late["text"]
    assert "ncclAllReduce did not return within 500 ms, in collective 0" in late["text"]
    assert "HETCOMM_CCL=blocking=0" in late["text"]
    assert late["again"] == late["text"]
    assert other["error"] == "VendorError"  # the neighbour has left
    assert max(late["seconds"], other["seconds"]) < 20


@emulated
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_registered_buffers_are_used(vendor: str) -> None:
    done = run("buffers", vendor)
    assert "got an empty buffer" in done["empty"]
    assert "got a buffer that is" in done["twice"]
    assert "expected the address of a registered buffer" in done["unknown"]
    assert done["works"] == 2
    assert done["freed"] == [0, 0]
    assert done["early"] == INVALID_USAGE  # the library knew the buffer


@emulated
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("min_ctas=0", 'HETCOMM_CCL: expected a whole number from 1 to 256; got "min_ctas=0"'),
        ("max_ctas=many", 'expected a whole number from 1 to 256; got "max_ctas=many"'),
        ("blocking=yes", 'expected a whole number from 0 to 1; got "blocking=yes"'),
        ("min_ctas=8,max_ctas=4", 'at most max_ctas, which is 4; got "min_ctas=8"'),
        ("max_ctas=4,blocked=0", "expected min_ctas=, max_ctas= or blocking=, separated by commas"),
        ("blocking", 'expected a whole number from 0 to 1; got "blocking"'),
    ],
)
def test_settings_are_checked(value: str, words: str) -> None:
    for end in run("opening", "nvidia", 20, HETCOMM_CCL=value):
        assert end["error"] == "InvalidArgumentError"
        assert words in end["text"]


@emulated
@pytest.mark.parametrize("part", ["MIN_CTAS", "MAX_CTAS", "BLOCKING"])
def test_former_variables_name_their_replacement(part: str) -> None:
    for end in run("opening", "nvidia", 20, **{f"HETCOMM_CCL_{part}": "1"}):
        assert end["error"] == "InvalidArgumentError"
        assert f'set HETCOMM_CCL="{part.lower()}=1"' in end["text"]


@emulated
def test_a_former_variable_without_a_replacement_is_rejected() -> None:
    for end in run("opening", "nvidia", 20, HETCOMM_CCL_SPLIT_SHARE="1"):
        assert end["error"] == "InvalidArgumentError"
        assert "HETCOMM_CCL_SPLIT_SHARE: expected no such variable" in end["text"]


@emulated
def test_ctas_reach_the_library(tmp_path: Path) -> None:
    told = tmp_path / "log"
    run(
        "refused", "nvidia", HETCOMM_CCL="min_ctas=2,max_ctas=7",
        NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(told),
    )  # fmt: skip
    assert told.read_text().count("Comm config minCTAs set to 2, maxCTAs set to 7") == 2


@emulated
def test_members_run_in_processes() -> None:
    command = [sys.executable, str(PROGRAMS), "member", "amd"]
    first = subprocess.Popen(
        [*command, "0", "3", ""], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    unique_id = first.stdout.readline().strip()
    others = [
        subprocess.Popen(
            [*command, str(index), "3", unique_id],
            env=environment(), stdout=subprocess.PIPE, text=True,
        )
        for index in (1, 2)
    ]  # fmt: skip
    for process in (first, *others):
        text, _ = process.communicate(timeout=END)
        assert (process.returncode, text.split()[-1]) == (0, "6")


@emulated
def test_a_killed_member_ends_the_call() -> None:
    command = [sys.executable, str(PROGRAMS), "survivor"]
    first = subprocess.Popen(
        [*command, "0", ""], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    unique_id = first.stdout.readline().strip()
    other = subprocess.run([*command, "1", unique_id], env=environment(), timeout=END, check=False)
    assert other.returncode == -signal.SIGKILL
    end = json.loads(first.communicate(timeout=END)[0])
    assert (first.returncode, end["error"]) == (0, "VendorError")
    assert "remote process exited or network error" in end["text"]
    assert end["closing"] < 20


@emulated
@pytest.mark.parametrize(
    ("late", "parts"), [((), "lazy,handles"), ((0, 1), "lazy,handles"), ((1,), "handles")]
)
def test_a_library_that_connects_late_does_not_hold_up_a_call(
    tmp_path: Path, late: tuple[int, ...], parts: str
) -> None:
    """Somebody else may call the library first, so it reads NCCL_RUNTIME_CONNECT too early. All
    members learn of one such member. Without `lazy` its library connects early all the same."""
    for member, (end, log) in enumerate(beside_another_user(tmp_path, late, parts)):
        assert end["right"]
        why = "" if not late else "somebody else called" if member in late else "another member's"
        assert ("each call costs a thread" in end["describe"]) == bool(late), end
        assert why in end["describe"], end
        assert ("set the variable for the whole process" in log) == (member in late), log


@emulated
def test_all_members_connect_in_set_up_without_the_blocking_communicator(tmp_path: Path) -> None:
    """Set-up hangs if the library of one member connects in set-up and another in its calls."""
    for end, _ in beside_another_user(tmp_path, (), "lazy,handles", HETCOMM_CCL="blocking=0"):
        assert end["right"]
        assert "each call costs a thread (HETCOMM_CCL=blocking=0)" in end["describe"]


def beside_another_user(
    folder: Path, late: tuple[int, ...], parts: str, **variables: str
) -> list[tuple[dict[str, Any], str]]:
    """What both members of that program print, and their logs."""
    command = [sys.executable, str(PROGRAMS), "beside_another_user", "nvidia"]
    settings = environment(HETCOMM_EMULATED_HOSTILE=parts, NCCL_SOCKET_IFNAME="lo", **variables)
    processes = []
    unique_id = ""
    for member in range(2):
        rest = [unique_id, "late" if member in late else "", str(folder / "started")]
        process = subprocess.Popen(
            [*command, str(member), *rest],
            env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        processes.append(process)
        if member == 0:
            assert process.stdout is not None
            unique_id = process.stdout.readline().strip()
    ends = []
    for process in processes:
        text, log = process.communicate(timeout=END)
        assert process.returncode == 0, log
        ends.append((json.loads(text.splitlines()[-1]), log))
    return ends


@emulated
def test_a_forked_child_leaves_the_island_alone() -> None:
    assert run("forked") == 7


@emulated
def test_a_hanging_initialisation_times_out() -> None:
    for rank, end in enumerate(run("faulty", "nvidia", 2, 1, 2, fault="init_hang"), 10):
        assert end["error"] == "TimeoutError"
        assert "expected the ranks 10, 11 in one communicator within 2" in end["text"]
        assert f"rank {rank}" in end["text"]
        assert 2 <= end["seconds"] < 20


@emulated
def test_a_hanging_initialisation_is_aborted() -> None:
    done = run("hanging", "nvidia", fault="init_hang")
    assert done["error"] == "TimeoutError"
    assert "aborted" not in done["text"]
    assert done["left"] <= 0


@emulated
@pytest.mark.parametrize("spare", [0, 3])
def test_a_lack_of_descriptors_is_named(spare: int) -> None:
    """The library reports this or a failure of another member, or stands still."""
    for end in run("opening", "nvidia", 3, spare):
        assert end["error"] in ("VendorError", "TimeoutError"), end
        assert "expected 32 free descriptors; got " in end["text"], end
        assert "raise the descriptor limit" in end["text"], end


@emulated
def test_a_member_hanging_in_initialisation_times_out_for_all() -> None:
    ends = run("faulty", "nvidia", 3, 1, 2, fault="init_hang@1")
    assert {end["error"] for end in ends} == {"TimeoutError"}


@emulated
def test_a_failing_initialisation_quotes_the_library() -> None:
    for end in run("faulty", "amd", 2, 1, 5, fault="init_error"):
        assert end["error"] == "VendorError"
        assert "RCCL 2." in end["text"]
        assert "unhandled system error: set-up failed" in end["text"]


@emulated
def test_an_asynchronous_error_ends_the_call_on_all() -> None:
    ends = run("faulty", "nvidia", 3, 5, 30, fault="async_error:2@1")
    for rank, end in enumerate(ends, 10):
        assert (end["error"], end["calls"]) == ("VendorError", 2)
        assert "collective 7" in end["text"]
        assert f"rank {rank}" in end["text"]
        assert end["again"] == end["text"]  # the first cause stays
        assert end["seconds"] < 20


@emulated
def test_a_hanging_call_is_abandoned() -> None:
    for end in run("faulty", "amd", 2, 3, 6, fault="hang:1"):
        assert (end["error"], end["calls"]) == ("TimeoutError", 1)
        assert "given up; make a new process group" in end["again"]
        assert end["closed"] < 30


@emulated
def test_a_hanging_abort_blocks_no_member() -> None:
    """The fault is in closing too: the members' calls succeed, and their closing aborts."""
    for end in run("faulty", "nvidia", 2, 2, 5, fault="abort_hang"):
        assert (end["error"], end["calls"]) == ("", 2)
        assert end["closed"] < 30


@emulated
def test_vendors_reject_ids_of_each_other() -> None:
    done = run("strangers")
    assert done["error"] == "VendorError"
    assert "RCCL 2." in done["text"]


@emulated
def test_an_old_library_is_rejected() -> None:
    done = run("version", "nvidia", fault="old_version")
    assert "expected NCCL 2.18.0 or newer; got NCCL 2.14.3 from " in done["text"]
    assert "HETCOMM_NCCL_LIBRARY" in done["text"]


@emulated
def test_a_missing_network_is_an_error() -> None:
    done = run("network", "nvidia", "IB")
    assert done["error"] == "VendorError"
    assert "network IB not found" in done["text"]


def adapters(folder: Path, *names: str) -> dict[str, str]:
    """A tree in which the emulated vendors have these InfiniBand devices."""
    for name in names:
        (folder / "class/infiniband" / name).mkdir(parents=True)
    return {"HETCOMM_SYSFS_ROOT": str(folder), "HETCOMM_EMULATED_NETWORKS": "IB,Socket"}


@emulated
def test_the_chosen_network_is_shown(tmp_path: Path) -> None:
    machine = adapters(tmp_path, "mlx5_1", "mlx5_2", "mlx5_3")
    done = run("network", "amd", "IB", **machine)
    assert done["error"] == ""
    assert done["description"].endswith("network IB [0]mlx5_1:1/RoCE [1]mlx5_3:1/RoCE")
    assert "expected it to use" not in done["log"]
    mine = run("network", "amd", "IB", **machine, NCCL_DEBUG="VERSION")
    assert mine["description"].endswith(", 1 rank")  # the user keeps the log


@emulated
def test_an_unused_device_is_a_warning(tmp_path: Path) -> None:
    done = run("network", "amd", "IB", **adapters(tmp_path, "mlx5_3", "mlx5_10"))
    assert "expected it to use mlx5_1; it took network IB [0]mlx5_3:1/RoCE" in done["log"]


@emulated
def test_unsupported_reductions_are_rejected() -> None:
    done = run("refused", "nvidia")
    assert done["error"] == "InvalidArgumentError"
    assert "got sum of int16; convert to a dtype that it has" in done["text"]
    assert done["afterwards"] == [2, 2, 2]


@emulated
def test_the_environment_respects_user_settings() -> None:
    done = run("variables")
    assert done["variables"] == {"NCCL_IB_HCA": "mlx5_7", "NCCL_SOCKET_IFNAME": "lo"}
    assert done["debug"] == {}  # no variable of the log stays in the environment
