"""One job of a study, in the Python of its peer: job.py SPEC.json RESULT.json."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from hetcomm import Error
from hetcomm.bench import BenchError, Effort, Gap, Page, Settings, launch
from hetcomm.emulate import ClusterError
from studies.model import Layout, Mode


def measure(settings: Settings, layout: Layout, page: Page) -> int:
    """Runs the ranks of a layout. Returns the exit status, and prints why it is not 0."""
    try:
        launch.start(settings, layout.cluster() or layout.hosts[0], page.tell)
    except (BenchError, ClusterError, Error) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def main(spec: Path, result: Path) -> int:
    # SystemExit also ends the started ranks.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    fields = json.loads(spec.read_text())
    layout, mode = Layout.of(fields["layout"]), Mode(**fields["mode"])
    legs, gap = len(layout.hosts) > 1, Gap(work=mode.work)
    settings = Settings(
        tuple(fields["collectives"]),
        tuple(fields["backends"]),
        tuple(fields["sizes"]),
        places=(mode.in_place,),
        effort=Effort(fields["seconds"], fields["calls"], legs=legs, gap=gap),
    )
    page = Page()
    try:
        return measure(settings, layout, page)
    finally:
        rows = [row.as_json() for row in page.rows]
        for row in rows:
            row["samples"] = len(row["samples"])
        result.write_text(json.dumps({"facts": page.facts, "rows": rows}))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
