"""`hetcomm dump` reaches a job in other network namespaces."""

import threading
import time
from contextlib import suppress
from pathlib import Path

from emulated import RunProgram, two_hosts

import hetcomm
from hetcomm.dump_command import ask

BOUND = 50.0  # seconds


def processes_with(word: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def state_of(word: str, *wanted: str) -> str:
    """The state that a process of this command tells, once the state has all of `wanted`. A rank
    without processor time for a second is a culprit, too, for that time."""
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline:
        for process in processes_with(word):
            with suppress(hetcomm.Error):
                text = ask(process, "state")
                if all(words in text for words in wanted):
                    return text
        time.sleep(0.05)
    raise AssertionError(f"no process with {word} tells {wanted}")


def test_a_late_rank_is_named_from_outside(run_program: RunProgram, tmp_path: Path) -> None:
    found = []
    job = threading.Thread(
        target=lambda: found.append(run_program(two_hosts((2, 1)), "late.py", tmp_path))
    )
    job.start()
    try:
        culprit = "likely culprit: rank 1 on red0 has not called all_reduce"
        lines = ("rank 0 on red0, process", "rank 2 on blue0, process")
        text = state_of(str(tmp_path), culprit, "of 3 ranks", *lines)
    finally:
        (tmp_path / "go").touch()
        job.join(2 * BOUND)
    assert text.count("likely culprit") == 1, text
    ((result, lines),) = found
    assert result.ok, lines
    assert sum("sum 3" in line for line in lines) == 3, lines
