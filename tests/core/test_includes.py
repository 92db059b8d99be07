"""The direction of the include graph of csrc/, emulated/ and bindings/."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

UP_TO_EXEC = {"base", "device", "codec", "topology", "transport", "plan", "island", "exec"}

# Each folder and the folders that it may include besides itself.
ALLOWED = {
    "csrc/base": set[str](),
    "csrc/device": {"base"},
    "csrc/codec": {"base", "device"},
    "csrc/topology": {"base"},
    "csrc/transport": {"base"},
    "csrc/plan": {"base", "codec", "topology"},
    "csrc/island": {"base", "device"},
    "csrc/exec": {"base", "device", "codec", "topology", "transport", "plan", "island"},
    "csrc/health": UP_TO_EXEC,
    "csrc/bootstrap": {*UP_TO_EXEC, "health"},
    "csrc/comm": {*UP_TO_EXEC, "health", "bootstrap"},
    "emulated": {"base", "device"},
    "bindings/python": set[str](),
    "bindings/core": {*UP_TO_EXEC, "health", "bootstrap", "comm", "core", "python"},
    "bindings/torch": {"base", "bootstrap", "comm", "device", "island", "plan", "python", "torch"},
}
FOLDERS = {name.split("/")[-1] for name in ALLOWED}
TORCH = re.compile(
    r"(torch/(csrc|extension|all|library|headeronly|torch|version)|ATen|c10|caffe2)\b"
)
PYTHON = re.compile(r"(Python\.h|pybind11/|pytypedefs|object\.h|structmember\.h)")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+([<"])([^>"]+)[>"]', re.MULTILINE)
SUFFIXES = {".h", ".cc", ".inc", ".cu", ".cuh", ".cpp", ".hpp"}


def violations(root: Path) -> list[str]:
    """Every include that the file's folder must not have."""
    found = []
    for top in ("csrc", "emulated", "bindings"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            parts = path.relative_to(root).parts
            folder = "/".join(parts[:2]) if len(parts) > 2 else top
            for bracket, target in INCLUDE.findall(path.read_text()):
                if why := forbidden(folder, bracket, target):
                    found.append(f"{path.relative_to(root)}: includes {target}: {why}")
    return found


def forbidden(folder: str, bracket: str, target: str) -> str:
    """Why a file of `folder` may not include `target`; empty if it may."""
    if TORCH.match(target):
        return "" if folder == "bindings/torch" else "only bindings/torch sees torch"
    if PYTHON.match(target):
        return "" if folder.startswith("bindings/") else "the core knows nothing of Python"
    if ".." in target.split("/"):
        return "a path up the tree hides the direction"
    first = target.split("/")[0]
    own = folder.split("/")[-1]
    if first not in FOLDERS or "/" not in target:
        return "" if bracket == "<" else "expected a path from csrc/, emulated/ or bindings/"
    if bracket == "<":
        return "files of this project are included with quotes"
    if folder not in ALLOWED:
        return f"{folder} has no row in the table of this test"
    if first == own or first in ALLOWED[folder]:
        return ""
    return f"{own} may see {', '.join(sorted(ALLOWED[folder])) or 'nothing'} only"


def test_no_include_goes_against_the_direction() -> None:
    assert violations(ROOT) == []


def test_every_folder_has_a_row() -> None:
    folders = {
        f"{top}/{path.name}"
        for top in ("csrc", "bindings")
        for path in (ROOT / top).iterdir()
        if path.is_dir()
    }
    assert folders | {"emulated"} == set(ALLOWED)


def test_the_build_allows_what_this_test_allows() -> None:
    """csrc/CMakeLists.txt states the same direction: hetcomm_folder(name dependency... PRIVATE
    dependency...). Folders above do not see private dependencies."""
    text = (ROOT / "csrc/CMakeLists.txt").read_text()
    direct, private = {}, {}
    for line in re.findall(r"^hetcomm_folder\((.*)\)", text, re.M):
        public, _, hidden = line.partition(" PRIVATE ")
        name, *names = public.split()
        direct[name], private[name] = set(names), set(hidden.split())

    def reach(name: str) -> set[str]:
        return direct[name].union(*(reach(below) for below in direct[name]))

    for name in direct:
        assert reach(name) | private[name] == ALLOWED[f"csrc/{name}"], name


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("csrc/base/x.h", '#include "device/reduce.h"'),
        ("csrc/plan/x.cc", '#include "transport/transport.h"'),
        ("csrc/plan/algorithms/x.cc", '#include "island/island.h"'),
        ("csrc/plan/x.h", '#include "device/reduce.h"'),
        ("csrc/topology/x.h", '#include "plan/plan.h"'),
        ("csrc/transport/ucx/x.cc", '#include "topology/probe.h"'),
        ("csrc/device/x.cc", '#include "island/island.h"'),
        ("csrc/island/shm/x.h", '#include "plan/plan.h"'),
        ("csrc/exec/x.cc", '#include "bootstrap/store.h"'),
        ("csrc/exec/x.cc", '  #  include "bootstrap/store.h"'),
        ("csrc/health/x.cc", '#include "bootstrap/group.h"'),
        ("csrc/bootstrap/x.cc", '#include "comm/communicator.h"'),
        ("csrc/comm/x.cc", "#include <torch/csrc/distributed/c10d/Store.hpp>"),
        ("csrc/comm/x.cc", "#include <Python.h>"),
        ("csrc/base/x.h", "#include <pybind11/pybind11.h>"),
        ("csrc/base/x.h", "#include <c10/util/intrusive_ptr.h>"),
        ("bindings/core/x.cc", "#include <ATen/ATen.h>"),
        ("bindings/core/x.cc", '#include "torch/backend.h"'),
        ("bindings/torch/x.cc", '#include "transport/ucx/ucx.h"'),
        ("csrc/plan/x.cc", '#include "../transport/transport.h"'),
        ("csrc/plan/x.cc", "#include <transport/transport.h>"),
        ("csrc/plan/x.cc", '#include "plan.h"'),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, line: str) -> None:
    planted = tmp_path / path
    planted.parent.mkdir(parents=True)
    (tmp_path / "bindings").mkdir(exist_ok=True)
    planted.write_text(f"// a comment\n#pragma once\n\n#include <vector>\n{line}\n\nint x;\n")
    found = violations(tmp_path)
    assert len(found) == 1 and found[0].startswith(f"{path}: includes "), found


def test_an_allowed_tree_has_no_violations(tmp_path: Path) -> None:
    for path, line in {
        "csrc/exec/x.cc": '#include "plan/plan.h"',
        "csrc/comm/x.cc": '#include "transport/ucx/ucx.h"',
        "bindings/torch/x.cc": "#include <torch/csrc/Exceptions.h>",
        "bindings/core/x.cc": "#include <pybind11/stl.h>",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(f"{line}\n#include <memory>\n#include <infiniband/verbs.h>\n")
    assert violations(tmp_path) == []
