"""Warnings of ranks that come late and of slow paths, and counters."""

from __future__ import annotations

import re
from pathlib import Path

from job import BOUND, Job, wait_for

WATCH = {"HETCOMM_WATCH": "1"}


def test_a_rank_that_comes_late_is_named(tmp_path: Path) -> None:
    with Job(tmp_path, "aab", "array", settings={rank: WATCH for rank in range(3)}) as job:
        job.do("turn_late", 1, 0.005)
        late = re.compile(
            r"PerformanceWarning: rank 1 on \S+ of group \"\S+\" comes last to (\d+) of (\d+) "
            r"collectives, (\S+) ms after"
        )
        # On a busy machine another rank may come last, too, for a second.
        wait_for(lambda: late.search(job[0].log.read_text()) is not None)
        wait_for(lambda: "WARNING:hetcomm:rank 1 on" in job[0].log.read_text())  # the logger's
        log = job[0].log.read_text()
        found = late.search(log)
        assert found, log
        assert int(found[1]) >= 0.6 * int(found[2]) and 2 < float(found[3]) < 1000, log
        lines = log.splitlines()  # the warning is told once only
        assert not any("hetcomm warning" in line and "comes last" in line for line in lines), log


def test_calls_of_even_ranks_are_compared(tmp_path: Path) -> None:
    with Job(tmp_path, "ab", "array", settings={rank: WATCH for rank in range(2)}) as job:
        job.do("turn_late", 0, 0.0)
        series = tmp_path / "compared"

        def compared() -> bool:
            job[0].do("write_metrics", str(series))
            text = series.read_text()
            found = re.search(r"hetcomm_compared_calls_total\{.*\} (\d+)", text)
            late = re.findall(r"hetcomm_late_arrivals_total\{.*\} (\d+)", text)
            assert found is None or sum(map(int, late)) == int(found[1]), text
            return found is not None and int(found[1]) >= 30

        wait_for(compared)


def test_counters_add_up(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    settings = {rank: {"HETCOMM_METRICS": str(folder)} for rank in range(2)}
    with Job(tmp_path, "ab", settings=settings) as job:
        for _ in range(5):
            job.do("all_reduce", 1000)
        job[0].do("send", 1, 100)
        job[1].do("recv", 0, 100)
        files = [folder / f"hetcomm-{rank.process.pid}.prom" for rank in job.ranks]

        def complete() -> bool:
            return all(file.exists() and "} 20000\n" in file.read_text() for file in files)

        wait_for(complete)
        text = files[1].read_text()
        labels = 'group="first",rank="1",collective='
        assert f'hetcomm_operations_total{{{labels}"all_reduce"}} 5\n' in text
        assert f'hetcomm_bytes_total{{{labels}"all_reduce"}} 20000\n' in text
        assert f'hetcomm_errors_total{{{labels}"all_reduce"}} 0\n' in text
        took = re.search(rf'hetcomm_seconds_total\{{{labels}"all_reduce"\}} ([\d.]+)\n', text)
        assert took and 0 < float(took[1]) < BOUND, text
        for line in text.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) \w+ .*|\w+\{[^}]*\} [\d.]+", line), line
        for rank in job.ranks:
            rank.exits_cleanly()
        assert not list(folder.iterdir())
