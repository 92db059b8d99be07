"""One rank as a process. It reads orders from standard input, and answers each with a line.

Usage: rank.py core|array|torch FOLDER RANK SIZE TIMEOUT [PORT]. With SPARE_DESCRIPTORS in the
environment the rank has this many descriptors left when it joins. With TOGETHER all ranks begin to
join at the same time, however long each takes to start. With DIES_AFTER=named a rank of the core
dies as soon as it has published this key. With STORE_PORT ranks of the core meet in the TcpStore of
this port instead of files. A line is a JSON list, a method of Rank and its arguments. The answer is
{"value": ...}, or {"error": type, "text": ..., "peer": ..., "failed": [...]}.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from orders import Rank, answer, answer_of, failure

from hetcomm import _core

LATEST_START = 60.0  # seconds until all ranks of a job have started


class FileStore(_core.Store):
    """A key is a file, which is complete once it has its name."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def set(self, key: str, value: bytes) -> None:
        path = self.folder / key.replace("/", "-")
        incomplete = path.with_name(f"{path.name}.{os.getpid()}")
        incomplete.write_bytes(value)
        incomplete.rename(path)
        if key.split("/")[0] == os.environ.get("DIES_AFTER"):
            os.kill(os.getpid(), signal.SIGKILL)

    def get(self, key: str, timeout: timedelta) -> bytes:
        path = self.folder / key.replace("/", "-")
        deadline = time.monotonic() + timeout.total_seconds()
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody set {key}")
            time.sleep(0.002)
        return path.read_bytes()


class CoreRank(Rank):
    def __init__(self, folder: Path, rank: int, size: int, timeout: float, port: int) -> None:
        self.rank, self.size, self.folder, self.works = rank, size, folder, []
        self.timeout = timeout
        self.groups = {"first": self.join("first", timeout)}
        self.communicator = self.groups["first"]

    def join(self, name: str, timeout: float) -> _core.Communicator:
        return _core.Communicator(self.store(name, timeout), self.rank, self.size, timeout, name)

    def store(self, name: str, timeout: float) -> _core.Store:
        if port := os.environ.get("STORE_PORT"):
            from hetcomm import PrefixStore, TcpStore

            return PrefixStore(TcpStore("127.0.0.1", int(port), timeout), f"{name}/")
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return FileStore(folder)

    def use(self, name: str, timeout: float = 0.0) -> None:
        """Later orders use the group of this name, which is made at its first use."""
        if name not in self.groups:
            self.groups[name] = self.join(name, timeout or self.timeout)
        self.communicator = self.groups[name]

    def reduce(self, dtype: str, op: str) -> int:
        """Reduces a one of each rank. Returns the result."""
        spec = _core.Spec(
            _core.Collective.all_reduce,
            _core.Dtype.__members__[dtype],
            _core.ReduceOp.__members__[op],
            count=1,
            in_place=True,
        )
        data = bytearray([1] + [0] * (spec.dtype.size - 1))
        self.communicator.submit(spec, data, will_wait=True).wait()
        return data[0]

    def prepare(self) -> None:
        """Imports what work() needs."""
        import random_work  # noqa: F401

    def work(self, seed: int, calls: int, *more: Any) -> dict[str, Any]:
        """Random calls, compared with NumPy; see random_work.py."""
        from random_work import work

        return work(self.communicator, seed, calls, *more)

    def submit(self, count: int) -> None:
        spec = _core.Spec(_core.Collective.all_reduce, count=count, in_place=True)
        data = bytearray(4 * count)
        self.works.append(self.communicator.submit(spec, data))

    def submit_many(self, operations: int, count: int) -> None:
        spec = _core.Spec(_core.Collective.all_reduce, count=count, in_place=True)
        data = bytearray(4 * count)
        self.works += [self.communicator.submit(spec, data) for _ in range(operations)]

    def submit_all_to_all(self, count: int, sums: int) -> None:
        """An all_to_all, then so many sums at once. count: bytes for each rank."""
        spec = _core.Spec(_core.Collective.all_to_all, _core.Dtype.uint8, count=count)
        given, taken = bytearray(self.size * count), bytearray(self.size * count)
        self.works.append(self.communicator.submit(spec, given, taken))
        self.submit_many(sums, 1)

    def broadcast_and_barrier(self, root: int, count: int) -> None:
        """The barrier begins before the broadcast is over."""
        kinds = _core.Collective
        spec = _core.Spec(kinds.broadcast, _core.Dtype.uint8, root=root, count=count, in_place=True)
        works = [self.communicator.submit(spec, bytearray(count))]
        works.append(self.communicator.submit(_core.Spec(kinds.barrier, _core.Dtype.uint8), b""))
        for work in works:
            work.wait()

    def outlast_wait(self, seconds: float) -> bool:
        """Whether the newest operation is under way after a wait for the oldest has timed out."""
        try:
            self.works[0].wait(seconds)
        except _core.TimeoutError:
            return not self.works[-1].done()
        return False

    def all_reduce(self, count: int) -> float:
        import array

        spec = _core.Spec(_core.Collective.all_reduce, count=count, in_place=True)
        data = array.array("f", [self.rank + 1.0]) * count
        self.communicator.submit(spec, data, will_wait=True).wait()
        return data[-1]

    def wait_for(self, work: Any, seconds: float) -> None:
        work.wait(seconds)

    def complete(self, work: Any) -> bool:
        return bool(work.done())

    def send(self, to: int, count: int) -> None:
        self.works.append(self.communicator.send(bytearray(count), _core.Dtype.uint8, to))

    def recv(self, from_: int, count: int) -> None:
        self.works.append(self.communicator.recv(bytearray(count), _core.Dtype.uint8, from_))

    def greet(self, count: int = 1) -> None:
        """Exchanges a message of `count` bytes with every other rank, which opens all links."""
        for other in set(range(self.size)) - {self.rank}:
            self.recv(other, count)
            self.send(other, count)
        while self.works:
            self.works.pop().wait()

    def paths(self) -> list[str]:
        others = range(self.size)
        return [self.communicator.path_to(r) if r != self.rank else "" for r in others]

    def networks(self) -> list[tuple[str, str]]:
        """The fabric of each island, and the reason."""
        topology = self.communicator.topology
        found = map(topology.island_network, range(len(topology.islands)))
        return [(network.fabric.name, network.why) for network in found]

    def abort(self) -> None:
        self.communicator.abort("planted")

    def leave(self) -> None:
        self.communicator.leave()

    def cycle(self, first: int, count: int) -> None:
        """Makes, uses and leaves `count` communicators."""
        for number in range(first, first + count):
            communicator = self.join(f"cycle{number}", 60.0)
            data = bytearray(40_000)
            spec = _core.Spec(_core.Collective.all_reduce, count=10_000, in_place=True)
            communicator.submit(spec, data, will_wait=True).wait()
            communicator.leave()


class ArrayRank(Rank):
    def __init__(self, folder: Path, rank: int, size: int, timeout: float, port: int) -> None:
        self.folder, self.rank, self.size, self.timeout = folder, rank, size, timeout
        self.works = []
        self.use("first")

    def use(self, name: str) -> None:
        import hetcomm

        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.communicator = hetcomm.Communicator.from_store(
            FileStore(folder), self.rank, self.size, timeout=self.timeout
        )

    def all_reduce(self, count: int) -> float:
        import numpy

        data = numpy.full(count, self.rank + 1.0, "float32")
        self.communicator.all_reduce(data, data)
        return float(data[-1])

    def submit(self, count: int) -> None:
        import numpy

        data = numpy.zeros(count, "float32")
        self.works.append(self.communicator.all_reduce(data, data, async_op=True))

    def wait_for(self, work: Any, seconds: float) -> None:
        work.wait(seconds)

    def complete(self, work: Any) -> bool:
        return bool(work.done())

    def split(self) -> None:
        self.communicator.split(0)

    def abort(self) -> None:
        self.communicator.abort("planted")

    def leave(self) -> None:
        self.communicator.close()


class TorchRank(Rank):
    def __init__(self, folder: Path, rank: int, size: int, timeout: float, port: int) -> None:
        import torch
        import torch.distributed as dist

        import hetcomm  # noqa: F401

        torch.set_num_threads(1)
        self.torch, self.dist, self.rank, self.works = torch, dist, rank, []
        self.folder, self.size = folder, size
        dist.init_process_group(
            "hetcomm",
            init_method=f"tcp://127.0.0.1:{port}" if port else f"file://{folder}/torch",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )

    def all_reduce(self, count: int) -> float:
        tensor = self.torch.full((count,), self.rank + 1.0)
        self.dist.all_reduce(tensor)
        return float(tensor[-1])

    def submit(self, count: int) -> None:
        self.works.append(self.dist.all_reduce(self.torch.zeros(count), async_op=True))

    def wait_for(self, work: Any, seconds: float) -> None:
        work.wait(timedelta(seconds=seconds))

    def complete(self, work: Any) -> bool:
        return bool(work.is_completed())

    def all_gather_of_two_devices(self) -> None:
        """An invalid call: one tensor on the CPU and one on the device "meta"."""
        backend = self.dist.group.WORLD._get_backend(self.torch.device("cpu"))
        mine = self.torch.ones(16)
        theirs = [self.torch.ones(16, device="meta")] * self.dist.get_world_size()
        backend.allgather([theirs], [mine]).wait()

    def all_reduce_of_cuda(self) -> None:
        """An all_reduce of a tensor that claims to be on a GPU, on a rank of the CPU."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            tensor = self.torch.ones(16, device="cuda")
        backend = self.dist.group.WORLD._get_backend(self.torch.device("cpu"))
        backend.allreduce([tensor]).wait()

    def wait_at_most(self, seconds: float) -> None:
        """Waits for the oldest operation, with torch's type of timeout. Days are given as
        seconds."""
        self.works.pop(0).wait(timedelta(seconds=seconds))

    def use(self, name: str, timeout: float = 30.0) -> None:
        """Replaces the default group, for instance that of the parent of this process."""
        self.dist.destroy_process_group()
        self.dist.init_process_group(
            "hetcomm",
            init_method=f"file://{self.folder}/{name}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=timeout),
        )

    def load_data(self, start: str, epochs: int) -> int:
        from torch.utils.data import DataLoader

        data = DataLoader(
            range(64),
            batch_size=4,
            num_workers=2,
            multiprocessing_context=start,  # type: ignore
        )
        total = 0
        for _ in range(epochs):
            for batch in data:
                self.all_reduce(2)
                total += int(batch.sum())
        return total

    def run_processes(self, start: str, count: int) -> list[int | None]:
        import multiprocessing

        context: Any = multiprocessing.get_context(start)
        processes = [context.Process(target=time.sleep, args=(0.1,)) for _ in range(count)]
        for process in processes:
            process.start()
        self.all_reduce(100_000)
        for process in processes:
            process.join(60)
        return [process.exitcode for process in processes]

    def abort(self) -> None:
        self.dist.distributed_c10d._abort_process_group()

    def leave(self) -> None:
        self.dist.destroy_process_group()

    def cycle(self, first: int, count: int) -> None:
        for _ in range(count):
            group = self.dist.new_group()
            tensor = self.torch.ones(10_000)
            self.dist.all_reduce(tensor, group=group)
            self.dist.destroy_process_group(group)


def wait_for_ranks(folder: Path, rank: int, size: int) -> None:
    """Returns once all ranks are here."""
    (folder / f"started-{rank}").touch()
    deadline = time.monotonic() + LATEST_START
    while not all((folder / f"started-{each}").exists() for each in range(size)):
        if time.monotonic() > deadline:
            raise TimeoutError("not all ranks have started")
        time.sleep(0.002)


def main(kind: str, folder: str, rank: str, size: str, timeout: str, port: str = "0") -> None:
    me: Rank
    if os.environ.get("TOGETHER"):
        wait_for_ranks(Path(folder), int(rank), int(size))
    if spare := os.environ.get("SPARE_DESCRIPTORS"):
        # No descriptor may be left for an import.
        import numpy.random  # noqa: F401
        import random_work  # noqa: F401

        used = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(spare),) * 2)
    kinds: dict[str, Any] = {"core": CoreRank, "array": ArrayRank, "torch": TorchRank}
    try:
        me = kinds[kind](Path(folder), int(rank), int(size), float(timeout), int(port))
        answer(value="joined")
    except Exception as error:
        answer(**failure(error))
        me = Rank()
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        answer(**answer_of(me, method, arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
