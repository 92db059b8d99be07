"""The tests that can see a change: `python tests/running/seeing.py csrc/plan hetcomm/doctor`.

Prints test files for pytest. A test sees

- a Python module that the test imports, or a module below it, or that a command of the test runs;
- a folder of `csrc/` whose headers bind a name of `hetcomm._core` that the test uses;
- the files whose path the test names, the helpers that it imports, and its `conftest.py` with
  what that imports.

Files that make the build, or that every import runs, concern all tests (`EVERYWHERE`).

A test of communicators runs the code of all layers below. Such tests are the business of
`make test`; for a change below them a few stand for all (`ABOVE`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = [
    "bench",
    "examples/recovery",
    "tests/arrays",
    "tests/core",
    "tests/running",
    "tests/torch",
]
ABOVE = [
    "tests/core/test_communicator.py",
    "tests/faults/test_killed.py::test_the_next_call_names_a_rank_killed_while_idle",
    "tests/torch/test_invalid.py",
]
RUNNING = {"csrc/exec", "csrc/health", "csrc/bootstrap", "csrc/comm"}  # run all layers below
LAYERS = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").iterdir() if path.is_dir()}
WHOLE = {"csrc", "bindings", "docs", "examples"}  # folders that tests read as text
EVERYWHERE = {
    "hetcomm/__init__.py", "hetcomm/cli.py", "CMakeLists.txt", "Makefile", "pyproject.toml",
    "setup.py",
}  # fmt: skip


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def words(path: Path) -> frozenset[str]:
    """What stands in quotes without spaces: commands, programs, paths."""
    return frozenset(re.findall(r"""["']([\w./-]+)["']""", text_of(path)))


@cache
def names_of(path: Path, module: str) -> frozenset[str]:
    """The names that a file takes from a module, also in programs that are texts of the file."""
    listed = re.findall(rf"from {re.escape(module)} import (\([^)]*\)|[^\n]*)", text_of(path))
    last = module.rpartition(".")[2]
    dotted = re.findall(rf"(?<![\w.]){last}\.(\w+)", text_of(path))
    return frozenset([*dotted, *(name for names in listed for name in re.findall(r"\w+", names))])


@cache
def homes() -> dict[str, str]:
    """The module of each name of `hetcomm`."""
    return dict(re.findall(r'"(\w+)": "([\w.]+)"', text_of(ROOT / "hetcomm/__init__.py")))


@cache
def commands() -> dict[str, str]:
    """The module of each command."""
    found = re.findall(r"from (hetcomm\.[\w.]+) import (\w+)", text_of(ROOT / "hetcomm/cli.py"))
    return {name: module for module, name in found}


def module_file(name: str, folders: Iterable[Path]) -> Path | None:
    for folder in folders:
        path = folder.joinpath(*name.split("."))
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file() and ROOT in candidate.parents:
                return candidate
    return None


@cache
def imports(path: Path) -> frozenset[Path]:
    """The project's files that a file imports, at any place, and those of commands that it runs."""
    text = text_of(path)
    names = set(re.findall(r"^\s*(?:from|import) ([\w.]+)", text, re.MULTILINE))
    for package, listed in re.findall(r"from (hetcomm[\w.]*) import (\([^)]*\)|[^\n]*)", text):
        names |= {f"{package}.{name}" for name in re.findall(r"\w+", listed)}
    names |= {homes()[name] for name in names_of(path, "hetcomm") if name in homes()}
    if ROOT / "tests" in path.parents:
        names |= {commands()[word] for word in words(path) if word in commands()}
        names |= {Path(word).stem for word in words(path) if word.endswith(".py")}
    folders = [path.parent, path.parent / "programs", ROOT, *(ROOT / folder for folder in SHARED)]
    files = (module_file(name, folders) for name in names)
    return frozenset(
        file for file in files if file and str(file.relative_to(ROOT)) not in EVERYWHERE
    )


def reach(*paths: Path) -> set[Path]:
    """Files, and all files of the project that they import, directly or not."""
    reached, left = set(), list(paths)
    while left:
        file = left.pop()
        if file not in reached:
            reached.add(file)
            left += imports(file)
    return reached


@cache
def bound_folders() -> dict[str, set[str]]:
    """By name of `hetcomm._core`: the folders of csrc/ whose headers its binding includes, and the
    binding's own path."""
    folders: dict[str, set[str]] = {}
    for path in (ROOT / "bindings/core").glob("*.cc"):
        text = path.read_text()
        included = {f"csrc/{name}" for name in re.findall(r'#include "(\w+)/', text)}
        for name in re.findall(r'"(\w+)"', text):
            folders.setdefault(name, set()).update(included, {str(path.relative_to(ROOT))})
    return folders


@cache
def own_rules(folder: Path) -> set[Path]:
    """The files of tests/ that pytest reads before the tests of a folder."""
    found = (one / "conftest.py" for one in (folder, *folder.parents))
    files = reach(*(path for path in found if path.is_file() and ROOT in path.parents))
    return {file for file in files if ROOT / "tests" in file.parents}


def sights(test: Path) -> set[str]:
    """What a test sees, as paths of the project: files, and folders of csrc/."""
    files = reach(test)
    seen = {str(file.relative_to(ROOT)) for file in files | own_rules(test.parent)}
    for file in files:
        if ROOT / "tests" not in file.parents:
            continue  # hetcomm/ uses most names; a test of it is no test of csrc/
        if re.search(r"torch\.distributed|init_process_group", text_of(file)):
            seen.add("bindings/torch")
        if "Communicator" in names_of(file, "hetcomm"):
            seen |= RUNNING
        for name in names_of(file, "hetcomm._core"):
            seen |= bound_folders().get(name, set())
        paths = (word.strip("/") for word in words(file) if "/" in word or word in WHOLE)
        seen |= {path for path in paths if (ROOT / path).exists()}
    return seen if seen.isdisjoint(RUNNING) else (seen - LAYERS) | RUNNING


def selected(changed: Iterable[str]) -> list[str]:
    """The tests for pytest that see one of these files or folders, in the order of names."""
    paths = [os.path.relpath((ROOT / path).resolve(), ROOT) for path in changed]
    if not EVERYWHERE.isdisjoint(paths):
        return ["tests"]
    chosen: set[str] = set()
    for path in paths:
        if path.startswith("csrc/"):
            chosen |= set(ABOVE)
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        name, seen = str(test.relative_to(ROOT)), sights(test)
        if any(related(path, one) for path in paths for one in seen):
            chosen.add(name)
    return sorted(one for one in chosen if one.partition("::")[0] not in chosen or "::" not in one)


def related(changed: str, seen: str) -> bool:
    """Whether one of them is the other, or lies in it."""
    return changed == seen or changed.startswith(f"{seen}/") or seen.startswith(f"{changed}/")


def changed_files() -> list[str]:
    """Of the working tree, against HEAD."""
    listed = ["git", "-C", str(ROOT), "status", "--porcelain", "--no-renames", "-uall"]
    lines = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line[3:] for line in lines]


def main() -> None:
    asked = sys.argv[1:]
    if missing := [path for path in asked if not (ROOT / path).exists()]:
        raise SystemExit(f"expected files or folders of the project, got {', '.join(missing)}")
    changed = asked or changed_files()
    tests = selected(changed)
    if not tests:
        raise SystemExit(f"no test sees {', '.join(changed) or 'a change: there is none'}")
    print("\n".join(tests))


if __name__ == "__main__":
    main()
