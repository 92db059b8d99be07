"""Failing assertions of the conformance suites show their values, as those of test files do."""

import pytest

pytest.register_assert_rewrite("process_conformance", "transport_conformance", "transport_peers")
