"""The registry of transports: every kind passes the conformance suite."""

import importlib

import pytest
from transport_conformance import TransportConformance

from hetcomm import _core


@pytest.mark.parametrize("kind", _core.transport_kinds())
def test_kind_has_a_conformance_test(kind: str) -> None:
    module = importlib.import_module(f"test_{kind}")
    suites = [
        item
        for name, item in vars(module).items()
        if name.startswith("Test") and issubclass(item, TransportConformance)
    ]
    assert suites and {suite.make().name for suite in suites} == {kind}


def test_unknown_kind_is_rejected() -> None:
    with pytest.raises(_core.InvalidArgumentError, match=r'expected one of .*ucx; got "pigeon"'):
        _core.make_transport("pigeon")
