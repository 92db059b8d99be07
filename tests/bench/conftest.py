"""Fixtures of the tests of `hetcomm bench` and `hetcomm tune`."""

import os

import pytest
from benching import CLUSTER

from hetcomm.emulate import ClusterError, load, run


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where the kernel forbids namespaces, and only there."""
    try:
        with open(os.devnull, "w") as nowhere:
            run(load(CLUSTER), ["true"], stdout=nowhere, timeout=30)
    except ClusterError as error:
        if error.key != "namespaces" or "EPERM" not in error.got:
            raise
        pytest.skip(f"this machine forbids namespaces: {error}")
