"""The stubs for type checkers match the modules."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import hetcomm
from hetcomm import _core

FOLDER = Path(hetcomm.__file__).parent


def parsed(name: str) -> list[ast.stmt]:
    return ast.parse((FOLDER / name).read_text()).body


def test_every_public_name_is_typed() -> None:
    homes = {
        alias.asname: (node.module, alias.name)
        for node in parsed("__init__.pyi")
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name for name, (module, _) in homes.items() if module == "hetcomm"}
    assert modules == {"functional", "hooks", "plan"}
    needing_torch = set(hetcomm._OF_TORCH)
    assert modules <= needing_torch
    assert {*homes, "__version__"} == {*hetcomm.__all__, *needing_torch}
    for name, (module, original) in homes.items():
        assert module is not None
        if name in needing_torch and find_spec("torch") is None:
            continue
        public = getattr(hetcomm, name)  # imports torch before hetcomm._torch, which needs it
        assert getattr(import_module(module), original) is public


CLASSES = [node for node in parsed("_core.pyi") if isinstance(node, ast.ClassDef)]


@pytest.mark.parametrize("node", CLASSES, ids=lambda node: node.name)
def test_core_classes_match_their_stub(node: ast.ClassDef) -> None:
    real = getattr(_core, node.name)
    bases = [ast.unparse(base).removeprefix("builtins.") for base in node.bases]
    assert bases in ([base.__name__ for base in real.__bases__], [])
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            kind = ast.unparse(member.annotation).partition("[")[0]
            assert type(getattr(real, ast.unparse(member.target))).__name__ == kind
        elif isinstance(member, ast.FunctionDef) and node.name != "Store":  # the derived class
            assert hasattr(real, member.name)
            assert isinstance(getattr(real, member.name), property) == bool(member.decorator_list)


def test_python_errors_have_the_attributes_too() -> None:
    error = hetcomm.InvalidArgumentError("expected")
    assert (error.rank, error.peer, error.op, error.step) == (-1, -1, "", -1)
