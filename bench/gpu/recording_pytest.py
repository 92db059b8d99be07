"""pytest that writes one line of JSON for each test as soon as it has ended:

python -P recording_pytest.py FILE ARGUMENTS...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


class Recorder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        text = report.longrepr
        reason = text[2] if isinstance(text, tuple) else str(text or "")[-1500:]
        row = {"test": report.nodeid, "outcome": report.outcome, "reason": reason}
        with self.path.open("a") as record:
            record.write(json.dumps(row | {"seconds": round(report.duration, 2)}) + "\n")


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[2:], plugins=[Recorder(Path(sys.argv[1]))]))
