"""Rules for all tests: permitted skips, tests that run alone, samples, one seed, no deadlines."""

from __future__ import annotations

import os
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hostile
import pytest
import sampled
from failure_lines import FailureLines
from parallel import Parallel, scheduler
from skips import Skips
from times import TestTimes

SEED = pytest.StashKey[int]()

if find_spec("hypothesis"):
    import hypothesis

    # A busy machine may stop one example for a second. The timeout of pytest ends a hang.
    hypothesis.settings.register_profile(
        "hetcomm", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("hetcomm")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "take as many cases of each test as the budget pays for, by the seed"
    parser.addoption(sampled.OPTION, action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    # pytest adds this folder to the path, where its folder torch/ would hide an absent torch.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    # Spinning threads take the processors from the tests of other workers.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    given = worker.get("seed") or os.environ.get("HETCOMM_TEST_SEED")
    config.stash[SEED] = int(given or random.SystemRandom().randrange(1, 2**31))
    # Emulated devices do all that real ones may do.
    os.environ.setdefault(hostile.VARIABLE, hostile.mixture(config.stash[SEED]))
    config.pluginmanager.register(Skips(config, Path(__file__).with_name("skips.toml"), worker))
    config.pluginmanager.register(TestTimes(config))
    if config.getoption(sampled.OPTION):
        config.pluginmanager.register(sampled.Sampled(config.stash[SEED]))
    config.pluginmanager.register(Parallel(config) if worker else FailureLines(config))


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [
        f"random inputs: HETCOMM_TEST_SEED={config.stash[SEED]}",
        f"emulated devices: {hostile.VARIABLE}={os.environ[hostile.VARIABLE]}",
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["seed"] = node.config.stash[SEED]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.failed:
        text = f"repeat with {hostile.VARIABLE}={os.environ[hostile.VARIABLE]}"
        report.sections.append(("emulated devices", text))
    if report.failed and "seed" in getattr(item, "fixturenames", ()):
        text = f"repeat with HETCOMM_TEST_SEED={item.config.stash[SEED]}"
        report.sections.append(("seed", text))
    return report


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    return request.config.stash[SEED]
