"""PyTorch's own distributed suite, unedited, on one backend: outcomes as JSON on the last line.

The suite skips tests by the backend's name, and compares names. So the backend has one of three
names:

    gloo     where the suite asks torch for gloo it gets the backend under test, and runs all tests
             that gloo's name permits
    its own  as for any plug-in; the suite skips most tests for unknown names
    custom   the same backend, registered under the name that DDP's log gives every plug-in

    python one_backend.py hetcomm 2 gloo [test_all_reduce_sum ...]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

PREFIX = "outcomes: "


class Outcomes(unittest.TextTestResult):
    """The outcome of each test: "passed", "failed" or "skipped", and the reason."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.of: dict[str, tuple[str, str]] = {}

    def _note(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        self.of[test.id().rpartition(".")[2]] = (outcome, why)

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, error: Any) -> None:
        super().addError(test, error)
        self._note(test, "failed", str(error[1])[-1500:])

    addFailure = addError


def load(backend: str, name: str) -> type[unittest.TestCase]:
    """The suite's class, with process groups on `backend`, which it knows as `name`."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed import distributed_test as suite

    if backend != "gloo":
        __import__(backend)
        if name == "gloo":
            _stand_in_for_gloo(suite, backend)
        elif name != backend:
            plugin = dist.Backend._plugins[backend.upper()]
            dist.Backend.register_backend(
                name, plugin.creator_fn, extended_api=plugin.extended_api, devices=["cpu"]
            )

    class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            # Not spawned: each rank would import torch anew, seconds per test.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return Suite


def _stand_in_for_gloo(suite: Any, backend: str) -> None:
    import torch.distributed as dist

    for list_of_backends in (
        suite.PROFILING_SUPPORTED_BACKENDS,
        suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        list_of_backends.append(backend)
    for make in ("init_process_group", "new_group", "new_subgroups_by_enumeration"):
        setattr(dist, make, _in_place_of_gloo(getattr(dist, make), backend))
    dist.monitored_barrier = _monitored_barrier


def _in_place_of_gloo(make: Any, backend: str) -> Any:
    def replaced(*arguments: Any, **settings: Any) -> Any:
        if settings.get("backend") == "gloo":
            settings["backend"] = backend
        return make(*arguments, **settings)

    return replaced


def _monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    """torch's function, without its check of the backend's name."""
    import torch.distributed as dist

    if isinstance(timeout, float):
        timeout = timedelta(seconds=timeout)
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return None
    group = group or dist.group.WORLD
    return group.monitored_barrier(timeout or timedelta(minutes=5), wait_all_ranks=wait_all_ranks)


def main(backend: str, world_size: int, name: str, tests: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir", "init_dir"):
            Path(folder, part).mkdir()
        os.environ |= {
            "BACKEND": name,
            "WORLD_SIZE": str(world_size),
            "TEMP_DIR": folder,
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "100",
        }
        suite = load(backend, name)
        tests = tests or list(unittest.defaultTestLoader.getTestCaseNames(suite))
        chosen = unittest.TestSuite(map(suite, tests))
        outcomes = unittest.TextTestRunner(verbosity=2, resultclass=Outcomes).run(chosen).of
    print(PREFIX + json.dumps(outcomes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
