"""The command `hetcomm` with two more backends: on rank 1 one gives wrong results, the other
ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from hetcomm import cli
from hetcomm.bench import launch, rank
from hetcomm.bench.backends import FAMILIES, Backend, Operation
from hetcomm.bench.case import Case
from hetcomm.bench.control import ControlChannel
from hetcomm.bench.hetcomm_backend import HetcommBackend


class LyingBackend(Backend):
    def __init__(self, name: str, which: str, control: ControlChannel, device: str) -> None:
        super().__init__(name, "liar 1")
        self._true, self._rank = HetcommBackend(name, which, control, device), control.rank

    def prepare(self, case: Case, given: Any, got: Any) -> Operation:
        operation = self._true.prepare(case, given, got)

        def call() -> None:
            operation.call()
            if self._rank == 1 and len(got) > 7:
                got[7] += 0.01

        return Operation(call)

    def barrier(self) -> None:
        self._true.barrier()

    def close(self) -> None:
        self._true.close()


class EndingBackend(LyingBackend):
    def prepare(self, case: Case, given: Any, got: Any) -> Operation:
        def call() -> None:
            if self._rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self._true.barrier()

        return Operation(call)


FAMILIES["ends"] = (f"{__name__}:EndingBackend", "numpy")
FAMILIES["liar"] = (f"{__name__}:LyingBackend", "numpy")

if __name__ == "__main__":
    if sys.argv[1] == "--as-rank":
        sys.exit(rank.main(Path(sys.argv[2])))
    program = [sys.executable, "-P", __file__, "--as-rank"]
    launch.Folder.command = lambda self: [*program, str(self.path)]  # type: ignore[method-assign]
    del sys.argv[0]
    sys.argv.insert(0, "bench")
    sys.argv.insert(0, "hetcomm")
    cli.main()
