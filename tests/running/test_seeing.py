"""`make test FOR=...` runs the tests that can see a change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import seeing

ROOT = Path(__file__).resolve().parents[2]


def files(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("test_*.py")}


@pytest.mark.parametrize(
    ("changed", "folder"),
    [
        ("csrc/plan", "tests/plan"),
        ("csrc/plan/algorithms/all_reduce.cc", "tests/plan"),
        ("csrc/transport/ucx", "tests/transport"),
        ("hetcomm/doctor", "tests/doctor"),
        ("hetcomm/demo", "tests/demo"),
        ("bindings/torch", "tests/torch_registration"),
    ],
)
def test_a_part_is_seen_by_the_tests_of_its_folder(changed: str, folder: str) -> None:
    assert files(folder) <= set(seeing.selected([changed]))


def test_a_change_below_communicators_runs_few_tests_of_communicators() -> None:
    tests = seeing.selected(["csrc/plan"])
    assert set(seeing.ABOVE) <= set(tests)
    assert not files("tests/emulate") & set(tests)


def test_a_helper_is_seen_by_its_users_alone() -> None:
    tests = seeing.selected(["tests/doctor/planted.py"])
    own = str(Path(__file__).relative_to(ROOT))  # names the helper
    assert own in tests and len(tests) > 1 and set(tests) <= files("tests/doctor") | {own}


def test_a_name_of_the_core_leads_to_its_binding() -> None:
    assert "tests/core/test_codecs.py" in seeing.selected(["csrc/codec"])
    assert "tests/core/test_codecs.py" in seeing.selected(["bindings/core/codec.cc"])


def test_the_parts_of_the_project_are_seen_by_all_tests_of_it() -> None:
    parts = [
        "csrc",
        "bindings",
        "hetcomm",
        "emulated",
        "bench",
        "examples",
        "docs",
    ]
    seen = set(seeing.selected(parts))
    assert files("tests") - seen <= files("tests/running")


def test_rules_of_a_folder_are_seen_by_its_tests() -> None:
    assert files("tests/core") <= set(seeing.selected(["tests/core/conftest.py"]))
    assert files("tests") == set(seeing.selected(["tests/running/skips.py"]))


@pytest.mark.parametrize("path", ["pyproject.toml", "setup.py", "hetcomm/cli.py"])
def test_what_every_test_uses_is_seen_by_all(path: str) -> None:
    assert seeing.selected(["csrc/plan", path]) == ["tests"]


def test_an_unknown_path_is_refused() -> None:
    command = [sys.executable, "-P", str(ROOT / "tests/running/seeing.py"), "csrc/nothing"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "expected files or folders of the project, got csrc/nothing" in done.stderr
