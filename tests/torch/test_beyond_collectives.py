"""Operations of c10d beyond the plain collectives: batches, receives from any rank, monitored
barriers, profiles."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Job, values
from torch.distributed.distributed_c10d import _coalescing_manager, _get_default_store
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel

import hetcomm

DTYPES = [torch.float32, torch.int64, torch.bfloat16]
SIZES = [1, 0, 7, 1000, 33]


def batch(rank: int, size: int, seed: int) -> list[str]:
    """Every kind of batch on tensors of mixed dtypes. Returns the wrong results."""
    chance = torch.Generator().manual_seed(seed)

    def numbers(count: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """The tensor of each rank."""
        return [torch.randint(-8, 8, (count,), generator=chance).to(dtype) for _ in range(size)]

    pairs = []
    group = dist.group.WORLD
    device = torch.device("cpu")
    everyone = [numbers(count, dtype) for count in SIZES for dtype in DTYPES]

    reduced = [of_ranks[rank].clone() for of_ranks in everyone]
    with _coalescing_manager(group, device, async_ops=True) as manager:
        for tensor in reduced:
            dist.all_reduce(tensor)
    manager.wait()
    pairs += [(t, sum(of_ranks)) for t, of_ranks in zip(reduced, everyone, strict=True)]

    gathered = [torch.empty(size * len(o[0]), dtype=o[0].dtype) for o in everyone]
    with _coalescing_manager(group, device):
        for target, of_ranks in zip(gathered, everyone, strict=True):
            dist.all_gather_into_tensor(target, of_ranks[rank])
    pairs += [(t, torch.cat(o)) for t, o in zip(gathered, everyone, strict=True)]

    blocks = [numbers(size * count, dtype) for count in SIZES for dtype in DTYPES]
    scattered = [torch.empty(len(o[0]) // size, dtype=o[0].dtype) for o in blocks]
    with _coalescing_manager(group, device):
        for target, of_ranks in zip(scattered, blocks, strict=True):
            dist.reduce_scatter_tensor(target, of_ranks[rank])
    pairs += [(t, sum(o).view(size, -1)[rank]) for t, o in zip(scattered, blocks, strict=True)]

    right, left = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        received = [torch.empty_like(of_ranks[0]) for of_ranks in everyone]
        operations = [dist.P2POp(dist.isend, o[rank], right) for o in everyone]
        operations += [dist.P2POp(dist.irecv, t, left) for t in received]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        pairs += [(t, o[left]) for t, o in zip(received, everyone, strict=True)]
    return [
        f"{got.dtype} x {got.numel()}: {got} instead of {expected}"
        for got, expected in pairs
        if not torch.equal(got, expected)
    ]


@pytest.mark.parametrize("layout", ["a", "aa", "aab", "abab"])
def test_batches_are_correct(job: Callable[..., Job], layout: str, seed: int) -> None:
    assert values(job(layout), batch, seed) == [[]] * len(layout)


def all_or_nothing(rank: int, size: int) -> list[float]:
    """A batch with one dtype that cannot be reduced begins no operation."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.AVG
    floats, before = torch.full((4,), 2.0 * rank), backend._get_sequence_number_for_group()
    with pytest.raises(hetcomm.InvalidArgumentError, match="average is not defined for int32"):
        backend.allreduce_coalesced([floats, torch.ones(4, dtype=torch.int32)], options)
    dist.barrier()
    return [floats[0].item(), backend._get_sequence_number_for_group() - before]


def test_a_bad_batch_is_rejected_as_a_whole(job: Callable[..., Job]) -> None:
    assert values(job("ab"), all_or_nothing) == [[0.0, 1], [2.0, 1]]


def empty_on_one(rank: int, size: int, name: str) -> str:
    """Rank 1 gives no tensor, and waits until rank 0 has given up."""
    backend, store = dist.group.WORLD._get_backend(torch.device("cpu")), _get_default_store()
    one = [torch.ones(size)] if rank == 0 else []
    with pytest.raises(hetcomm.InvalidArgumentError) as raised:
        if name == "coalesced":
            backend.allreduce_coalesced(one, dist.AllreduceCoalescedOptions()).wait()
        else:
            sparse = torch.eye(3).to_sparse()
            op = dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX
            backend.allreduce([sparse], op).wait()
    store.set(f"told {rank}", "")
    store.wait([f"told {1 - rank}"], timedelta(seconds=60))
    return str(raised.value)


@pytest.mark.parametrize("name", ["coalesced", "sparse"])
def test_other_ranks_hear_why_a_batch_was_rejected(job: Callable[..., Job], name: str) -> None:
    waiting, refused = values(job("aa", group_timeout=8.0), empty_on_one, name)
    assert refused.partition(": ")[2][:40] in waiting, waiting


def plans(rank: int, size: int) -> list[int]:
    """The number of collectives that a batch of ten calls of two dtypes becomes."""
    group, device = dist.group.WORLD, torch.device("cpu")
    backend = group._get_backend(device)
    dtypes = [torch.float32, torch.int64] * 5
    seen = [backend._get_sequence_number_for_group()]
    for call in (
        lambda dtype: dist.all_reduce(torch.ones(3, dtype=dtype)),
        lambda dtype: dist.all_gather_into_tensor(
            torch.ones(3 * size, dtype=dtype), torch.ones(3, dtype=dtype)
        ),
        lambda dtype: dist.reduce_scatter_tensor(
            torch.ones(3, dtype=dtype), torch.ones(3 * size, dtype=dtype)
        ),
    ):
        with _coalescing_manager(group, device):
            for dtype in dtypes:
                call(dtype)
        seen.append(backend._get_sequence_number_for_group())
    ones = [torch.ones(3, dtype=dtype) for dtype in dtypes]
    backend.allgather_coalesced([[one.clone() for one in ones] for _ in range(size)], ones).wait()
    seen.append(backend._get_sequence_number_for_group())
    return [after - before for before, after in itertools.pairwise(seen)]


def test_a_batch_is_one_plan_for_each_dtype(job: Callable[..., Job]) -> None:
    assert values(job("ab"), plans) == [[2, 2, 2, 2]] * 2


def after_bad_batches(rank: int, size: int) -> None:
    """Later calls of the thread continue, and tensors of a bad batch are released."""
    peer = 1 - rank
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def exchange(*first: dist.P2POp) -> float:
        got, mine = torch.zeros(6), torch.full((6,), 1.0 + rank)
        pairs = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, got, peer)]
        for work in dist.batch_isend_irecv([*first, *pairs]):
            work.wait()
        return got[0].item()

    def freed(storage: StorageWeakRef) -> bool:
        end = time.monotonic() + 30  # the completing thread may hold it longer
        while not storage.expired() and time.monotonic() < end:
            time.sleep(0.001)
        return storage.expired()

    for _ in range(2):
        with pytest.raises(hetcomm.InvalidArgumentError, match="memory of their own"):
            exchange(dist.P2POp(dist.irecv, torch.ones(1).expand(6), peer))
        kept = torch.full((5,), float(rank))
        dist.all_reduce(kept)
        assert kept[0] == 1, "torch has made no call, because it takes the batch for open"
        storage = StorageWeakRef(kept.untyped_storage())
        del kept
        assert freed(storage)
        assert exchange() == 1.0 + peer
    backend._start_coalescing()  # of a batch that does not end, because another call raised
    lost = torch.ones(5)
    dist.broadcast(lost, 0)
    storage = StorageWeakRef(lost.untyped_storage())
    del lost
    assert exchange() == 1.0 + peer
    assert freed(storage)
    with pytest.raises(hetcomm.InvalidArgumentError, match="startCoalescing"):
        backend._end_coalescing()


def test_a_bad_batch_disturbs_no_later_batch(job: Callable[..., Job]) -> None:
    values(job("ab"), after_bad_batches)


def from_any_rank(rank: int, size: int, count: int) -> list[int]:
    """Rank 0 receives two messages of each other rank, by tag. Returns the senders."""
    if rank > 0:
        # Not send(): the receiver takes them in another order, and large messages wait for it.
        messages = [
            dist.isend(torch.full((count,), 10.0 * rank + tag), 0, tag=tag) for tag in (1, 2)
        ]
        for message in messages:
            message.wait()
        return []
    senders = []
    for tag in (2, 1):
        for _ in range(size - 1):
            got = torch.empty(count)
            sender = dist.recv(got, tag=tag)
            assert (got == 10.0 * sender + tag).all()
            senders.append(sender)
    return senders


@pytest.mark.parametrize("layout", ["aa", "abb", "abab"])
@pytest.mark.parametrize("count", [1, 300_000])
def test_receive_from_any_rank_names_the_sender(
    job: Callable[..., Job], layout: str, count: int
) -> None:
    senders = values(job(layout), from_any_rank, count)[0]
    others = list(range(1, len(layout)))
    assert sorted(senders[: len(others)]) == others == sorted(senders[len(others) :])


def without_a_sender(rank: int, size: int) -> str:
    if rank > 0:
        return ""
    work = dist.irecv(torch.empty(3))
    assert work is not None
    with pytest.raises(TimeoutError) as raised:
        work.wait(timedelta(seconds=1))
    return str(raised.value)


def test_receive_from_any_rank_times_out(job: Callable[..., Job]) -> None:
    assert "recv" in values(job("aa"), without_a_sender)[0]


def missing(rank: int, size: int, late: list[int]) -> tuple[str, float]:
    """Ranks of `late` do not come to the second of three barriers."""
    group = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=30))
    message = ""
    if rank not in late:
        try:
            group.monitored_barrier(timedelta(seconds=8), wait_all_ranks=True)
        except RuntimeError as error:
            message = str(error)
    total = torch.ones(4)
    dist.all_reduce(total)
    return message, total[0].item()


@pytest.mark.parametrize("layout", ["aaaa", "abab"])
def test_monitored_barrier_names_all_missing_ranks(job: Callable[..., Job], layout: str) -> None:
    results = values(job(layout), missing, [1, 3])
    assert [total for _, total in results] == [4.0] * 4, "the group is not usable afterwards"
    assert "Ranks 1, 3 failed to pass monitoredBarrier in 8000 ms" in results[0][0]
    assert "Rank 2 successfully reached monitoredBarrier" in results[2][0]


def profiled(rank: int, size: int) -> dict[str, list]:
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 4))
        dist.all_reduce(torch.ones(5), async_op=True).wait()
        dist.broadcast(torch.ones(2), 0)
    return {
        name: [e.input_shapes for e in profile.function_events if e.name == name]
        for name in ("hetcomm:all_reduce", "hetcomm:broadcast")
    }


def test_profiles_show_operations_with_shapes(job: Callable[..., Job]) -> None:
    for events in values(job("aa"), profiled):
        assert events == {"hetcomm:all_reduce": [[[3, 4]], [[5]]], "hetcomm:broadcast": [[[2]]]}


def sum_sparse(rank: int, size: int) -> list[bool]:
    """Different numbers of entries, none on the last rank; twenty times, so that ranks come
    late."""
    right = []
    for call in range(20):
        count = 0 if rank == size - 1 else rank + 1 + call % 3
        dense = torch.zeros(30, 4)
        dense[call % 7 : call % 7 + count] = rank + 1.0
        total = dense.clone()
        dist.all_reduce(total)
        sparse = dense.to_sparse(1)
        dist.all_reduce(sparse)
        right.append(torch.equal(sparse.to_dense(), total))
    return right


@pytest.mark.parametrize("layout", ["a", "aa", "abb"])
def test_sparse_tensors_are_summed(job: Callable[..., Job], layout: str) -> None:
    assert values(job(layout), sum_sparse) == [[True] * 20] * len(layout)


def sum_repeated(rank: int, size: int) -> list[bool]:
    """One index several times: coalescing leaves one entry with odd strides."""
    right = []
    for indices, entries in [
        ([[3, 3]], [1.0, 2.0]),
        ([[3, 3], [1, 1]], [1.0, 2.0]),
        ([[3, 3, 3]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),  # hybrid: rows of a dense dimension
    ]:
        shape = (10,) * len(indices) + torch.tensor(entries).shape[1:]
        repeated = torch.sparse_coo_tensor(indices, entries, shape)
        once = torch.sparse_coo_tensor([[1]] * len(indices), entries[:1], shape)
        mine = repeated if rank == 0 else once
        total = mine.to_dense()
        dist.all_reduce(total)
        dist.all_reduce(mine)
        right.append(torch.equal(mine.to_dense(), total))
    network = DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    network(torch.tensor([3, 3] if rank == 0 else [1, 2])).sum().backward()
    right.append(network.module.weight.grad.to_dense().sum().item() == 8.0)
    return right


def test_sparse_tensors_of_one_repeated_index_are_summed(job: Callable[..., Job]) -> None:
    assert values(job("ab", group_timeout=20.0), sum_repeated) == [[True] * 4] * 2
