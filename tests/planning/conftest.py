"""Jobs of ranks, for what runs a layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import Job, jobs


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    return jobs(tmp_path)
