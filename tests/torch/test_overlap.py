"""Tensors of one call that share memory: the result of separate memory, or an error before
anything is sent."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import emulated_device
import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Job, refusal, values
from torch import Tensor
from vendors import environments

ROOM = 7  # elements around the tensors of a case


@dataclass(frozen=True)
class View:
    """Elements of one rank's memory."""

    begin: int
    count: int
    step: int = 1

    def of(self, memory: Tensor) -> Tensor:
        return memory.as_strided((self.count,), (self.step,), self.begin)

    @property
    def end(self) -> int:
        return self.begin + self.step * (self.count - 1) + 1


def uses(views: Sequence[View], length: int) -> np.ndarray:
    """How many of the views have each element."""
    found = np.zeros(length, int)
    for view in views:
        found[view.begin : view.end : view.step] += 1
    return found


@dataclass
class Case:
    """One call on all ranks. Inputs and outputs lie in one memory."""

    name: str
    inputs: list[list[View]]  # by rank
    outputs: list[list[View]]
    call: Callable[[list[Tensor], list[Tensor], Any], dist.Work | None]
    expect: Callable[[int, list[list[Tensor]]], list[Tensor]]  # of a rank, from all inputs
    legal: bool = False  # though tensors share memory

    @property
    def length(self) -> int:
        return ROOM + max(view.end for of in (*self.inputs, *self.outputs) for view in of)

    def shares(self, rank: int) -> bool:
        read, written = (uses(of[rank], self.length) for of in (self.inputs, self.outputs))
        return bool(np.any(read * written))

    def outputs_share(self, rank: int) -> bool:
        return bool(np.any(uses(self.outputs[rank], self.length) > 1))

    @property
    def alike(self) -> bool:
        """Every rank refuses the call, or none."""
        ranks = range(len(self.inputs))
        return len({(self.shares(rank), self.outputs_share(rank)) for rank in ranks}) == 1


def cut(whole: Tensor, parts: int) -> list[Tensor]:
    return list(whole.chunk(parts)) if whole.numel() else [whole] * parts


def gathered(rank: int, every: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat([one[0] for one in every])]


def listed(rank: int, every: list[list[Tensor]]) -> list[Tensor]:
    return [one[0] for one in every]


def scattered(rank: int, every: list[list[Tensor]]) -> list[Tensor]:
    return [sum(cut(one[0], len(every))[rank] for one in every)]


def scattered_lists(rank: int, every: list[list[Tensor]]) -> list[Tensor]:
    return [sum(one[rank] for one in every)]


def exchanged(rank: int, every: list[list[Tensor]]) -> list[Tensor]:
    return [torch.cat([cut(one[0], len(every))[rank] for one in every])]


def exchanged_lists(rank: int, every: list[list[Tensor]]) -> list[Tensor]:
    return [one[rank] for one in every]


def pieces(choose: random.Random, count: int, size: int) -> list[View]:
    """A list of tensors: one piece of memory, another order, with gaps, columns of a matrix, or
    anywhere."""
    kind = choose.randrange(5)
    first = ROOM + count
    begins = [first + each * count for each in range(size)]
    if kind == 1:
        choose.shuffle(begins)
    elif kind == 2:
        begins = [begin + each for each, begin in enumerate(begins)]
    elif kind == 3:
        return [View(first + each, count, size) for each in range(size)]
    elif kind == 4:
        begins = [choose.randrange(first, first + size * count + 1) for _ in range(size)]
    return [View(begin, count) for begin in begins]


def random_case(choose: random.Random, size: int) -> Case:
    count = choose.choice([1, 2, 5, 64, 1000, choose.randrange(1, 40_000)])
    own = choose.random() < 0.3  # the rank's own block
    shift = 0 if own else choose.choice([-1, 1, -count, count, choose.randrange(-count, count)])
    step = 1 if own else choose.choice([1, 1, 1, 2])
    whole = View(ROOM + count, count * size, choose.choice([1, 1, step]))
    part = [View(whole.begin + each * count + shift, count, step) for each in range(size)]
    apart = [View(ROOM + choose.choice([0, count, shift + count]), whole.count)] * size
    lists = pieces(choose, count, size)
    member = [
        View(lists[each].begin + shift, count, lists[each].step if own else step)
        for each in range(size)
    ]
    names = [
        "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "uneven",
        "all_gather", "reduce_scatter", "all_to_all",
    ]  # fmt: skip
    name = choose.choice(names)
    wholes, every, of = [[whole]] * size, [lists] * size, [[one] for one in part]
    if name == "all_gather_into_tensor":
        return Case(
            name, of, wholes, lambda i, o, group: dist.all_gather_into_tensor(o[0], i[0], group),
            gathered, own and whole.step == 1,
        )  # fmt: skip
    if name == "reduce_scatter_tensor":
        return Case(
            name, wholes, of,
            lambda i, o, group: dist.reduce_scatter_tensor(o[0], i[0], group=group),
            scattered, own and whole.step == 1,
        )  # fmt: skip
    if name in ("all_to_all_single", "uneven"):
        splits = None if name == "all_to_all_single" else [count] * size
        return Case(
            name, wholes, [[one] for one in apart],
            lambda i, o, group: dist.all_to_all_single(o[0], i[0], splits, splits, group),
            exchanged,
        )  # fmt: skip
    if name == "all_gather":
        return Case(
            name, [[one] for one in member], every,
            lambda i, o, group: dist.all_gather(o, i[0], group), listed, own,
        )  # fmt: skip
    if name == "reduce_scatter":
        return Case(
            name, every, [[one] for one in member],
            lambda i, o, group: dist.reduce_scatter(o[0], i, group=group), scattered_lists, own,
        )  # fmt: skip
    return Case(
        name, every, [lists if own else pieces(choose, count, size)] * size,
        lambda i, o, group: dist.all_to_all(o, i, group), exchanged_lists, own,
    )  # fmt: skip


def memory_of(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    return ((torch.arange(count) * 7 + rank * 13) % 31).to(dtype)


def wrong(case: Case, rank: int, size: int, dtype: torch.dtype, device: str = "cpu") -> str:
    """What is wrong after the call; empty if nothing is."""
    every = [memory_of(each, case.length, dtype) for each in range(size)]
    inputs = [[view.of(every[r]) for view in case.inputs[r]] for r in range(size)]
    results = case.expect(rank, [[one.clone() for one in of] for of in inputs])
    want = every[rank].clone()
    for view, result in zip(case.outputs[rank], results, strict=True):
        view.of(want).copy_(result)
    memory = every[rank].to(device, copy=True)
    given = [view.of(memory) for view in case.inputs[rank]]
    taken = [view.of(memory) for view in case.outputs[rank]]
    refused = refusal(lambda: case.call(given, taken, None))
    if refused != "no error":
        want = every[rank]
        if "overlaps it" not in refused and "share no memory" not in refused:
            return f"another error: {refused}"
        if case.legal and not case.outputs_share(rank):
            return f"refused: {refused}"
        if not case.shares(rank) and not case.outputs_share(rank):
            return f"refused without need: {refused}"
    elif case.outputs_share(rank):
        return "outputs share memory, but no error"
    differing = (memory.cpu() != want).nonzero().flatten().tolist()
    if not differing:
        return ""
    return f"wrong elements {differing[:5]} of {len(differing)}; {refused}; {case}"


def fuzzed(
    rank: int, size: int, seed: int, trials: int, devices: Sequence[str] = ("cpu",)
) -> list[str]:
    choose = random.Random(f"{seed} {size}")
    failures = []
    for trial in range(trials):
        case = random_case(choose, size)
        dtype = choose.choice([torch.float32, torch.int64, torch.uint8, torch.float64])
        where = choose.random()
        if not case.alike:
            continue
        if os.environ.get("HETCOMM_VENDOR", "cpu") == "cpu":
            device = "cpu"
        else:
            device = devices[int(where * len(devices))]
        if problem := wrong(case, rank, size, dtype, device):
            failures.append(f"rank {rank}, trial {trial}, {case.name} on {device}: {problem}")
    return failures


@pytest.mark.parametrize("layout", ["a", "aa", "aaa", "ab", "aab", "abc"])
def test_shared_memory_gives_the_result_of_separate_memory_or_an_error(
    job: Callable[..., Job], seed: int, layout: str
) -> None:
    results = values(job(layout), fuzzed, seed, 30)
    failures = [one for of in results for one in of]
    assert not failures, "\n".join(failures[:20])


def prepare() -> None:
    emulated_device.load()


@emulated_device.needed[0]
@emulated_device.needed[1]
@pytest.mark.parametrize(
    ("hosts", "vendors", "devices"),
    [("aaa", "nnn", (emulated_device.NAME, "cpu")), ("ab", "nc", (emulated_device.NAME,))],
)
def test_shared_device_memory_gives_the_result_of_separate_memory_or_an_error(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str, devices: Sequence[str]
) -> None:
    """CPU tensors on ranks of devices are copied. Ranks of the CPU refuse what those copy."""
    emulated_device.build()
    backend = f"cpu:hetcomm,{emulated_device.NAME}:hetcomm"
    ranks = job(hosts, environments=environments(vendors), prepare=prepare, backend=backend)
    results = values(ranks, fuzzed, seed, 25, devices)
    failures = [one for of in results for one in of]
    assert not failures, "\n".join(failures[:20])
