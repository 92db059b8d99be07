"""Ranks that are forks with imported modules: like other ranks, but for the imports."""

import json
import os
import signal
import sys
from typing import Any

import pytest
from emulated import PROGRAMS, RunProgram, two_hosts

from hetcomm.emulate import ClusterError, Result, run

pytestmark = pytest.mark.needs("namespaces")
MODULES = ["wave", "numpy"]
COMMAND = [sys.executable, str(PROGRAMS / "preloaded.py"), "thread"]


def facts(lines: list[str]) -> list[dict[str, Any]]:
    """What each rank prints of itself, by rank."""
    found = [json.loads(line.split("] ", 1)[1]) for line in lines if "] {" in line]
    return sorted(found, key=lambda each: each["rank"])


def test_ranks_have_the_modules_and_nothing_else_of_their_parent(run_program: RunProgram) -> None:
    cluster = two_hosts(ranks=(2, 1))
    fresh, preloaded = (
        run_program(cluster, "preloaded.py", "thread", "--more", preload=modules)
        for modules in ([], MODULES)
    )
    assert fresh[0].ok and preloaded[0].ok, fresh[1] + preloaded[1]
    for before, after in zip(facts(fresh[1]), facts(preloaded[1]), strict=True):
        assert not before.pop("preloaded") and after.pop("preloaded")
        assert before.pop("random") != after["random"]
        assert before == {key: value for key, value in after.items() if key != "random"}
    drawn = [value for rank in facts(preloaded[1]) for value in rank["random"]]
    assert len(set(drawn)) == len(drawn)
    for _, lines in (fresh, preloaded):
        for end in ("the thread ended", "at exit"):
            assert sum(line.endswith(end) for line in lines) == 3, lines


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("raise", 1, "ValueError: as asked"), ("exit", 7, "at exit"), ("text", 1, "a last word")],
)
def test_ranks_end_as_they_would(run_program: RunProgram, end: str, code: int, said: str) -> None:
    result, lines = run_program(two_hosts(), "preloaded.py", end, preload=MODULES)
    assert result.exit_codes == (code, code), lines
    assert sum(line.endswith(said) for line in lines) == 2, lines
    assert not any("hetcomm/emulate" in line for line in lines), lines


def test_ranks_end_with_the_run(run_program: RunProgram) -> None:
    result, lines = run_program(two_hosts(), "preloaded.py", "linger", preload=MODULES, timeout=5)
    assert result.timed_out, lines
    assert result.exit_codes == (-signal.SIGTERM, -signal.SIGTERM), lines


def test_modules_run_as_programs(capfd: pytest.CaptureFixture[str]) -> None:
    result = run(two_hosts(), [sys.executable, "-m", "timeit", "-n1", "1"], preload=["wave"])
    assert result.ok
    assert capfd.readouterr().out.count("1 loop, best of 5") == 2


def preload(modules: list[str], command: list[str] = COMMAND, **options: Any) -> Result:
    return run(two_hosts(), command, preload=modules, **options)


def test_impossible_preloads_are_rejected(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (
        ["true"],
        [sys.executable],
        [sys.executable, "-c", "0"],
        [sys.executable, "-m"],
    ):
        with pytest.raises(ClusterError, match=r"preload: expected a command python\S* FILE"):
            preload(MODULES, command)
    with pytest.raises(ClusterError, match="modules other than hetcomm's, got"):
        preload(["hetcomm.torch"])
    (tmp_path / "busy.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(5,)).start()\n"
    )
    (tmp_path / "endless.py").write_text("import time\ntime.sleep(300)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ClusterError, match=r"can be imported, got ModuleNotFoundError \(No module"):
        preload(["no_such_module"])
    with pytest.raises(ClusterError, match="start no threads, got 1 after the import of busy"):
        preload(["busy"])
    with pytest.raises(ClusterError, match=r"^preload: expected imports within 2 s"):
        preload(["endless"], timeout=2)
