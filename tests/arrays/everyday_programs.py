"""Programs of array ranks that use the API as programs for MPI and torch do."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from array_checks import refused, same, values

import hetcomm
import hetcomm.objects as objects_of_ranks
from hetcomm import Communicator


def operations_of_mpi(comm: Communicator, seed: int) -> None:
    """mpi4py's operations, and rejected ones."""
    from mpi4py import MPI

    size, rank = comm.size, comm.rank
    mine = [values("int32", (40,), seed, r) for r in range(size)]
    for op, word in [
        (MPI.SUM, "sum"), (MPI.PROD, "product"), (MPI.MIN, "min"), (MPI.MAX, "max"),
        (MPI.BAND, "band"), (MPI.BOR, "bor"), (MPI.BXOR, "bxor"),
    ]:  # fmt: skip
        expected = comm.all_reduce(mine[rank], op=word)
        same(comm.all_reduce(mine[rank], op=op), expected, word)
        same(comm.all_reduce(mine[rank], op=op, async_op=True).wait(), expected, word)
        found = comm.reduce(mine[rank], 1, op=op)
        if rank == 1:
            same(found, expected, word)
        parts = np.concatenate([mine[rank]] * size)
        same(comm.reduce_scatter(parts, op=op), expected, word)
    truth = np.array([rank > 0, True, False])
    same(comm.all_reduce(truth, op=MPI.LAND), [False, True, False], "LAND")
    same(comm.all_reduce(truth, op=MPI.LOR), [size > 1, True, False], "LOR")
    same(comm.all_reduce(truth, op=MPI.LXOR), [size % 2 == 0, size % 2 == 1, False], "LXOR")
    refused(lambda: comm.all_reduce(mine[rank], op=MPI.LAND), "booleans", "int32", "MPI.BAND")
    refused(lambda: comm.all_reduce(mine[rank], op=MPI.MINLOC), '"sum"', "PROD", "MPI's MINLOC")
    own = MPI.Op.Create(lambda a, b, dtype: None)
    refused(lambda: comm.all_reduce(mine[rank], op=own), '"sum"', "the program's own")
    refused(lambda: comm.all_reduce(mine[rank], op={}), '"sum"', '"premul_sum"', "LAND", "{}")  # type: ignore[arg-type]
    same(comm.all_reduce(np.ones(3)), np.full(3, float(size)), seed)


def roots(comm: Communicator, seed: int) -> None:
    """Roots by position or by keyword, with and without `out`."""
    size, rank = comm.size, comm.rank
    mine = [values("float64", (5, 3), seed, r) for r in range(size)]
    total, every = np.sum(mine, 0), np.stack(mine)
    for root in (0, size - 1, np.int64(1)):
        at = rank == root
        x = mine[rank]
        out = np.empty_like(every)
        reductions = [
            comm.reduce(x, root), comm.reduce(x, root=root), comm.reduce(x, out[0].copy(), root),
            comm.reduce(x, root, out[0].copy()), comm.reduce(x, out[0].copy(), root=root),
        ]  # fmt: skip
        gathered = [comm.gather(x, root), comm.gather(x, out, root), comm.gather(x, root, out)]
        for found in reductions:
            assert (found is None) != at
            assert found is None or (found == total).all()
        for found in gathered:
            assert (found is None) != at
            assert found is None or (found == every).all()
        given = every if at else None
        for place in ((np.empty((5, 3)), root), (root, np.empty((5, 3)))):
            same(comm.scatter(given, *place), x, root)
        same(comm.scatter(given, root if at else np.empty((5, 3)), root=None if at else root), x, 0)
        same(comm.broadcast(x.copy(), root), mine[root], root)
    refused(lambda: comm.reduce(x, 0, root=1), "a whole number and an array", "int and int")
    refused(lambda: comm.gather(x, 1.5), "whole number", "float")
    refused(lambda: comm.gather(x, root="0"), "whole number", "str")
    refused(lambda: comm.reduce(x, size), "root from 0", str(size))


def codecs(comm: Communicator, seed: int) -> None:
    """A codec of one call, of a block, and error feedback."""
    size, rank = comm.size, comm.rank
    every = [values("float32", (200, 500), seed, r) for r in range(size)]
    x, total = every[rank], np.sum(every, 0)
    limit = 1.1 * sum(np.abs(each).max() for each in every) / 254
    for found in (
        comm.all_reduce(x, codec="int8"),
        comm.all_reduce(x, codec="int8", async_op=True).wait(),
        comm.all_reduce(x, x.copy(), codec="int8:64"),
    ):
        assert np.abs(found - total).max() <= limit
    same(comm.all_reduce(x, codec="lossless"), comm.all_reduce(x, codec="none"), "lossless")
    rows = np.concatenate([x] * size)
    assert np.abs(comm.reduce_scatter(rows, codec="int8") - total).max() <= limit
    assert np.abs(comm.all_gather(x, codec="int8") - np.stack(every)).max() <= limit
    found = comm.reduce(x, root=size - 1, op="avg", codec="int8")
    if rank == size - 1:
        assert np.abs(found - total / size).max() <= limit
    same(comm.broadcast(x.copy(), 0, codec="lossless"), every[0], "broadcast")
    feedback = hetcomm.Feedback()
    with hetcomm.codec("int4", feedback=feedback, key="x"):
        found = comm.all_reduce(x)
    with hetcomm.codec("int4", feedback=feedback, key="x"):
        comm.all_reduce(x)
    assert np.abs(found - total).max() <= 20 * limit
    assert list(feedback.state_dict()) == ["x/0"]
    assert feedback.bytes() == 4 * x.size
    refused(lambda: comm.all_reduce(x.astype("int32"), codec="int8"), "does not encode int32")
    refused(lambda: comm.all_reduce(x, op="max", codec="int8"), "int8 is lossy", "expected")
    refused(lambda: comm.all_reduce(x, codec="zip"), "unknown codec", "zip")
    with hetcomm.codec("int4", feedback=feedback, key="x"):
        refused(lambda: comm.all_reduce(x[:3]), 'feedback "x/0"', "100000", "1500")


def strides(comm: Communicator, seed: int) -> None:
    """Arrays that are not C-contiguous on some ranks are copied in, and results copied out."""
    size, rank = comm.size, comm.rank
    every = [values("float32", (4, 6), seed, r) for r in range(size)]
    total, x = np.sum(every, 0), every[rank]

    def kinds(a: np.ndarray) -> list[np.ndarray]:
        """The same elements as plain array, by columns, every other word, reversed, rows of a
        longer array."""
        longer = np.repeat(a[..., None], 2, -1)
        turned = a[::-1, ::-1].copy()[::-1, ::-1]
        return [a.copy(), np.asfortranarray(a), longer[..., 0], turned, np.hstack([a, a])[:, :6]]

    for each in range(len(kinds(x))):
        for more in range(3):
            given = kinds(x)[(each + rank) % 5]
            out = kinds(np.zeros((4, 6), np.float32))[(each + more) % 5]
            for asynchronous in (False, True):
                out[...] = -1
                found: Any = comm.all_reduce(given, out, async_op=asynchronous)
                if asynchronous:
                    while not found.done():
                        pass
                    same(out, total, (each, more))  # before any wait
                    found = found.wait()
                assert found is out
                same(out, total, (each, more))
        same(comm.all_reduce(given), total, each)
        inside = kinds(x)[each]
        assert comm.all_reduce(inside, inside) is inside
        same(inside, total, each)
        everyone = kinds(np.zeros((4, 6), np.float32))[each]
        comm.broadcast(everyone if rank else given, 0)
        if rank:
            same(everyone, every[0], each)
        blocks = np.stack([kinds(one)[each] for one in every])
        apart = np.asfortranarray(np.zeros((size, 4, 6), np.float32))
        same(comm.all_gather(given, apart), np.stack(every), each)
        same(comm.all_to_all(np.asfortranarray(blocks), apart, input_split_sizes=[1] * size),
             np.stack([every[rank]] * size), each)  # fmt: skip
        found = comm.gather(given, 0, apart)
        if rank == 0:
            same(apart, np.stack(every), each)
        part = kinds(np.zeros((4, 6), np.float32))[each]
        same(comm.scatter(np.asfortranarray(np.stack(every)) if rank == 0 else None, 0, part), x, 0)
        if rank == 0:
            comm.send(given, 1, tag=each)
        if rank == 1:
            same(comm.recv(part, 0, tag=each), every[0], each)
            same(part, every[0], each)
    # Elements around a strided result keep their values.
    around = np.full((4, 12), 7, np.float32)
    comm.all_reduce(x, around[:, ::2])
    same(around[:, 1::2], np.full((4, 6), 7, np.float32), "around")
    locked = np.zeros((6, 4), np.float32).T
    locked.flags.writeable = False
    refused(lambda: comm.all_reduce(x, locked), "writable")
    shared = np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (4, 6), (4, 4))
    refused(lambda: comm.all_reduce(x, shared), "memory of their own", "(4, 4)")
    halves = np.lib.stride_tricks.as_strided(np.zeros(99, np.float32), (4, 6), (4, 14))
    refused(lambda: comm.all_reduce(x, halves), "memory of their own", "(4, 14)")
    refused(lambda: comm.all_reduce(x, np.zeros((3, 6), np.float32).T), "24 elements", "18")
    same(comm.all_reduce(np.broadcast_to(np.float32(2), (4, 6))),
         np.full((4, 6), 2 * size, np.float32), "read only")  # fmt: skip


def strides_of_torch(comm: Communicator, seed: int) -> None:
    import torch

    every = [torch.from_numpy(values("float32", (4, 6), seed, r)) for r in range(comm.size)]
    total = torch.stack(every).sum(0)
    given = every[comm.rank].t().contiguous().t()
    out = torch.zeros(6, 4).t()
    assert comm.all_reduce(given, out) is out
    assert torch.equal(out, total)
    assert torch.equal(comm.all_reduce(given.bfloat16()), total.bfloat16())
    spin = torch.complex(total, given)
    expected = torch.complex(total * comm.size, -total)
    assert torch.equal(comm.all_reduce(spin.conj()), expected)
    refused(lambda: comm.all_reduce(given, torch.zeros(6).expand(4, 6)), "memory of their own")
    memory = torch.zeros(100)
    cut = memory.as_strided((4, 6), (24, 4), 3)
    memory.untyped_storage().resize_(4 * 95)
    for call in (
        lambda: comm.all_reduce(cut),
        lambda: comm.all_reduce(given, cut),
        lambda: comm.all_reduce(cut, async_op=True),
        lambda: comm.send(cut, (comm.rank + 1) % comm.size),
        lambda: comm.recv(cut, (comm.rank + 1) % comm.size),
    ):
        refused(call, "a storage of at least 384 bytes, got one of 380")


def own_blocks(comm: Communicator, seed: int) -> None:
    """The block of a rank lies in the array of all blocks."""
    size, rank = comm.size, comm.rank
    every = [values("float32", (size, 33), seed, r) for r in range(size)]
    total, root = np.sum(every, axis=0), seed % size
    x = every[rank].copy()
    same(comm.all_gather(x[rank], x), np.stack([every[r][r] for r in range(size)]), "all_gather")
    x = every[rank].copy()
    same(comm.reduce_scatter(x, x[rank : rank + 1]), total[rank : rank + 1], "reduce_scatter")
    same(np.delete(x, rank, 0), np.delete(every[rank], rank, 0), "beside")
    x = every[rank].copy()
    found = comm.gather(x[rank], root, x if rank == root else None)
    if found is not None:
        same(found, np.stack([every[r][r] for r in range(size)]), "gather")
    x = every[rank].copy()
    same(comm.scatter(x if rank == root else None, root, x[rank]), every[root][rank], "scatter")


def sendrecv(comm: Communicator, seed: int) -> None:
    """Around a ring, also of one rank."""
    size, rank = comm.size, comm.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 3, 400_000):  # the last one waits for its receiver
        x = np.full(count, float(rank))
        same(comm.sendrecv(x, after, source=before), np.full(count, float(before)), count)
        out = np.zeros((count, 2))[:, 0]
        assert comm.sendrecv(x, after, out, before, tag=4) is out
        same(out, np.full(count, float(before)), count)
        work = comm.sendrecv(x, after, None, before, tag=1, recv_tag=1, async_op=True)
        same(work.wait(), np.full(count, float(before)), count)
        assert work.done() and work.source() == before
    got = comm.sendrecv(
        np.array([rank]), after, np.empty(1, int), before, tag=rank, recv_tag=before
    )
    same(got, np.array([before]), "tags")
    with comm.split(rank) as alone:
        assert alone is not None
        same(alone.sendrecv(x, 0, source=0), x, "alone")
        same(alone.sendrecv(x, 0, np.empty(count), 0, async_op=True).wait(), x, "alone")
    same(comm.sendrecv(x, rank, source=rank), x, "itself")
    long = np.arange(1000.0)
    for out in (x, x[:], x.view(np.int64)):
        refused(lambda out=out: comm.sendrecv(x, after, out, before), "apart")
    refused(lambda: comm.sendrecv(long[:600], after, long[400:], before), "apart")
    for source in (size, -1, rank):  # nothing is sent, or a rank would get it below
        refused(lambda source=source: comm.sendrecv(x, after, np.empty(count), source), "expected")
    evens = comm.sendrecv(long[1::2], after, long[::2], before)
    same(evens, long[1::2], "odd elements to the even places")
    if rank == 0:
        work = comm.recv(np.empty(1, int), async_op=True)
        assert work.wait()[0] == work.source() == size - 1
    elif rank == size - 1:
        comm.send(np.array([rank]), 0)
    comm.barrier()


class Unknown:
    """A value that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("an open door")


def objects(comm: Communicator, seed: int) -> None:
    """Objects of different sizes from every root, and a value that cannot be pickled."""
    size, rank = comm.size, comm.rank
    every = [{"rank": r, "long": "x" * (r * 70_000), "array": np.arange(r)} for r in range(size)]

    def assert_equal(a: Any, b: Any) -> None:
        assert (a["rank"], a["long"]) == (b["rank"], b["long"])
        same(a["array"], b["array"], a["rank"])

    mine = every[rank]
    for found, expected in zip(comm.all_gather_object(mine), every, strict=True):
        assert_equal(found, expected)
    for root in range(size):
        assert_equal(comm.broadcast_object(mine, root), every[root])
        assert_equal(comm.scatter_object(every if rank == root else None, root), mine)
        gathered = comm.gather_object(mine, root)
        assert (gathered is None) == (rank != root)
        for found, expected in zip(gathered or [], every, strict=rank == root):
            assert_equal(found, expected)
    assert comm.all_to_all_object([(rank, r) for r in range(size)]) == [
        (r, rank) for r in range(size)
    ]
    after, before = (rank + 1) % size, (rank - 1) % size
    sender = threading.Thread(target=comm.send_object, args=(mine, after), kwargs={"tag": 3})
    sender.start()
    assert_equal(comm.recv_object(before, tag=3), every[before])
    sender.join(60)
    if rank == 0:
        assert sorted(comm.recv_object() for _ in range(size - 1)) == list(range(1, size))
    else:
        comm.send_object(rank, 0)

    bad = Unknown() if rank == 1 else None
    words = ("can be pickled", "rank 1", "an open door")
    refused(lambda: comm.all_gather_object(bad), *words)
    refused(lambda: comm.broadcast_object(bad, 1), *words)
    refused(lambda: comm.scatter_object([bad] * size, 1), *words)
    refused(lambda: comm.gather_object(bad, 0), *words)
    refused(lambda: comm.all_to_all_object([None] * (size - 1) + [bad]), *words)
    refused(lambda: comm.scatter_object([1], 0), "rank 0", f"{size} values, got 1")
    refused(lambda: comm.send_object(1, 1 - min(rank, 1), tag=70_000), "65535", "70000")
    if rank == 1:
        refused(lambda: comm.send_object(bad, 0), *words)
    same(comm.all_reduce(np.ones(3)), np.full(3, float(size)), seed)


class Planted:
    """A stranger's pickle, which runs code on whoever reads it."""

    def __reduce__(self) -> Any:
        return (print, ("the stranger's code ran",))


def changed_objects(comm: Communicator, seed: int) -> None:
    """Rank 1 gets other bytes than rank 0 has sent: of a stranger, or of an earlier call."""
    value = {"text": "x" * 500}
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("broadcast_object", lambda: comm.broadcast_object(value, 0)),
        ("scatter_object", lambda: comm.scatter_object([value] * 2 if comm.rank == 0 else None)),
        ("gather_object", lambda: comm.gather_object(value, 1)),
        ("all_gather_object", lambda: comm.all_gather_object(value)),
        ("all_to_all_object", lambda: comm.all_to_all_object([value] * 2)),
        ("recv_object", lambda: comm.recv_object() if comm.rank else comm.send_object(value, 1)),
    ]
    planted = pickle.dumps(Planted())
    # Of the bytes, and of the size's sign, which tells a refusal.
    lies: list[tuple[Callable[[bytes], bytes], int]] = [
        (lambda data: planted, 1),
        (lambda data: hashlib.sha256(planted).digest() + planted, 1),
        (lambda data: data.replace(b"xx", b"yx", 1), 1),
        (lambda data: first[0], 1),
        (bytes, -1),
    ]
    loaded, first, lie, sign = objects_of_ranks._loaded, [], bytes, 1

    def changed(call: Any, data: bytes, size: int, *rest: Any) -> Any:
        first.append(bytes(data))
        other = bytearray(lie(bytes(data)).ljust(len(data), b"\0"))
        return loaded(call, other, sign * size, *rest)

    objects_of_ranks._loaded = changed  # type: ignore[assignment]
    for name, call in calls:
        lie, sign = bytes, 1
        call()  # goes well
        del first[1:]
        for planned in lies:
            lie, sign = planned if comm.rank else (bytes, 1)
            try:
                call()
            except hetcomm.TransportError as error:
                assert comm.rank and name in str(error) and "seal of rank 0" in str(error), error
            else:
                assert not comm.rank, f"rank 1 took other bytes in {name}"
        first.clear()
    print("done")


def refused_strides(comm: Communicator, seed: int) -> None:
    """One rank's result array is unusable, and the other ranks hear of it."""
    locked = np.zeros((6, 4)).T
    locked.flags.writeable = False
    if comm.rank == 0:
        refused(lambda: comm.all_reduce(np.zeros((4, 6)), locked), "writable")
    else:
        try:
            comm.all_reduce(np.zeros((4, 6)), timeout=3.0)
        except hetcomm.Error as error:
            assert "writable" in str(error), error
            print("told")
