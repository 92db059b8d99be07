"""A line for each failure, as soon as the failure is known.

pytest-xdist prints failures at the end of a run. A run that is cut has these lines.
"""

from __future__ import annotations

import pytest

MOST = 400  # characters of a line


class FailureLines:
    """The plugin of the controller of pytest-xdist; without workers it does nothing."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report)

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        plugins = self.config.pluginmanager
        terminal = plugins.getplugin("terminalreporter")
        controls = plugins.hasplugin("dsession")  # of pytest-xdist
        if report.failed and controls and terminal is not None:
            line = f"failed: {report.nodeid} - {_first_line(report)}"[:MOST]
            terminal.write(f"\n{line}\n", flush=True)


def _first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(report.longrepr if crash is None else crash.message).strip().splitlines()
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return next(iter(errors + lines), "")
