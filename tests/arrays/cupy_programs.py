"""Programs with CuPy arrays in the array API: streams, the memory pool, views and interfaces.

A rank of a real GPU runs CuPy, a rank of an emulated one its look-alike, a rank of the CPU NumPy.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
from array_checks import refused

import hetcomm
from hetcomm import Communicator, _core

COUNT, LATE = 100_003, 0.05  # elements, and seconds by which a stream fills its arrays late


class Rank:
    """The arrays and streams of one rank."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        vendor = os.environ.get("HETCOMM_VENDOR") or "nvidia"
        self.cupy: Any = None
        if vendor == "cpu":
            return
        device = _core.Device.open(vendor, int(os.environ["HETCOMM_DEVICE"]))
        if device.emulated:
            import lookalike_cupy as cupy
        else:
            import cupy
        self.cupy = cupy
        cupy.cuda.Device(device.index).use()

    def stream(self) -> Any:
        return self.cupy.cuda.Stream(non_blocking=True) if self.cupy else nullcontext()

    def late(self, value: float, count: int = COUNT) -> Any:
        """An array that the current stream fills later."""
        if not self.cupy:
            return np.full(count, value, np.float32)
        made = self.cupy.empty(count, np.float32)
        stream = self.cupy.cuda.get_current_stream()
        stream.launch_host_func(lambda _: time.sleep(LATE * (1 + self.rank)), None)
        made.fill(value)
        return made

    def check(self, array: Any, expected: float, what: str) -> None:
        """The current stream reads the array."""
        found = array.get() if hasattr(array, "get") else array
        assert (found == expected).all(), f"{what}: expected {expected}, got {found}"

    def sum(self, add: float = 0) -> float:
        return sum(rank + 1 + add for rank in range(self.size))


class Interface:
    """An array with the CUDA array interface alone, as Numba and PyCUDA have. `stream`: the stream
    that it names; -1 is the current one of CuPy at the time of the making."""

    def __init__(self, array: Any, stream: int | None = -1, **entries: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        given = dict(array.__cuda_array_interface__)
        if stream != -1:
            given["stream"] = stream
        self.__cuda_array_interface__ = given | entries


def current_streams(it: Rank, comm: Communicator) -> None:
    """Calls follow the current stream: one that waits for no other, the default one, and the
    thread's own default one."""
    own = it.cupy.cuda.Stream if it.cupy else None
    streams = [it.stream(), own.null if own else nullcontext(), own.ptds if own else nullcontext()]
    for number, stream in enumerate(streams):
        with stream:
            out = comm.all_reduce(it.late(it.rank + 1 + number))
            it.check(out, it.sum(number), f"stream {number}")


def other_streams(it: Rank, comm: Communicator) -> None:
    """A call in another stream than the current one waits for the work that fills the arrays."""
    filling, calling = it.stream(), it.stream()
    with filling:
        array = it.late(it.rank + 1)
        out = it.late(-1)  # late, too: the result must not be overwritten
        comm.all_reduce(array, out, stream=calling if it.cupy else None)
    with calling:
        it.check(out, it.sum(), "another stream")


def streams_of_threads(it: Rank, comm: Communicator) -> None:
    """Each thread has a current stream of its own."""
    halves = [comm.split(0), comm.split(0)]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            if it.cupy:
                it.cupy.cuda.Device(int(os.environ["HETCOMM_DEVICE"])).use()
            with it.stream():
                array = it.late(it.rank + 1 + number)
                it.check(halves[number].all_reduce(array), it.sum(number), f"thread {number}")
        except BaseException as error:
            failures.append(error)

    for number in (0, 1):  # one after the other: see docs/devices.md on groups of several threads
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    for half in halves:
        half.close()
    if failures:
        raise failures[0]


def freed_arrays(it: Rank, comm: Communicator) -> None:
    """The pool gets no memory of an operation that is under way."""
    with it.stream():
        for call in range(10):
            work = comm.all_reduce(it.late(it.rank + 1 + call), async_op=True)
            junk = [it.late(-7) for _ in range(3)] if it.cupy else []
            it.check(work.wait(), it.sum(call), f"call {call}")
            del junk, work
        for call in range(5):  # the result is dropped as well, before anybody has waited
            comm.all_gather(it.late(it.rank + 1), async_op=True)
            it.check(comm.all_reduce(it.late(it.rank + 1)), it.sum(), f"call {call} after dropping")


def views(it: Rank, comm: Communicator) -> None:
    """Contiguous parts of arrays are used in place. Other views are refused, on this rank alone."""
    with it.stream():
        whole = it.late(it.rank + 1, 3 * COUNT)
        comm.all_reduce(whole[COUNT : 2 * COUNT], whole[COUNT : 2 * COUNT])
        it.check(whole[:COUNT], it.rank + 1, "the part before")
        it.check(whole[COUNT : 2 * COUNT], it.sum(), "the part")
        it.check(whole[2 * COUNT :], it.rank + 1, "the part after")
        nothing = it.late(0, 0)
        assert comm.all_reduce(nothing).shape == (0,)
        assert comm.all_gather(nothing).shape == (it.size, 0)
        if it.cupy:
            alone = hetcomm.Communicator(
                _core.LocalStore(), 0, 1, timeout=30,
                device=f"{os.environ['HETCOMM_VENDOR'] or 'nvidia'}:{os.environ['HETCOMM_DEVICE']}",
            )  # fmt: skip
            square = it.cupy.full((4, 6), 2, np.float32)
            for strided in (square.T, square[:, ::2], square[::-1]):
                refused(lambda array=strided: alone.all_reduce(array), "C-contiguous", "copy it")
            alone.close()


def managed_memory(it: Rank, comm: Communicator) -> None:
    """Memory that moves between host and device; a real CuPy has it."""
    with it.stream():
        array = it.late(it.rank + 1)
        if hasattr(getattr(it.cupy, "cuda", None), "malloc_managed"):
            memory = it.cupy.cuda.malloc_managed(4 * COUNT)
            array = it.cupy.ndarray(COUNT, np.float32, memory)
            array.fill(it.rank + 1)
        it.check(comm.all_reduce(array), it.sum(), "managed memory")
        comm.all_reduce(array, array)
        it.check(array, it.sum(), "managed memory in place")


def interfaces(it: Rank, comm: Communicator) -> None:
    """Arrays with the CUDA array interface alone: calls honour the stream that they name."""
    if not it.cupy or os.environ.get("HETCOMM_VENDOR") == "amd":
        for _ in range(3):
            comm.all_reduce(it.late(it.rank + 1))
        return
    filling, calling = it.stream(), it.stream()
    for stream in (None, calling):  # the stream of the array, and another one
        with filling:
            array, out = Interface(it.late(it.rank + 1)), Interface(it.late(-1))
        assert comm.all_reduce(array, out, stream=stream) is out
        with stream or filling:
            it.check(out.array, it.sum(), f"interface, {stream}")
    with it.stream():  # without a stream the array is filled already
        filled = it.late(it.rank + 1)
        it.check(filled, it.rank + 1, "filled")
        unnamed = Interface(filled, None)
        work = comm.all_reduce(unnamed, unnamed, async_op=True)
        work.wait(60)
        it.check(filled, it.sum(), "no stream")


def bad_interfaces(it: Rank, comm: Communicator) -> None:
    if not it.cupy or os.environ.get("HETCOMM_VENDOR") == "amd":
        return
    alone = hetcomm.Communicator(
        _core.LocalStore(), 0, 1, timeout=30, device=f"nvidia:{os.environ['HETCOMM_DEVICE']}"
    )
    array = it.cupy.full((4, 6), 2, np.float32)
    for words, given in {
        ("stream other than 0", "default stream 1"): Interface(array, 0),
        ("masked",): Interface(array, mask=Interface(array)),
        ("version 3", "got 4"): Interface(array, version=4),
        ("writable",): Interface(array, data=(array.data.ptr, True)),
        ("C-contiguous",): Interface(array.T),
        ("byte order", ">f4"): Interface(array, typestr=">f4"),
        ("whole bytes", "|O8"): Interface(array, typestr="|O8"),
        ("shape, typestr, data and version",): Interface(array, data=None),
    }.items():
        refused(lambda given=given: alone.broadcast(given, 0), *words)
    refused(lambda: alone.all_reduce(array, stream="default"), "stream", "got a str")
    alone.close()


PROGRAMS = (
    current_streams, other_streams, streams_of_threads, freed_arrays, views, managed_memory,
    interfaces, bad_interfaces,
)  # fmt: skip


def arrays_of_cupy(comm: Communicator, seed: int) -> None:
    it = Rank(comm)
    for program in PROGRAMS:
        try:
            program(it, comm)
        except BaseException as error:
            error.add_note(f"in {program.__name__}")
            raise
        comm.barrier()
    print("right")
