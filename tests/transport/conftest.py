"""Failing assertions of the conformance suites show their values, as those of test files do."""

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("process_conformance", "transport_conformance", "transport_peers")


@pytest.fixture(autouse=True, scope="module")
def admitted() -> Iterator[None]:
    """These links are opened before the other end has the address that it should admit. The kernel
    would drop the first packet, and send another a second later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETCOMM_UCX_SOURCES", "any")
        yield
