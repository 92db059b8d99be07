"""Every collective of torch.distributed once: its call, and the expected result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import oracle
import torch
import torch.distributed as dist
from oracle import Expected, reduced
from torch import Tensor

from hetcomm import _core

Group = dist.ProcessGroup | None
Inputs = list[Tensor]  # by rank


@dataclass(frozen=True)
class Case:
    """One call. `count` is the number of elements of one rank's part. `key` seeds the inputs."""

    collective: str
    dtype: torch.dtype
    op: str | None
    count: int
    root: int
    key: tuple[object, ...]
    device: str = "cpu"

    def __str__(self) -> str:
        op = f" {self.op}" if self.op else ""
        return f"{self.collective} {oracle.short(self.dtype)}{op} x{self.count} root {self.root}"

    def splits(self, size: int) -> list[list[int]]:
        """Elements from rank to rank, about `count` each, some zero."""
        random = oracle.generator(*self.key, "splits")
        return torch.randint(0, 2 * self.count + 1, (size, size), generator=random).tolist()

    def inputs(self, size: int) -> Inputs:
        kind = COLLECTIVES[self.collective]
        counts = [self.count * (size if kind.parts else 1)] * size
        if kind.uneven:
            counts = [sum(row) for row in self.splits(size)]
        return [
            oracle.values(self.dtype, self.op, count, *self.key, rank)
            for rank, count in enumerate(counts)
        ]


Call = Callable[[Case, Tensor, int, int, Group], Tensor]
Expect = Callable[[Case, Inputs, int, int], Expected]


@dataclass(frozen=True)
class Collective:
    """`call` gets this rank's input and returns its output, which must match the result of
    `expect`."""

    call: Call
    expect: Expect
    reduces: bool = False
    parts: bool = False  # each rank's input has one part per rank
    uneven: bool = False
    same: bool = False  # every rank must get the same bytes


def _empty(case: Case, count: int) -> Tensor:
    return torch.empty(count, dtype=case.dtype, device=case.device)


def _parts(case: Case, tensor: Tensor, size: int) -> list[Tensor]:
    return [tensor.narrow(0, part * case.count, case.count).clone() for part in range(size)]


def all_reduce(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    dist.all_reduce(x, oracle.operator(case.op), group=group)
    return x


def broadcast(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    dist.broadcast(x, src=case.root, group=group)
    return x


def reduce(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    dist.reduce(x, dst=case.root, op=oracle.operator(case.op), group=group)
    return x if rank == case.root else _empty(case, 0)


def all_gather(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    outputs = [_empty(case, case.count) for _ in range(size)]
    dist.all_gather(outputs, x, group=group)
    return torch.cat(outputs)


def all_gather_into_tensor(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    output = _empty(case, size * case.count)
    dist.all_gather_into_tensor(output, x, group=group)
    return output


def reduce_scatter(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    output = _empty(case, case.count)
    dist.reduce_scatter(output, _parts(case, x, size), oracle.operator(case.op), group=group)
    return output


def reduce_scatter_tensor(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    output = _empty(case, case.count)
    dist.reduce_scatter_tensor(output, x, oracle.operator(case.op), group=group)
    return output


def all_to_all_single(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    output = _empty(case, size * case.count)
    dist.all_to_all_single(output, x, group=group)
    return output


def all_to_all_uneven(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    splits = case.splits(size)
    receives = [row[rank] for row in splits]
    output = _empty(case, sum(receives))
    dist.all_to_all_single(output, x, receives, splits[rank], group=group)
    return output


def all_to_all(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    splits = case.splits(size)
    outputs = [_empty(case, row[rank]) for row in splits]
    dist.all_to_all(outputs, [part.clone() for part in x.split(splits[rank])], group=group)
    return torch.cat(outputs)


def gather(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    outputs = [_empty(case, case.count) for _ in range(size)] if rank == case.root else None
    dist.gather(x, outputs, dst=case.root, group=group)
    return torch.cat(outputs) if outputs else _empty(case, 0)


def scatter(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    output = _empty(case, case.count)
    dist.scatter(output, _parts(case, x, size) if rank == case.root else None, case.root, group)
    return output


def send_recv(case: Case, x: Tensor, rank: int, size: int, group: Group) -> Tensor:
    """To the right and to the left at once, with two tags each, received in the other order."""
    if size == 1:
        return x.clone()
    left, right = (rank - 1) % size, (rank + 1) % size
    works = [dist.isend(x, to, group, tag=tag) for tag in (7, 3) for to in (right, left)]
    outputs = []
    for tag in (3, 7):
        for source in (left, right):
            outputs.append(_empty(case, case.count))
            works.append(dist.irecv(outputs[-1], source, group, tag=tag))
    for work in works:
        work.wait()
    return torch.cat(outputs)


def _expect_reduced(case: Case, inputs: Inputs, rank: int, size: int) -> Expected:
    return reduced(inputs, case.op)


def _expect_scattered(case: Case, inputs: Inputs, rank: int, size: int) -> Expected:
    return reduced(inputs, case.op).narrow(rank * case.count, case.count)


def _expect_gathered(case: Case, inputs: Inputs, rank: int, size: int) -> Expected:
    return Expected(torch.cat(inputs))


def _expect_part(case: Case, inputs: Inputs, rank: int, size: int) -> Expected:
    return Expected(torch.cat([one.narrow(0, rank * case.count, case.count) for one in inputs]))


def _expect_uneven(case: Case, inputs: Inputs, rank: int, size: int) -> Expected:
    rows = zip(inputs, case.splits(size), strict=True)
    return Expected(torch.cat([one.split(row)[rank] for one, row in rows]))


def _only_root(expect: Expect) -> Expect:
    return lambda case, inputs, rank, size: (
        expect(case, inputs, rank, size) if rank == case.root else Expected(_empty(case, 0))
    )


def _expect_neighbours(case: Case, inputs: Inputs, rank: int, size: int) -> Expected:
    if size == 1:
        return Expected(inputs[0])
    return Expected(torch.cat([inputs[(rank - 1) % size], inputs[(rank + 1) % size]] * 2))


COLLECTIVES = {
    "all_reduce": Collective(all_reduce, _expect_reduced, reduces=True, same=True),
    "broadcast": Collective(broadcast, lambda c, x, r, n: Expected(x[c.root]), same=True),
    "reduce": Collective(reduce, _only_root(_expect_reduced), reduces=True),
    "all_gather": Collective(all_gather, _expect_gathered, same=True),
    "all_gather_into_tensor": Collective(all_gather_into_tensor, _expect_gathered, same=True),
    "reduce_scatter": Collective(reduce_scatter, _expect_scattered, reduces=True, parts=True),
    "reduce_scatter_tensor": Collective(
        reduce_scatter_tensor, _expect_scattered, reduces=True, parts=True
    ),
    "all_to_all_single": Collective(all_to_all_single, _expect_part, parts=True),
    "all_to_all_uneven": Collective(all_to_all_uneven, _expect_uneven, uneven=True),
    "all_to_all": Collective(all_to_all, _expect_uneven, uneven=True),
    "gather": Collective(gather, _only_root(_expect_gathered)),
    "scatter": Collective(
        scatter,
        lambda c, x, r, n: Expected(x[c.root].narrow(0, r * c.count, c.count)),
        parts=True,
    ),
    "send_recv": Collective(send_recv, _expect_neighbours),
}


SAMPLE = 80  # one of several hundred cases


def _rows(name: str, dtype: torch.dtype) -> list[tuple[str, torch.dtype, str | None]]:
    ops = oracle.ops(dtype) if COLLECTIVES[name].reduces else (None,)
    return [(name, dtype, op) for op in ops]


def cases(
    seed: int,
    size: int,
    layout: str,
    dtypes: Sequence[torch.dtype] = oracle.DTYPES,
    whole: bool = True,
) -> list[Case]:
    """All pairs of collective, dtype and legal op, or a random sample of them.

    Order, sizes and roots are random. Every collective also has one case with enough bytes for
    several chunks.
    """
    rows = [row for name in COLLECTIVES for dtype in dtypes for row in _rows(name, dtype)]
    random = oracle.generator(seed, layout, "cases")
    sizes = (0, 1, 2, 3, 7, 31, 64, 257, 1000, 4099, 20011)

    def below(bound: int) -> int:
        return int(torch.randint(0, bound, (1,), generator=random))

    chosen = []
    for index in torch.randperm(len(rows), generator=random).tolist()[: None if whole else SAMPLE]:
        key = (seed, layout, index)
        chosen.append(Case(*rows[index], sizes[below(len(sizes))], below(size), key))
    for index, (name, collective) in enumerate(COLLECTIVES.items()):
        parts = size if collective.parts or collective.uneven else 1
        op = "SUM" if collective.reduces else None
        large = 3 * 2**20 // 4 // parts + 1
        chosen.append(Case(name, torch.float32, op, large, below(size), (seed, layout, -1 - index)))
    return chosen


def ccl_has(case: Case) -> bool:
    """Whether the vendors' libraries have the case. Groups with a rank of a vendor need that."""
    if case.op is None:
        return True
    short = oracle.short(case.dtype)
    dtype = getattr(_core.Dtype, {"bool": "boolean"}.get(short, short))
    return _core.ccl_reduces(dtype, getattr(_core.ReduceOp, case.op.lower()))


def failures_on(
    device: str, rank: int, size: int, seed: int, layout: str, whole: bool = True
) -> list[str]:
    """Runs all cases that the vendors' libraries have, or a sample, with this rank's tensors on
    `device`."""
    failures = []
    for case in filter(ccl_has, cases(seed, size, layout, whole=whole)):
        collective = COLLECTIVES[case.collective]
        inputs = case.inputs(size)
        there = replace(case, device=device)
        got = collective.call(there, inputs[rank].to(device, copy=True), rank, size, None).cpu()
        if difference := collective.expect(case, inputs, rank, size).difference(got):
            failures.append(f"rank {rank}, {case}: {difference}")
    return failures
