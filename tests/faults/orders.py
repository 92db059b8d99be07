"""Orders for every kind of rank, and the answers of a rank."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any


def answer(**content: Any) -> None:
    print(json.dumps(content), flush=True)


def failure(error: Exception) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "text": str(error),
        "peer": getattr(error, "peer", None),
        "failed": list(getattr(error, "failed_ranks", ())),
    }


def answer_of(rank: Rank, method: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        return {"value": getattr(rank, method)(*arguments)}
    except Exception as error:
        return failure(error)


class Rank:
    """The methods are the orders. A kind of rank adds the orders that need its group."""

    rank: int
    works: list[Any]
    secret: Any
    submitting: threading.Thread | None = None

    def exit(self) -> None:
        answer(value="exiting")
        sys.exit(0)

    def keep_secret(self) -> int:
        """The address of 8 bytes, which no call of hetcomm ever gets."""
        self.secret = ctypes.create_string_buffer(b"untaken!", 8)
        return ctypes.addressof(self.secret)

    def tell_secret(self) -> str:
        return self.secret.raw.decode("latin")

    def turn(self, count: int) -> None:
        """Repeats all_reduce until one fails. Answers after the first three."""
        for turn in range(1 << 62):
            self.all_reduce(count)
            if turn == 2:
                answer(value="turning")

    def turn_until_the_end(self, count: int) -> None:
        """Repeats all_reduce in the background while this process ends, whatever comes of it."""
        turned = threading.Event()

        def turn() -> None:
            while True:
                with suppress(Exception):
                    self.all_reduce(count)
                turned.set()

        threading.Thread(target=turn, daemon=True).start()
        turned.wait()

    def keep_interpreter(self, seconds: int) -> None:
        """No thread of Python's runs meanwhile."""
        ctypes.PyDLL(None).sleep(seconds)

    def all_reduce_or_end(self, count: int, end: str) -> float:
        """On an error this process ends at once, without handlers of the interpreter."""
        try:
            return self.all_reduce(count)
        except Exception as error:
            os.write(1, (json.dumps(failure(error)) + "\n").encode())
            if end == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)

    def abort_and_end(self) -> None:
        self.abort()
        os._exit(3)

    def fork(self) -> None:
        """Leaves a child that runs until the test closes the pipe to this process."""
        if os.fork() == 0:
            os.close(1)
            os.close(2)
            closed = select.poll()
            closed.register(0, 0)  # the parent reads the orders, not the child
            closed.poll()
            os._exit(0)

    def in_child(self, calls: list[list[Any]]) -> dict[str, Any]:
        """The results of calls in a child of fork(), and its status. The child ends as programs
        do."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            answers = [answer_of(self, method, arguments) for method, *arguments in calls]
            os.write(writing, json.dumps(answers).encode())
            sys.exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            told = pipe.read()
        return {"answers": json.loads(told or "[]"), "status": os.waitpid(child, 0)[1]}

    def reduce_and_fork(self, turns: int, children: int) -> list[int]:
        """all_reduces in a thread, while children try calls. Each child must get its errors at
        once."""
        busy = threading.Thread(
            target=lambda: [self.all_reduce(10 + 1000 * (turn % 50)) for turn in range(turns)]
        )
        busy.start()
        statuses = []
        for number in range(children):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                answers = [answer_of(self, method, [2]) for method in ("all_reduce", "submit")]
                refused = all(answer.get("error") == "InvalidArgumentError" for answer in answers)
                # As a program ends, and as a child without its parent's exit handlers.
                end = sys.exit if number % 2 else os._exit
                end(0 if refused else 1)
            statuses.append(os.waitpid(child, 0)[1])
        busy.join()
        return statuses

    def turn_late(self, late: int, seconds: float) -> None:
        """Repeats all_reduce in the background. Rank `late` makes each call so much later."""
        import logging

        logging.basicConfig()

        def turn() -> None:
            while True:
                if self.rank == late:
                    time.sleep(seconds)
                self.all_reduce(16)

        threading.Thread(target=turn, daemon=True).start()

    def write_metrics(self, path: str) -> None:
        import hetcomm

        Path(path).write_text(hetcomm.metrics())

    def clock(self) -> float:
        return time.monotonic()

    def starve(self, count: int) -> None:
        """See no_memory.cc."""
        ctypes.CDLL(None).fail_allocations(count)

    def submit_and_hold(self, operations: int, count: int, seconds: int) -> float:
        """Submits operations without a wait, and keeps the interpreter's lock in C code. Returns
        the end."""
        for _ in range(operations):
            self.submit(count)
        self.works.clear()
        ctypes.PyDLL(None).sleep(seconds)
        return time.monotonic()

    def submit_in_thread(self, count: int) -> None:
        """Returns once the operation is known, however long the submission takes."""
        self.submitting = threading.Thread(target=self.submit, args=(count,))
        self.submitting.start()
        self.submitting.join(1.0)

    def submits(self) -> bool:
        return self.submitting is not None and self.submitting.is_alive()

    def wait(self, seconds: float) -> None:
        """Waits for the oldest operation. An incomplete operation stays the oldest."""
        if self.submitting:
            self.submitting.join(seconds)
        work = self.works[0]
        try:
            self.wait_for(work, seconds)
        finally:
            if self.complete(work):
                self.works.remove(work)

    # Each kind of rank implements these by itself.

    def wait_for(self, work: Any, seconds: float) -> None:
        raise NotImplementedError

    def complete(self, work: Any) -> bool:
        raise NotImplementedError

    def all_reduce(self, count: int) -> float:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def limit_descriptors(self, most: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

    def hoard_descriptors(self) -> int:
        """Takes all descriptors that this process may have."""
        self.limit_descriptors(256)
        self.hoard: list[int] = []
        while True:
            try:
                self.hoard.append(os.dup(2))
            except OSError:
                return len(self.hoard)

    def release_descriptors(self) -> None:
        for descriptor in self.hoard:
            os.close(descriptor)

    def resources(self) -> dict[str, int]:
        """Resources of this process: descriptors (sockets among them), threads, shared memory."""
        held = []
        for descriptor in Path("/proc/self/fd").iterdir():
            try:
                held.append(os.readlink(descriptor))
            except FileNotFoundError:  # the descriptor of the listing
                continue
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {
            "descriptors": len(held),
            "sockets": sum(name.startswith("socket:") for name in held),
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "files in /dev/shm": len(list(Path("/dev/shm").glob("hetcomm-*"))),
            "maps of islands": sum("/memfd:hetcomm-island" in line for line in maps),
        }
