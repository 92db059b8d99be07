"""How tests share the workers of pytest-xdist."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from times import STORED, costs, function_of


class Parallel:
    """The plugin of one worker; without workers it does nothing.

    Tests marked `alone` measure time: they run while no other test runs on any worker. All other
    tests share a lock among workers. A test marked `alone` takes this lock exclusively. A test that
    waits for the lock holds a gate, at which later tests wait, so that a test marked `alone` gets
    its turn.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.folder = config.rootpath / "build"
        self.seconds = costs(config.rootpath / STORED)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
        self.folder.mkdir(exist_ok=True)
        with ExitStack() as stack:
            lock = stack.enter_context((self.folder / "tests.lock").open("a+"))
            with (self.folder / "tests.gate").open("a+") as gate:
                fcntl.lockf(gate, fcntl.LOCK_EX)  # children do not inherit the lock, unlike flock's
                fcntl.lockf(lock, kind)
            return (yield)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sorts costly tests first, so that no worker has one left at the end. Cheap tests follow,
        then tests that run alone: at that time few tests of other workers still run."""

        def turn(item: pytest.Item) -> tuple[bool, float]:
            alone = item.get_closest_marker("alone") is not None
            return alone, -self.seconds.get(function_of(item.nodeid), 0.0)

        items.sort(key=turn)


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives every worker the next test; modules that make a fixture once stay on one worker."""
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def stays(module: str) -> bool:
        return 'scope="module"' in (config.rootpath / module).read_text()

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.split("::")[0]
            return module if stays(module) else nodeid

    return Scheduling(config, log)
