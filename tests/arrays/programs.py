"""Programs of array ranks. Each rank checks its own results against NumPy."""

from __future__ import annotations

import sys
import threading
from typing import Any

import cupy_programs
import everyday_programs
import failing_programs
import numpy as np
import vendor_programs
from array_checks import DTYPES, OPERATIONS, legal, reduced, refused, same, values

from hetcomm import Communicator


def collectives(comm: Communicator, seed: int) -> None:
    """Every collective, dtype and operation on odd shapes, with and without `out`."""
    size, rank = comm.size, comm.rank
    random = np.random.default_rng(seed)
    for dtype in DTYPES:
        for op in OPERATIONS:
            if not legal(dtype, op):
                continue
            shape = (int(random.integers(0, 40)), 3)
            root = int(random.integers(size))
            key = (seed, *dtype.encode(), *op.encode())
            mine = [values(dtype, shape, *key, r) for r in range(size)]
            total = reduced(op, mine)
            where = (dtype, op, shape, root, seed)
            same(comm.all_reduce(mine[rank], op=op), total, where)
            inside = mine[rank].copy()
            # Each rank by itself decides which calls are in place.
            out = inside if rank % 2 else np.empty_like(inside)
            assert comm.all_reduce(inside, out, op=op) is out
            same(out, total, where)
            found = comm.reduce(mine[rank], root=root, op=op)
            assert (found is None) == (rank != root)
            if found is not None:
                same(found, total, where)
            parts = [values(dtype, (size * shape[0], 2), *key, r, 1) for r in range(size)]
            cut = slice(rank * shape[0], (rank + 1) * shape[0])
            same(comm.reduce_scatter(parts[rank], op=op), reduced(op, parts)[cut], where)
        mine = [values(dtype, (5, 7), seed, r, 2) for r in range(size)]
        same(comm.all_gather(mine[rank]), np.stack(mine), dtype)
        same(comm.broadcast(mine[rank].copy(), root=root), mine[root], dtype)
        found = comm.gather(mine[rank], root=root)
        if rank == root:
            same(found, np.stack(mine), dtype)
        whole = np.stack(mine)
        given = whole if rank == root else None
        same(comm.scatter(given, np.empty_like(whole[0]), root=root), whole[rank], dtype)
        blocks = [values(dtype, (size, 3), seed, r, 3) for r in range(size)]
        same(comm.all_to_all(blocks[rank]), np.stack([b[rank] for b in blocks]), dtype)
        comm.barrier()


def scales(comm: Communicator, seed: int) -> None:
    for dtype in ("float32", "complex64"):
        mine = [values(dtype, (64,), seed, r) for r in range(comm.size)]
        average = comm.all_reduce(mine[comm.rank], op="avg")
        np.testing.assert_allclose(average, sum(mine) / comm.size, rtol=1e-6)
        scaled = comm.all_reduce(mine[comm.rank], op="premul_sum", factor=0.5)
        np.testing.assert_allclose(scaled, sum(mine) * 0.5, rtol=1e-6)


def libraries(comm: Communicator, seed: int) -> None:
    """Arrays of torch, of the standard library, and of libraries with DLPack only."""
    import array

    import torch

    class Dlpack:
        """An array of a library older than DLPack 1.0."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack__(self, stream: object = None) -> object:
            return torch.utils.dlpack.to_dlpack(self.tensor)

    random = torch.Generator().manual_seed(seed)
    given = torch.randint(-3, 4, (comm.size, 33), generator=random)
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)
    for dtype in dtypes:
        mine = given.to(dtype)
        total = mine.sum(0, dtype=dtype)
        assert torch.equal(comm.all_reduce(mine[comm.rank]), total), dtype
        assert torch.equal(comm.all_gather(mine[comm.rank]), mine), dtype
        out = torch.empty(33, dtype=dtype)
        comm.all_reduce(Dlpack(mine[comm.rank]), Dlpack(out))
        assert torch.equal(out, total), dtype
    for dtype in dtypes:
        shared = comm.empty((3, 40_000), dtype)
        assert shared.dtype == dtype
        for _ in range(8):
            shared.fill_(comm.rank)
            comm.all_reduce(shared, shared)
            assert (shared == sum(range(comm.size))).all()
    assert comm.empty((0, 2), torch.int8).shape == (0, 2)
    assert comm._communicator.direct_calls >= 4
    plain = array.array("d", [comm.rank + 1.0] * 5)
    comm.all_reduce(plain, plain)
    assert list(plain) == [sum(range(1, comm.size + 1))] * 5
    weights = torch.ones(4, requires_grad=True)  # as torch's own collectives, below autograd
    assert not comm.all_reduce(weights).requires_grad
    assert comm.all_reduce(weights, weights) is weights and weights.requires_grad
    assert weights.tolist() == [comm.size] * 4


def messages(comm: Communicator, seed: int) -> None:
    """Messages around the ring in both directions, with several tags, any source, large and
    empty."""
    size, rank = comm.size, comm.rank
    after, before = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 300_001):
        works = []
        for tag in (7, 65535):
            works.append(comm.send(values("float32", (count,), seed, rank, tag), after, tag=tag,
                                   async_op=True))  # fmt: skip
        for tag in (65535, 7):
            got = comm.recv(np.empty(count, np.float32), before, tag=tag)
            same(got, values("float32", (count,), seed, before, tag), (count, tag))
        for work in works:
            work.wait(60)
            assert work.done()
    if rank == 0:
        got = [comm.recv(np.empty(3, np.int64), tag=1) for _ in range(size - 1)]
        assert sorted(int(one[0]) for one in got) == list(range(1, size))
    else:
        comm.send(np.full(3, rank), 0, tag=1)


def asynchronous(comm: Communicator, seed: int) -> None:
    """Many operations under way; the caller drops the arrays."""
    counts = [1000 if i % 5 else 50_000 for i in range(50)]  # large ones start in the background
    works = [
        comm.all_reduce(values("float64", (count,), seed, comm.rank, i), async_op=True)
        for i, count in enumerate(counts)
    ]
    for i, work in reversed(list(enumerate(works))):
        expected = sum(values("float64", (counts[i],), seed, r, i) for r in range(comm.size))
        same(work.wait(), expected, i)
        assert work.done()


def alternating(comm: Communicator, seed: int) -> None:
    """One small call again and again, with other calls in between, some still under way."""
    rank, size = comm.rank, comm.size
    large = [values("float64", (30_000,), seed, r) for r in range(size)]
    for turn in range(400):
        works = [comm.all_reduce(large[rank], async_op=True)] if turn % 5 == 0 else []
        if turn % 3 == 0:
            same(comm.broadcast(np.array([turn + rank]), root=size - 1), [turn + size - 1], turn)
        for again in range(3):
            expected = np.array([sum(turn + r for r in range(size)), size * again])
            same(comm.all_reduce(np.array([turn + rank, again])), expected, turn)
        for work in works:
            same(work.wait(), sum(large), turn)


def unequal_parts(comm: Communicator, seed: int) -> None:
    """all_to_all with splits, many of them zero, and rows of several shapes."""
    size, rank = comm.size, comm.rank
    random = np.random.default_rng(seed)
    for turn, dtype in enumerate(["float32", "int8", "complex64", "float64", "bool"] * 4):
        most = int(random.choice([0, 1, 5, 3000]))
        counts = random.integers(0, most + 1, (size, size)) * random.integers(0, 2, (size, size))
        shape = (4, 3)[: turn % 3]
        inputs = [values(dtype, (counts[r].sum(), *shape), seed, turn, r) for r in range(size)]
        at = np.hstack([np.zeros((size, 1), int), counts.cumsum(1)])
        parts = [inputs[r][at[r, rank] : at[r, rank + 1]] for r in range(size)]
        sides: dict[str, Any] = {
            "input_split_sizes": counts[rank],
            "output_split_sizes": counts[:, rank].tolist(),
        }
        expected, what = np.concatenate(parts), (turn, dtype, counts)
        same(comm.all_to_all(inputs[rank], **sides), expected, what)
        out = np.ones_like(expected)
        work = comm.all_to_all(inputs[rank], out, **sides, async_op=True)
        assert work.wait() is out
        same(out, expected, what)
    even = np.repeat(np.arange(size, dtype=np.float32), 2) + 10 * rank
    got = comm.all_to_all(even, output_split_sizes=[2] * size)  # the input is split evenly
    same(got, np.repeat(10 * np.arange(size, dtype=np.float32), 2) + rank, "even")

    rows = np.zeros((size + 2, 2), np.float32)
    one = [1] * size

    def wrong(*words: str, input_split_sizes: Any = one, output_split_sizes: Any = one) -> None:
        out = np.zeros((size, 2), np.float32)
        refused(
            lambda: comm.all_to_all(
                rows[:size], out, input_split_sizes=input_split_sizes,
                output_split_sizes=output_split_sizes,
            ),
            *words,
        )  # fmt: skip

    wrong(f"{size} rows of the input", f"got {size - 1}", input_split_sizes=one[1:])
    wrong(f"{size} rows of the output", f"up to {size + 1}", output_split_sizes=[*one[1:], 2])
    wrong("out of bounds", input_split_sizes=[-1, 3, *one[2:]])
    wrong("out of bounds", input_split_sizes=[2**62] * size)
    wrong("whole number", "1.5", input_split_sizes=[1.5, 0.5, *one[2:]])
    mine = [0] * size
    mine[(rank + 1) % size] = size
    wrong("to itself", "0 sent", "2 received", input_split_sizes=mine)
    odd = rows[: size + 1]
    refused(lambda: comm.all_to_all(odd, output_split_sizes=one), "the input", str(size + 1))
    refused(
        lambda: comm.all_to_all(np.float32(1), np.zeros(0, np.float32),
                                input_split_sizes=[0] * size, output_split_sizes=[0] * size),
        "expected rows to split", "input", "shape ()", "reshape",
    )  # fmt: skip
    refused(lambda: comm.all_to_all(rows, rows, input_split_sizes=[*one[1:], 3],
                                    output_split_sizes=[*one[1:], 3]), "apart")  # fmt: skip
    same(comm.all_reduce(np.ones(3)), np.full(3, float(size)), seed)


def traced(comm: Communicator, seed: int) -> None:
    """Only calls inside `with` are traced, synchronous and asynchronous ones."""
    mine = values("float32", (30_000,), seed, comm.rank)
    work = comm.all_reduce(mine, async_op=True)
    same(work.wait(), sum(values("float32", (30_000,), seed, r) for r in range(comm.size)), seed)
    refused(work.spans, "within Communicator.trace", "was not")
    with comm.trace() as traces:
        comm.all_gather(mine)
        work = comm.all_to_all(mine[: comm.size * 5], async_op=True)
        work.wait()
        assert not traces
    assert [trace.operation for trace in traces] == [
        "all_gather float32 x 30000", "all_to_all float32 x 5"
    ]  # fmt: skip
    ends = [span.end for span in work.spans()]
    assert ends and ends == [span.end for span in traces[1].spans]
    assert max(ends) <= traces[1].ended


def shared_allocations(comm: Communicator, seed: int) -> None:
    """Shared allocations in every collective, in place and out of place, with other calls in
    between."""
    rng = np.random.default_rng(seed)
    for turn in range(10):
        count = int(rng.integers(1, 300_000))
        block = comm.empty((comm.size, count), np.float32)
        parts = [values("float32", (comm.size, count), seed, r, turn) for r in range(comm.size)]
        block[:] = parts[comm.rank]
        out = comm.empty((comm.size, count)) if turn % 4 else np.empty_like(block)
        same(comm.all_reduce(block, out), reduced("sum", parts), "all_reduce")
        same(comm.all_to_all(block, out=out), np.stack([p[comm.rank] for p in parts]), "all_to_all")
        same(comm.all_gather(block[turn % comm.size], out=out),
             np.stack([p[turn % comm.size] for p in parts]), "all_gather")  # fmt: skip
        total = reduced("sum", parts)[comm.rank]
        same(comm.reduce_scatter(block, out=out[0]), total, "reduce_scatter")
        comm.broadcast(block, root=turn % comm.size)
        same(block, parts[turn % comm.size], "broadcast")
    works = []
    for _ in range(20):
        array = comm.empty(100_000, "int64")
        array[:] = comm.rank
        works.append(comm.all_reduce(array, array, async_op=True))
        del array
    for work in works:
        assert (work.wait() == comm.size * (comm.size - 1) // 2).all()
    assert comm.empty((0, 3)).shape == (0, 3)
    assert comm.empty((), np.int16).shape == ()
    refused(lambda: comm.empty((2, -1)), "at least 0")
    refused(lambda: comm.empty(2, "no such"), "dtype")
    refused(lambda: comm.empty(2, object), "numbers")
    print(comm._communicator.direct_calls)


def splits(comm: Communicator, seed: int) -> None:
    rank, size = comm.rank, comm.size
    half = comm.split(rank % 2, key=-rank)
    assert half is not None
    members = [r for r in reversed(range(size)) if r % 2 == rank % 2]
    assert (half.rank, half.size) == (members.index(rank), len(members))
    same(half.all_gather(np.array([rank])), np.array([[r] for r in members]), seed)
    same(comm.all_reduce(np.array([1])), np.array([size]), seed)
    nested = half.split(None if half.rank == 0 else 5)
    assert (nested is None) == (half.rank == 0)
    if nested is not None:
        assert nested.size == len(members) - 1
        nested.close()
    half.close()
    comm.barrier()


def threads(comm: Communicator, seed: int) -> None:
    """Threads with a group each, at the same time."""
    groups = [comm.split(0) for _ in range(4)]
    failures: list[BaseException] = []

    def play(number: int, group: Any) -> None:
        try:
            for turn in range(200):
                work = group.all_gather(np.array([turn]), async_op=True) if turn % 7 == 0 else None
                total = group.all_reduce(np.array([turn * number + comm.rank]))
                same(total, np.array([sum(turn * number + r for r in range(comm.size))]), turn)
                if work is not None:
                    same(work.wait(), np.full((comm.size, 1), turn), turn)
            if number % 2:
                group.close()  # while other groups continue
        except BaseException as error:
            failures.append(error)

    players = [threading.Thread(target=play, args=one) for one in enumerate(groups)]
    for player in players:
        player.start()
    for player in players:
        player.join(60)
        assert not player.is_alive()
    assert not failures, failures


def from_env_again(comm: Communicator, seed: int) -> None:
    """from_env() while the first group is open, and after all groups are closed."""
    with Communicator.from_env(timeout=60) as second:
        same(second.all_reduce(np.ones(2)), np.full(2, float(comm.size)), seed)
    comm.close()
    with Communicator.from_env(timeout=60) as third:
        same(third.all_reduce(np.ones(2)), np.full(2, float(comm.size)), seed)
    print("thrice")


def loads(comm: Communicator, seed: int) -> None:
    comm.barrier()
    print([name for name in ("torch", "mpi4py", "cupy") if name in sys.modules])


def ends_after_split(comm: Communicator, seed: int) -> None:
    """Ranks end without a wait, though rank 0 serves the store. Only the world is closed."""
    parts = [comm.split(comm.rank % 2) for _ in range(5)]
    assert all(parts)
    print("made")  # in one write: mpiexec mixes the output of ranks


def from_mpi(comm: Communicator, seed: int) -> None:
    """A communicator of some ranks of MPI in another order, beside MPI."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    assert (comm.rank, comm.size) == (world.rank, world.size)
    turned = world.Split(world.rank % 2, -world.rank)
    with Communicator.from_mpi(turned, timeout=60) as half:
        assert (half.rank, half.size) == (turned.rank, turned.size)
        same(
            half.all_gather(np.array([world.rank])).ravel(),
            np.array(turned.allgather(world.rank)),
            seed,
        )
    print("done")


def main(name: str, *arguments: str) -> None:
    modules = (
        sys.modules[__name__], cupy_programs, everyday_programs, failing_programs, vendor_programs,
    )  # fmt: skip
    program = next(getattr(one, name) for one in modules if hasattr(one, name))
    with Communicator.from_env(timeout=60) as comm:
        program(comm, *map(int, arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
