"""Times of tests: whose processor time counts, and which folder grew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import times
from times import (
    COSTLY,
    ROOT,
    Times,
    costs,
    file_of,
    folder_of,
    grouped,
    grown,
    new_costs,
    processor_seconds,
    rests,
    rows,
    table,
)

BUSY = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def test_a_process_that_has_ended_counts() -> None:
    before = processor_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", BUSY], check=True, timeout=120)
    assert processor_seconds(os.getpid()) - before >= 0.25


def test_a_process_that_runs_counts() -> None:
    before = processor_seconds(os.getpid())
    program = BUSY + "\nprint(flush=True); input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        assert processor_seconds(os.getpid()) - before >= 0.25
        process.communicate(b"\n", timeout=60)


def test_the_times_of_a_part_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times, "LAST", tmp_path / "times.json")
    monkeypatch.setattr(sys, "argv", ["times.py"])
    times.LAST.write_text('{"whole": false, "tests": {}}')
    with pytest.raises(SystemExit, match="run `make test`"):
        times.main()


def test_times_add_up_by_folder_and_file() -> None:
    tests = {
        "tests/a/test_x.py::one": Times(1, 2.0, 1.0),
        "tests/a/test_y.py::two": Times(1, 3.0, 4.0),
        "tests/b/test_z.py::three": Times(1, 1.0, 9.0),
    }
    assert grouped(tests.items(), folder_of) == {
        "tests/b": Times(1, 1.0, 9.0),
        "tests/a": Times(2, 5.0, 5.0),
    }
    assert list(grouped(tests.items(), file_of)) == [
        "tests/b/test_z.py",
        "tests/a/test_y.py",
        "tests/a/test_x.py",
    ]
    assert table(grouped(tests.items(), folder_of))[-1] == "| all | 3 | 6 | 14 |"


def test_a_folder_that_grew_is_named_whatever_the_speed_of_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "times.toml"
    rest = rows("rest", {"tests/a": 30.0, "tests/b": 50.0, "tests/c": 20.0, "tests/d": 1.0})
    file.write_text(f"{rest}\n{rows('case', {'tests/a/test_x.py::costly': 35.0})}\n")
    now = {
        # As all folders: this machine is half as fast. A case that was left out does not count.
        "tests/a/test_x.py::cheap": Times(1, 0, 60.0),
        "tests/a/test_x.py::costly[one]": Times(1, 0, 70.0),
        "tests/b/test_x.py::new": Times(1, 0, 25.0),
        "tests/b/test_x.py::old": Times(1, 0, 100.0),
        "tests/c/test_x.py::waits": Times(1, 80.0, 0),
        "tests/d/test_x.py::short": Times(1, 0, 9.0),
    }
    assert grown(now, file) == ["tests/b takes 1.25 times the time of times.toml"]
    del now["tests/b/test_x.py::new"], now["tests/b/test_x.py::old"]
    assert grown(now, file) == []


def test_costly_tests_are_stored_by_their_mean_case(tmp_path: Path) -> None:
    here = Path(__file__).relative_to(ROOT)
    own = f"{here}::test_costly_tests_are_stored_by_their_mean_case"
    other = f"{here}::test_a_process_that_runs_counts"
    cheap = f"{here}::test_times_add_up_by_folder_and_file"
    tests = {
        f"{own}[one]": Times(1, 3 * COSTLY, COSTLY),  # mostly waits
        f"{own}[two]": Times(1, 3 * COSTLY, 2 * COSTLY),
        cheap: Times(1, 0.1, COSTLY / 2),
    }
    before = {other: 7.0, f"{here}::test_of_the_past": 5.0}
    now = new_costs(tests, before)
    assert now == {own: pytest.approx(1.5 * COSTLY), other: 7.0}
    assert rests(tests, 1.0, now) == {"tests/running": COSTLY / 2}
    file = tmp_path / "times.toml"
    file.write_text(rows("case", now))
    assert costs(file) == now


def test_a_slower_machine_changes_no_cost() -> None:
    here = Path(__file__).relative_to(ROOT)
    before = {
        f"{here}::test_costly_tests_are_stored_by_their_mean_case": 4.0,
        f"{here}::test_a_process_that_runs_counts": 3.0,
        f"{here}::test_times_add_up_by_folder_and_file": 2.0,
    }
    tests = {name: Times(1, 0.0, 3 * cost) for name, cost in before.items()}
    assert new_costs(tests, before) == pytest.approx(before)
