"""One rank of a measurement: opens the backends and measures case after case.

As a program, `python -m hetcomm.bench.rank FOLDER`, it reads settings.json in the folder. Rank 0
writes events.jsonl. A failing rank writes error-*.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hetcomm import TcpStore, _core
from hetcomm.bench.backends import Backend, open_backends
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.data import numbers_of
from hetcomm.bench.error import BenchError
from hetcomm.bench.gap import check_clocks
from hetcomm.bench.inputs import Inputs
from hetcomm.bench.measure import measure
from hetcomm.bench.memory import check_memory
from hetcomm.bench.settings import Settings
from hetcomm.bench.values import Array
from hetcomm.demo.machine import describe_machine

EXIT_FAILED, EXIT_INVALID = 1, 2
STORE = "HETCOMM_BENCH_STORE"  # the port of the command's store, for started ranks

Tell = Callable[[dict[str, Any]], None]
Work = Callable[[Settings, ControlChannel, Tell], None]


def run(settings: Settings, control: ControlChannel, tell: Tell) -> None:
    """Calls `tell` with events: "facts" once, "case" before and "rows" after each case. Empty
    events in between are signs of life."""
    cases = settings.cases(control.size)
    check_memory(control, cases)
    data = _read_data(settings, control)
    if settings.effort.gap.seconds:
        check_clocks(control)
    backends = open_backends(settings.backends, control, settings.device)
    tell({"facts": facts(settings, control, backends)})
    for number, case in enumerate(cases):
        tell({"case": case.describe(), "number": number, "of": len(cases)})
        inputs = Inputs(settings.seed + number, data)
        rows = measure(control, backends, case, settings.effort, inputs, lambda: tell({}))
        tell({"rows": [row.as_json() for row in rows]})
    for backend in backends:
        backend.close()
    control.gather(None)
    control.leave()


def _read_data(settings: Settings, control: ControlChannel) -> Array:
    """The numbers of the file, if any. An error on one rank reaches all."""
    found = [None]

    def read() -> None:
        if settings.data:
            found[0] = numbers_of(Path(settings.data))

    control.run_on_all(read)
    return found[0]


def facts(
    settings: Settings, control: ControlChannel, backends: Sequence[Backend]
) -> dict[str, Any]:
    """Machine, hosts, backends and settings of the run. Machine facts are those of this rank."""
    hosts = control.gather(_core.probe_rank().host)
    places = list(dict.fromkeys(hosts))
    return {
        "machine": describe_machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "ranks": control.size,
        "hosts": [places.index(host) for host in hosts],
        "backends": [
            {"name": each.name, "library": each.library, "codec": each.codec} for each in backends
        ],
        "settings": json.loads(settings.to_json()),
    }


def status_of(error: Exception) -> int:
    """2 for a wrong request or a missing requirement, 1 for a failure."""
    return EXIT_INVALID if isinstance(error, _core.InvalidArgumentError) else EXIT_FAILED


def main(folder: Path, work: Work = run) -> int:
    settings = Settings.from_json((folder / "settings.json").read_text())
    control: ControlChannel | None = None
    try:
        control = _open_control(os.environ, settings.timeout)
        with (folder / "events.jsonl").open("a") as events:

            def tell(event: dict[str, Any]) -> None:
                if control is not None and control.rank == 0:
                    events.write(json.dumps(event) + "\n")
                    events.flush()

            work(settings, control, tell)
    except (_core.Error, BenchError) as error:
        status = status_of(error)
        failure = {"error": str(error), "status": status, "time": time.monotonic()}
        (folder / f"error-{os.getpid()}.json").write_text(json.dumps(failure))
        if control is not None:
            control.leave() if control.failure_shared else control.abandon(status)
        return status
    return 0


def _open_control(environment: Mapping[str, str], timeout: float) -> ControlChannel:
    """The channel of ranks that the command or its mpiexec has started."""
    if STORE in environment:
        store = TcpStore("127.0.0.1", int(environment[STORE]), timeout)
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        return ControlChannel(store, rank, size, timeout, "127.0.0.1")
    found = ControlChannel.of_job(environment, timeout)
    if found is None:
        raise BenchError("expected a launcher's variables, found none; run hetcomm bench")
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
