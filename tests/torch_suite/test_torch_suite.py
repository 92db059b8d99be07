"""Everything that passes on gloo in PyTorch's own distributed suite passes on hetcomm."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare import (
    BOUND,
    Comparison,
    compare,
    counts,
    differences,
    markdown,
    run,
    stored_gloo,
    version,
)

PAGE = Path(__file__).parents[2] / "docs" / "torch-suite.md"


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare(2, [], whole_own_name=False, gloo=stored_gloo(2))


@pytest.mark.slow
@pytest.mark.timeout(2 * BOUND)
def test_nothing_passes_on_gloo_only(comparison: Comparison) -> None:
    assert sum(outcome == "passed" for outcome, _ in comparison.gloo.values()) > 50
    assert not comparison.behind


SOME = ["test_all_reduce_sum", "test_barrier", "test_broadcast", "test_Backend_enum_class"]


def test_gloo_matches_its_stored_results() -> None:
    """Only a few tests; `make torch-suite` runs all."""
    stored = stored_gloo(2)
    if stored is None:
        pytest.skip(f"tests/torch_suite/gloo.json is not of {version()}")
    seen = run("gloo", 2, "gloo", SOME)
    assert not differences({test: stored[test] for test in SOME}, seen)


@pytest.mark.slow
def test_the_page_matches_the_run(comparison: Comparison) -> None:
    """Leaves out the row of the own name, which `make torch-suite` runs."""
    page = PAGE.read_text()
    if f"{version()}," not in page:
        pytest.skip(f"docs/torch-suite.md is not of {version()}")
    lines = [markdown(row) for row in counts(comparison)]
    lines += [f"- `{test}`: {why}" for test, why in comparison.depends_on_name.items()]
    missing = [line for line in lines if line not in page.splitlines()]
    assert not missing, f"run `make torch-suite`: docs/torch-suite.md lacks {missing}"
