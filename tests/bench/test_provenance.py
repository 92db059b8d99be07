"""A stored figure names its origin: commit, machine, versions and settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import peers
import pytest
from studies import provenance, stored
from studies.catalogue import STUDIES
from studies.model import KINDS


def git(folder: Path, *words: str) -> str:
    person = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    command = ["git", "-C", str(folder), *person, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path) -> Path:
    for name in ("csrc/run.cc", "bench/results/staging.json", "docs/page.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("first\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "everything")
    return folder


def test_the_commit_and_changed_files_are_recorded(tmp_path: Path) -> None:
    root = repository(tmp_path)
    head = git(root, "rev-parse", "HEAD")
    assert provenance.commit_of(root) == (head, [])
    (root / "docs/page.md").write_text("second\n")  # changes no figure
    (root / "bench/results/staging.json").write_text("second\n")
    assert provenance.commit_of(root) == (head, [])
    (root / "csrc/run.cc").write_text("second\n")
    (root / "bench/more.py").write_text("new\n")
    assert provenance.commit_of(root) == (head, ["csrc/run.cc", "bench/more.py"])


def test_a_folder_without_repository_has_no_commit(tmp_path: Path) -> None:
    assert provenance.commit_of(tmp_path) == (None, [])


def test_a_library_older_than_its_sources_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, source = tmp_path / "hetcomm/libhetcomm.so", tmp_path / "csrc/exec/run.cc"
    for file in (library, source):
        file.parent.mkdir(parents=True)
        file.touch()
    os.utime(source, (1, 1))
    monkeypatch.setattr(provenance, "folder_of_library", lambda: library.parent)
    provenance.check_build(tmp_path)
    os.utime(library, (0, 0))
    with pytest.raises(provenance.StaleBuildError, match=r"csrc/exec/run.cc is newer; run make"):
        provenance.check_build(tmp_path)


def test_other_load_is_detected() -> None:
    cores = len(os.sched_getaffinity(0))
    spinning = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(spinning) for _ in range(cores)]
    try:
        assert provenance.busy(0.5) > provenance.MUCH
    finally:
        for each in started:
            each.kill()
            each.wait()


def test_a_run_records_machine_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETCOMM_UCX_LIBRARY", str(peers.ROOT / "lib/libucp.so.0"))
    monkeypatch.setenv("HOME_OF_SOMEBODY", "not recorded")
    facts = provenance.of_this_run(["staging", "--output", str(peers.ROOT / "build/x")], ())
    assert facts["environment"]["HETCOMM_UCX_LIBRARY"] == "lib/libucp.so.0"
    assert not any("SOMEBODY" in name for name in facts["environment"])
    assert facts["arguments"] == ["staging", "--output", "build/x"]
    assert facts["machine"]["cores"] >= 1 and 0 <= facts["machine"]["busy"] <= 1
    assert re.fullmatch(r"\d+(\.\d+)+", facts["versions"]["python"])
    assert facts["versions"]["ucx"] and str(peers.ROOT) not in json.dumps(facts)


@pytest.mark.parametrize("name", STUDIES)
def test_every_stored_result_names_its_origin(name: str) -> None:
    result = stored.load(name)
    assert {each.kind for each in result.verdicts} <= set(KINDS)
    facts = result.facts
    assert re.fullmatch(r"[0-9a-f]{40}", facts["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["time"])
    assert facts["machine"]["processor"] and facts["machine"]["kernel"]
    assert facts["versions"]["python"]


def test_a_result_without_commit_is_rejected(tmp_path: Path) -> None:
    told = json.loads((stored.FOLDER / "staging.json").read_text())
    del told["commit"]
    (tmp_path / "staging.json").write_text(json.dumps(told))
    with pytest.raises(stored.ResultError, match=r"lacks commit; measure it again: python"):
        stored.load("staging", tmp_path)
    with pytest.raises(stored.ResultError, match=r"a result in layouts\.json, got FileNot"):
        stored.load("layouts", tmp_path)


def test_a_result_survives_writing_and_reading(tmp_path: Path) -> None:
    for name in STUDIES:
        stored.load(name).write(tmp_path)
        assert stored.load(name, tmp_path).facts == stored.load(name).facts
        assert (tmp_path / f"{name}.json").read_text().count("\n") == (
            stored.FOLDER / f"{name}.json"
        ).read_text().count("\n")
