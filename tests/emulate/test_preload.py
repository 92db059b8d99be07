"""Ranks that are forks with imported modules: like other ranks, but for the imports."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from emulated import PROGRAMS, RunProgram, two_hosts

from hetcomm.emulate import ClusterError, Result, run

pytestmark = pytest.mark.needs("namespaces")
MODULES = ["wave", "numpy"]
COMMAND = [sys.executable, str(PROGRAMS / "preloaded.py"), "none"]


def facts(lines: list[str]) -> list[dict[str, Any]]:
    """What each rank prints of itself, by rank."""
    found = [json.loads(line.split("] ", 1)[1]) for line in lines if "] {" in line]
    return sorted(found, key=lambda each: each["rank"])


def test_ranks_have_the_modules_and_nothing_else_of_their_parent(
    run_program: RunProgram, tmp_path: Path
) -> None:
    cluster = two_hosts(ranks=(2, 1))
    fresh, preloaded = (
        run_program(cluster, "preloaded.py", "thread", tmp_path, preload=modules)
        for modules in ([], MODULES)
    )
    assert fresh[0].ok and preloaded[0].ok, fresh[1] + preloaded[1]
    for before, after in zip(facts(fresh[1]), facts(preloaded[1]), strict=True):
        assert not before.pop("preloaded") and after.pop("preloaded")
        assert before.pop("random") != after.pop("random")
        assert before == after
    for _, lines in (fresh, preloaded):
        for end in ("the thread ended", "at exit"):
            assert sum(line.endswith(end) for line in lines) == 3, lines
    assert {file.read_text() for file in tmp_path.iterdir()} == {"written"}  # by preloaded ranks


def test_random_numbers_differ(run_program: RunProgram) -> None:
    pytest.importorskip("torch")
    result, lines = run_program(two_hosts((2, 1)), "preloaded.py", "none", preload=["torch"])
    assert result.ok, lines
    drawn = [value for rank in facts(lines) for value in rank["random"]]
    assert len(set(drawn)) == 9 and -1.0 not in drawn


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("raise", 1, "ValueError: as asked"),
        ("exit", 7, "at exit"),
        ("text", 1, "a last word"),
        ("object", 1, "{'why': 'an object'}"),
        ("hook", 9, "at exit"),
    ],
)
def test_ranks_end_as_they_would(run_program: RunProgram, end: str, code: int, said: str) -> None:
    result, lines = run_program(two_hosts(), "preloaded.py", end, preload=MODULES)
    assert result.exit_codes == (code, code), lines
    assert sum(line.endswith(said) for line in lines) == 2, lines
    assert not any("hetcomm/emulate" in line for line in lines), lines


def test_closed_output_is_no_failure(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(), "preloaded.py", "closed", preload=["wave"])
    assert result.ok, lines


def test_a_missing_program_is_told(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(), "no_such_file.py", preload=["wave"])
    assert result.exit_codes == (2, 2)
    assert sum("can't open file" in line for line in lines) == 2, lines


def test_ranks_end_with_the_run(run_program: RunProgram) -> None:
    result, lines = run_program(
        two_hosts((2, 2)), "preloaded.py", "linger", preload=MODULES, timeout=5
    )
    assert result.timed_out, lines
    assert result.exit_codes == (-signal.SIGTERM,) * 4, lines


def test_modules_run_as_programs(capfd: pytest.CaptureFixture[str]) -> None:
    result = run(two_hosts(), [sys.executable, "-m", "timeit", "-n1", "1"], preload=["wave"])
    assert result.ok
    assert capfd.readouterr().out.count("1 loop, best of 5") == 2


def preload(modules: list[str], command: list[str] = COMMAND, **options: Any) -> Result:
    return run(two_hosts(), command, preload=modules, **options)


def test_commands_that_are_no_forks_are_rejected() -> None:
    for words in (["true"], [sys.executable], [sys.executable, "-c", "0"], [sys.executable, "-m"]):
        with pytest.raises(ClusterError, match=r"^preload: expected python\S* FILE \.\.\., or"):
            preload(MODULES, words)


SWALLOWS = """
import time
while True:
    try:
        time.sleep(300)
    except Exception:
        pass
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import no_such_module", r"can be imported, got ModuleNotFoundError \(No module"),
        ("raise SystemExit('no device')", r"can be imported, got SystemExit \(no device\)"),
        (SWALLOWS, "imports within 3 s, got unfinished ones; raise the timeout"),
        ("import hetcomm.files", "modules without hetcomm, got own_module"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(9,)).start()",
            "start no threads, got 1 after the import of own_module",
        ),
    ],
    ids=["missing", "exits", "endless", "hetcomm", "thread"],
)
def test_impossible_modules_are_rejected(
    module: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_module.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ClusterError, match="^preload: expected .*" + said):
        preload(["own_module"], timeout=3)


def test_ranks_have_what_an_import_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_module.py").write_text(
        "import os, sys\nos.environ['LEFT'] = 'here'\nlog = open(os.environ['LOG'], 'a')\n"
    )
    program = tmp_path / "program.py"
    program.write_text(
        "import os, own_module\nown_module.log.write(os.environ['LEFT'])\n"
        "import numpy\nprint(os.environ['OMP_NUM_THREADS'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # of which OpenBLAS would start a thread
    assert preload(["own_module", "numpy"], [sys.executable, str(program)]).ok
    assert (tmp_path / "log").read_text() == "herehere"
    assert capfd.readouterr().out.count("] 2\n") == 2


def test_an_interrupt_ends_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text(SWALLOWS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    # Processes that a shell starts in the background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            preload(["own_module"], timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 7.5  # 8 s later the supervisor gets SIGKILL
