"""One job of a study, in the Python of the peer that it is about: job.py SPEC.json RESULT.json."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from hetcomm import Error
from hetcomm.bench import BenchError, Effort, Gap, Page, Settings, launch
from hetcomm.emulate import ClusterError
from studies.model import Layout, Mode


def main(spec: Path, result: Path) -> int:
    signal.signal(signal.SIGTERM, _end)
    told = json.loads(spec.read_text())
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in told["layout"].items()
    }
    layout, mode = Layout(**fields), Mode(**told["mode"])
    legs, gap = len(layout.hosts) > 1, Gap(work=mode.work)
    settings = Settings(
        tuple(told["collectives"]),
        tuple(told["backends"]),
        tuple(told["sizes"]),
        places=(mode.in_place,),
        effort=Effort(told["seconds"], told["calls"], legs=legs, gap=gap),
    )
    page = Page()
    cluster = layout.cluster()
    try:
        if cluster is not None:
            launch.on_cluster(settings, cluster, page.tell)
        elif launch.uses_mpi(settings):
            launch.by_mpiexec(settings, layout.hosts[0], page.tell)
        else:
            launch.on_this_host(settings, layout.hosts[0], page.tell)
    except (BenchError, ClusterError, Error) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        rows = [row.as_json() for row in page.rows]
        for row in rows:
            row["samples"] = len(row["samples"])
        result.write_text(json.dumps({"facts": page.facts, "rows": rows}))
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    """So that what was started is ended too."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
