"""Ranks of a benchmark as processes of its own program, on this machine and its one GPU."""

from __future__ import annotations

import argparse
import atexit
import ctypes
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import Report

from hetcomm import _core
from hetcomm.emulate import vendors

GRACE = 10.0  # seconds for other ranks to end after a failure


@dataclass(frozen=True)
class Rank:
    """The memory, pretended host and island of a rank, and what else its environment has."""

    on_gpu: bool
    host: str = "a"
    island: str = ""  # empty: hetcomm's choice
    direct: bool = True  # messages need not be staged
    settings: Mapping[str, str] = field(default_factory=dict)

    def environment(self, index: int, size: int, folder: Path, emulated: bool) -> dict[str, str]:
        unique = f"{os.getpid()}-{folder.name}"
        found = {
            "RANK": str(index),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "RANK_FOLDER": str(folder),
            "PYTHONFAULTHANDLER": "1",
            "HETCOMM_DEVICE": "0",
            "HETCOMM_VENDOR": "nvidia" if self.on_gpu else "cpu",
            "HETCOMM_HOST_ID": f"{unique}-{self.host}",
            "HETCOMM_SOCKET_IFNAME": "lo",
            # NCCL refuses two ranks on one GPU unless it takes them to be on different hosts.
            "NCCL_HOSTID": f"{unique}-{index}",
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // size)),
        }
        if not self.direct:
            found["HETCOMM_DIRECT"] = "0"
        elif emulated:
            found["HETCOMM_EMULATED_DIRECT"] = "1"
        if self.island:
            found["HETCOMM_ISLAND"] = self.island
        if emulated:
            found |= vendors.library_environment("nvidia")
        return found | dict(self.settings)


def is_rank() -> bool:
    """Whether this process was started by launch()."""
    return "RANK_FOLDER" in os.environ


def place() -> tuple[int, int, Path]:
    """This rank, the number of ranks, and their common folder."""
    variables = os.environ
    return int(variables["RANK"]), int(variables["WORLD_SIZE"]), Path(variables["RANK_FOLDER"])


def on_gpu() -> bool:
    return os.environ["HETCOMM_VENDOR"] != "cpu"


def give(result: Any) -> None:
    """Leaves this rank's result to launch()."""
    rank, _, folder = place()
    (folder / f"rank{rank}.json").write_text(json.dumps(result))


class Forked:
    """A copy of this process that runs one function; with the methods of subprocess.Popen used
    here. It saves the seconds that a new process takes to import torch."""

    def __init__(self, main: Callable[[], None], environment: Mapping[str, str], log: int) -> None:
        self.code: int | None = None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(main, environment, log)

    def _run(self, main: Callable[[], None], environment: Mapping[str, str], log: int) -> None:
        code = 1
        try:
            os.environ.update(environment)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.enable()
            main()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def wait(self, timeout: float = GRACE) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked rank", timeout)
            time.sleep(0.01)
        assert self.code is not None
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def launch(
    ranks: Sequence[Rank],
    folder: Path,
    bound: float,
    emulated: bool,
    main: Callable[[], None] | None = None,
) -> list[Any]:
    """Runs this program, with its arguments, as all ranks; with `main`, that function in copies of
    this process, which has opened no device. Returns each rank's result.

    Raises RuntimeError with the ends of the logs if a rank fails or takes too long. Stuck ranks
    write their stacks.
    """
    folder.mkdir(parents=True)
    processes: list[Forked | subprocess.Popen] = []
    for index, rank in enumerate(ranks):
        with (folder / f"rank{index}.log").open("w") as log:
            environment = rank.environment(index, len(ranks), folder, emulated)
            if main is not None:
                processes.append(Forked(main, environment, log.fileno()))
                continue
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-u", *sys.argv],
                    env=os.environ | environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    end = time.monotonic() + bound
    while any(process.poll() is None for process in processes) and time.monotonic() < end:
        if any(process.poll() for process in processes):
            end = min(end, time.monotonic() + GRACE)
        time.sleep(0.02)
    codes = [process.poll() for process in processes]
    stuck = [process for process in processes if process.poll() is None]
    for process in stuck:
        process.send_signal(signal.SIGABRT)  # writes its stacks
    for process in stuck:
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)
        process.kill()
        process.wait()
    if any(code != 0 for code in codes):
        texts = []
        for index, code in enumerate(codes):
            state = f"did not end within {bound:.0f} s" if code is None else f"ended with {code}"
            written = (folder / f"rank{index}.log").read_text(errors="replace")
            texts.append(f"rank {index} {state}:\n{written[-1500:]}")
        raise RuntimeError("\n".join(texts))
    return [json.loads((folder / f"rank{index}.json").read_text()) for index in range(len(ranks))]


def try_launch(
    report: Report,
    case: str,
    ranks: Sequence[Rank],
    options: argparse.Namespace,
    share: float = 1.0,
    remedy: str = "",
    main: Callable[[], None] | None = None,
) -> list[Any] | None:
    """The results of a case by rank; None after a failure, which goes into the report.

    share: of the time that this part may take. remedy: what to do after a failure. main: see
    launch().
    """
    folder = options.folder / re.sub(r"\W+", "-", case)
    try:
        return launch(ranks, folder, share * options.bound, options.emulated, main)
    except RuntimeError as error:
        report.failure(f"{case}: {error}", remedy)
        return None


class FolderStore(_core.Store):
    """A store for ranks of one machine, without torch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", "_")

    def set(self, key: str, value: bytes) -> None:
        part = self._path(f"{key}.{os.getpid()}")
        part.write_bytes(value)
        part.rename(self._path(key))

    def get(self, key: str, timeout: Any) -> bytes:
        end = time.monotonic() + timeout.total_seconds()
        while not self._path(key).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"{key} did not come")
            time.sleep(0.001)
        return self._path(key).read_bytes()


def view(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """Memory at an address, for calls that take buffers; Python must not read a device's."""
    return (ctypes.c_char * size).from_address(address)
