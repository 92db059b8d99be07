"""Programs of array ranks in which a call is rejected, fails or ends early."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable

import numpy as np
from array_checks import refused, same

import hetcomm
from hetcomm import Communicator


def disagreeing_parts(comm: Communicator, seed: int) -> None:
    """A rank gets other sizes than it expects: every rank's error names both ranks."""
    counts = np.ones((comm.size, comm.size), int)
    mine = counts[comm.rank].copy()
    if comm.rank == 0:
        mine[1] = 5
    try:
        comm.all_to_all(
            np.zeros(mine.sum()), input_split_sizes=mine, output_split_sizes=counts[:, comm.rank]
        )
        comm.barrier()
    except hetcomm.Error as error:
        assert all(word in str(error) for word in ("rank 1", "rank 0", "40 bytes", "8 bytes")), (
            error
        )
    else:
        raise AssertionError("not refused")


def disagreeing_at_last(comm: Communicator, seed: int) -> None:
    """After many equal calls one rank makes another small call. Later calls fail for the same
    reason."""
    op = "max" if comm.rank == comm.size - 1 else "sum"
    for _ in range(2):
        try:
            for turn in range(50):
                same(comm.all_reduce(np.array([turn])), np.array([turn * comm.size]), turn)
            comm.all_reduce(np.array([1]), op=op)
            comm.barrier()
        except hetcomm.Error as error:  # perhaps in the last equal call, which others completed
            assert "ranks disagree" in str(error), error
        else:
            raise AssertionError("not refused")


def bad_input(comm: Communicator, seed: int) -> None:
    """Every rank rejects each input, and the group stays usable."""
    size = comm.size
    x = np.zeros((4, 4), np.float32)
    read_only = np.zeros(4)
    read_only.flags.writeable = False
    refused(lambda: comm.all_reduce(memoryview(x)[::2]), "NumPy", "memoryview")
    refused(lambda: comm.all_reduce(memoryview(x)[::2], x), "C-contiguous", "copy it")
    refused(lambda: comm.all_reduce(x, read_only), "writable")
    refused(lambda: comm.all_reduce(x, op="mean"), '"mean"', "avg")
    refused(lambda: comm.all_reduce(x, np.zeros(16)), "one dtype", "float32", "float64")
    refused(lambda: comm.all_reduce(x, np.zeros(3, np.float32)), "16 elements", "3 in a")
    refused(lambda: comm.all_reduce(x.reshape(16)[:8], x.reshape(16)[4:12]), "overlaps")
    flat = np.zeros(4 * size + 4)
    blocks = flat[: 4 * size].reshape(size, 4)
    refused(lambda: comm.all_gather(flat[1:5], blocks), "the block of rank", "overlaps it")
    refused(lambda: comm.reduce_scatter(flat[: 4 * size], flat[1:5]), "overlaps it")
    if size > 1:
        refused(lambda: comm.all_to_all(blocks, blocks), "apart from the input", "overlaps it")
        refused(lambda: comm.all_to_all(blocks, blocks, [1] * size, [1] * size), "overlaps it")
    refused(lambda: comm.all_reduce(x.astype(">f4")), "byte order")
    refused(lambda: comm.all_reduce(np.array(["a", None], object)), "numbers", "objects")
    record = np.zeros(2, [("number", int), ("text", object)])
    refused(lambda: comm.send(record, (comm.rank + 1) % size), "numbers", "objects")
    refused(lambda: comm.all_to_all(None, x), "an input", "None")
    refused(lambda: comm.all_reduce(None, x), "an input", "None")
    refused(lambda: comm.all_reduce(x[:0], x), "0 elements", "16 in a")
    refused(lambda: comm.broadcast(None), "None")
    refused(lambda: comm.all_reduce([1.0, 2.0]), "NumPy", "list")
    refused(lambda: comm.all_reduce([1.0, 2.0], x), "DLPack", "list")
    refused(lambda: comm.all_reduce(x.astype(complex), op="max"), "complex", "max")
    refused(lambda: comm.all_reduce(x, op="band"), "band", "float32")
    refused(lambda: comm.all_reduce(x, factor=2.0), "factor")
    refused(lambda: comm.broadcast(x, root=size), "root from 0", str(size))
    refused(lambda: comm.reduce_scatter(np.zeros(size + 1)), "equal parts", str(size + 1))
    refused(lambda: comm.all_gather(x, np.zeros((size, 4, 3), np.float32)), str(16 * size))
    refused(lambda: comm.scatter(None), "`out`")
    refused(lambda: comm.send(x, comm.rank), "other than this rank")
    refused(lambda: comm.send(x, size), "expected a rank", str(size))
    refused(lambda: comm.send(x, (comm.rank + 1) % size, tag=70_000), "65535", "70000")
    refused(lambda: comm.recv(x, -1), "None for any")
    refused(lambda: comm.recv(memoryview(np.zeros(4))[::2], 0), "C-contiguous")
    same(comm.all_reduce(np.ones(3)), np.full(3, float(size)), seed)


def refused_by_one(comm: Communicator, seed: int) -> None:
    """The other ranks hear the reason before their timeout, wherever the error was found."""
    x = np.zeros(4)
    calls: list[tuple[str, Callable[[Communicator], object]]] = [
        ("mean", lambda group: group.all_reduce(x, op="mean")),
        ("C-contiguous", lambda group: group.all_reduce(memoryview(np.zeros(8))[::2], x)),
        ("first axis", lambda group: group.reduce_scatter(np.zeros(group.size + 1))),
        ("`out`", lambda group: group.all_gather([1.0])),
        ("timeout: expected", lambda group: group.all_reduce(x, timeout=-1.0)),
        ("factor: expected", lambda group: group.all_reduce(x, factor="two")),
    ]
    groups = [comm.split(0) for _ in calls]
    waiting = []
    for group, (word, call) in zip(groups, calls, strict=True):
        assert group is not None
        if comm.rank == 0:
            refused(functools.partial(call, group), word)
        else:  # a refusal counts shortly before the timeout, and comes within some seconds
            waiting.append((group.all_reduce(np.zeros(4), async_op=True, timeout=10.0), word))
    for number, (work, word) in enumerate(waiting):
        try:
            work.wait()
        except hetcomm.Error as error:
            assert word in str(error), error
            print("told", number)
    comm.barrier()
    for group in groups:
        group.close()


def exits(comm: Communicator, seed: int) -> None:
    """A rank may exit after its part, while other ranks still work."""
    with comm:
        if comm.rank == 0:
            comm.send(np.ones(3), 1)
            sys.exit(0)
        if comm.rank == 1:
            same(comm.recv(np.empty(3), 0), np.ones(3), seed)
        if comm.rank > 0:
            rest = np.ones(2)
            (comm.send if comm.rank == 1 else comm.recv)(rest, 3 - comm.rank)
    print("in order")


def interrupted(comm: Communicator, seed: int) -> None:
    """Ctrl-C ends a wait, and the other ranks hear of it."""
    # Background jobs of a shell ignore SIGINT, and their children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with comm:
            if comm.rank == 0:
                threading.Timer(1, signal.raise_signal, [signal.SIGINT]).start()
                comm.recv(np.empty(1), 1)
            else:
                comm.barrier()
    except (KeyboardInterrupt, hetcomm.AbortedError) as error:
        print(type(error).__name__, error)


def interrupted_while_it_fails(comm: Communicator, seed: int) -> None:
    """The operation fails right after Ctrl-C, as if another rank had ended by it: an interrupt
    wins."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)
        comm.abort("planted")  # long before the wait looks for signals again

    if comm.rank == 0:
        threading.Timer(0.5, interrupt).start()
    first, failure = "nothing", hetcomm.Error
    try:
        try:
            comm.recv(np.empty(1), 1 - comm.rank)
        except failure:  # through code in which no signal handler runs before
            first = "failure"
            raise
    except KeyboardInterrupt:
        print("interrupted", first, flush=True)
    except failure:
        print("failed", first, flush=True)
    os._exit(0)


def interrupted_in_a_store(comm: Communicator, seed: int) -> None:
    """Ctrl-C during the wait for other ranks in a store written in Python."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if comm.rank == 0:
        threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
        try:
            Communicator(comm._store, 0, comm.size + 1, name="more", timeout=20.0)
        except KeyboardInterrupt:
            print("interrupted")
        except hetcomm.Error as error:
            print("swallowed", error)
    comm.barrier()


def set_up_fails(comm: Communicator, seed: int) -> None:
    """Other ranks hear the reason, though the rank that serves the store ends at once."""
    if comm.rank == 1:
        os.environ["HETCOMM_SELECT"] = "all_reduce=ring"
    try:
        Communicator.from_env(timeout=20)
    except hetcomm.Error as error:
        assert "selection table" in str(error), error
        print("heard", flush=True)
    os._exit(0)


def one_leaves_with_an_error(comm: Communicator, seed: int) -> None:
    """An exception ends the `with` of one rank, and the other ranks hear of it."""
    try:
        with comm:
            if comm.rank == 0:
                raise RuntimeError("lost the data")
            comm.all_reduce(np.ones(3))
    except hetcomm.Error as error:
        assert "lost the data" in str(error), error
        print("heard", type(error).__name__)
    except RuntimeError as error:
        print("raised", error)


def dies_before_split(comm: Communicator, seed: int) -> None:
    if comm.rank == 1:
        os._exit(0)
    try:
        comm.split(0)
    except hetcomm.PeerFailedError as error:
        print(error)


def missing_rank(comm: Communicator, seed: int) -> None:
    """A group of one rank more than there are."""
    try:
        Communicator(comm._store, comm.rank, comm.size + 1, name="more", timeout=8.0)
    except hetcomm.TimeoutError as error:
        print(error)
