"""The overlapped distributed optimizer: a partition of gradients and states with overlap."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import gpt
import pytest
import torch
import torch.distributed as dist
from partitioned import adam, losses_of, train_partitioned
from ranks import Job, check_texts, refusal, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hetcomm
from hetcomm.partitioning import collectives

LEVELS = ("rank", "cluster", "cluster")


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups of unlike options: matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    decay = {"params": matrices, "weight_decay": 0.1}
    return torch.optim.AdamW([decay, {"params": vectors, "lr": 0.02}], lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, sync: Any, micro: int = 1) -> None:
    """sync: the context of a micro-batch before the last one."""
    for index, (_, loss) in enumerate(losses_of(model, micro)):
        last = (index + 1) % micro == 0
        with nullcontext() if last else sync():
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def as_ddp(rank: int, size: int, settings: dict[str, Any], micro: int) -> list[str]:
    """The parameters that differ in a bit from those of DDP with the plain optimizer."""
    theirs, ours = gpt.model(), gpt.model()
    wrapped, plain = DistributedDataParallel(theirs), adamw(theirs)
    train(wrapped, plain, nullcontext, micro)
    optimizer = adamw(ours)
    partition = hetcomm.partition(ours, optimizer, *LEVELS, **settings)
    train(ours, optimizer, nullcontext, micro)
    with partition.gathered():
        weights = ours.state_dict()
        return [k for k, v in theirs.state_dict().items() if not torch.equal(weights[k], v)]


@pytest.mark.parametrize("bucket", [0, 20_000, 500_000_000])
def test_weights_have_the_bits_of_ddp(job: Callable[..., Job], bucket: int) -> None:
    """Sums of two ranks have one order."""
    settings = {"overlap": True, "bucket": bucket}
    assert values(job("ab", backend="gloo"), as_ddp, settings, 1) == [[], []]
    assert values(job("aa"), as_ddp, settings, 1) == [[], []]


def trace(rank: int, size: int, overlap: bool, bucket: int) -> list[str]:
    """What happened when, from the second backward pass to the third forward pass."""
    events: list[str] = []

    class Traced:
        def __init__(self, work: Any, name: str) -> None:
            self.work, self.name = work, name
            events.append(f"start {name}")

        def wait(self) -> None:
            events.append(f"wait {self.name}")
            self.work.wait()

    def traced(call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def start(out: torch.Tensor, *rest: Any) -> Any:
            work = call(out, *rest)
            count = sum(event.startswith(f"start {kind}") for event in events)
            return work and Traced(work, f"{kind} {count}")

        return start

    model = gpt.Gpt(3)
    optimizer = adam(model.parameters())
    hetcomm.partition(model, optimizer, *LEVELS, overlap=overlap, bucket=bucket)
    collectives.gather = traced(collectives.gather, "gather")
    collectives.scatter_sum = traced(collectives.scatter_sum, "reduce")
    for index, block in enumerate(model.blocks):
        block.before_attention.register_forward_pre_hook(
            lambda *_, index=index: events.append(f"forward {index}")
        )
        block.register_full_backward_pre_hook(
            lambda *_, index=index: events.append(f"backward {index}")
        )
    for step, loss in losses_of(model, 1):
        if step == 2:
            return events
        events.clear()
        loss.backward()
        events.append("backward ends")
        optimizer.step()
    raise AssertionError("too few steps")


def before(events: list[str], first: str, second: str) -> bool:
    return events.index(first) < events.index(second)


def test_gradients_and_weights_travel_during_passes(job: Callable[..., Job]) -> None:
    for events in values(job("ab", backend="gloo"), trace, True, 0):
        assert before(events, "start reduce 0", "backward 0")  # the last block's gradients
        assert before(events, "start reduce 0", "backward ends")
        assert before(events, "start gather 3", "forward 0")
        assert before(events, "forward 0", "wait gather 3")
        for unit in (1, 2, 3):  # unit 0 is the root
            assert before(events, f"wait gather {unit}", f"forward {unit - 1}")
        assert before(events, "wait gather 0", "forward 0")


def test_without_overlap_weights_come_before_the_pass(job: Callable[..., Job]) -> None:
    for events in values(job("ab", backend="gloo"), trace, False, 0):
        assert before(events, "wait gather 3", "forward 0")


def test_buckets_join_units(job: Callable[..., Job]) -> None:
    """Two blocks fill the first bucket. The last has one block and the root."""
    for events in values(job("ab", backend="gloo"), trace, True, 20_000):
        starts = [event for event in events if event.startswith("start reduce")]
        assert len(starts) == 2
        assert before(events, "backward 1", "start reduce 0")
        assert before(events, "start reduce 0", "backward ends")


def accumulate(rank: int, size: int) -> list[Any]:
    """Reductions, and the largest differences of weights, with and without no_sync()."""
    model, found = gpt.model(), []
    calls = 0
    call = collectives.scatter_sum

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return call(*arguments)

    collectives.scatter_sum = counted
    weights = []
    for kept in (False, True):
        model, calls = gpt.model(), 0
        optimizer = adam(model.parameters())
        partition = hetcomm.partition(model, optimizer, *LEVELS, overlap=True)
        train(model, optimizer, partition.no_sync if kept else nullcontext, micro=2)
        with partition.gathered():
            weights.append([p.clone() for p in model.parameters()])
        found.append(calls)
    apart = max((a - b).abs().max().item() for a, b in zip(*weights, strict=True))
    with partition.no_sync():
        with partition.no_sync():
            gpt.loss_of(*_batch(model)).backward()
        gpt.loss_of(*_batch(model)).backward()
    held = sum(p.grad is not None for p in model.parameters())
    calls = 0
    optimizer.step()  # reduces what no backward pass outside of no_sync() has reduced
    return [*found, apart, held, calls, sum(p.grad is not None for p in model.parameters())]


def _batch(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, targets = next(gpt.batches())
    return model(tokens), targets


def test_micro_batches_are_reduced_once(job: Callable[..., Job]) -> None:
    units, steps = 1 + gpt.LAYERS, 3
    for every, once, apart, held, calls, left in values(job("aab"), accumulate):
        assert (every, once) == (2 * steps * units, steps * units)
        assert apart < 2e-6
        assert held == len(list(gpt.model().parameters()))
        assert (calls, left) == (units, 0)


def in_groups(rank: int, size: int) -> dict[str, Any]:
    """Each group of a host's ranks trains a model of its own; rank 4 is in none."""
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    if rank == 4:
        return {}
    group = groups[rank % 2]
    torch.manual_seed(rank % 2)
    theirs = gpt.Gpt(2)
    ours = gpt.Gpt(2)
    ours.load_state_dict(theirs.state_dict())
    wrapped, plain = DistributedDataParallel(theirs, process_group=group), adamw(theirs)
    optimizer = adamw(ours)
    partition = hetcomm.partition(ours, optimizer, *LEVELS, overlap=True, group=group)
    for model, steps in ((wrapped, plain), (ours, optimizer)):
        for tokens, targets in [batch for _, batch in zip(range(3), gpt.batches(), strict=False)]:
            share = slice(rank, rank + 2)
            gpt.loss_of(model(tokens[share]), targets[share]).backward()
            if model is ours:
                clipped = partition.clip_grad_norm_(1e9).item()
            else:
                norm = nn.utils.clip_grad_norm_(theirs.parameters(), 1e9).item()
            steps.step()
            steps.zero_grad()
    full = partition.full_state_dict()
    with partition.gathered():
        weights = ours.state_dict()
        apart = [k for k, v in theirs.state_dict().items() if not torch.equal(weights[k], v)]
    return {"apart": apart, "norms": (norm, clipped), "has all": len(full) == len(weights)}


def test_groups_train_models_of_their_own(job: Callable[..., Job]) -> None:
    found = values(job("aabbb"), in_groups)
    assert [each.get("has all") for each in found] == [True, True, False, False, None]
    for each in found[:4]:
        assert each["apart"] == []
        assert each["norms"][0] == pytest.approx(each["norms"][1], rel=1e-5)
    assert found[0]["norms"] != found[1]["norms"]


def hosts_of_a_group(rank: int, size: int) -> list[Any]:
    group = dist.new_group([0, 1, 3, 4])
    if rank == 2:
        return []
    model = gpt.Gpt(2)
    optimizer = adam(model.parameters())
    partition = hetcomm.partition(model, optimizer, "rank", "host", "cluster", group=group)
    grid = partition.grid
    along = dist.get_process_group_ranks(grid.gradients.group)
    gpt.loss_of(*_batch(model)).backward()
    optimizer.step()
    return [[each.size for each in grid.dimensions], along]


def test_levels_divide_the_group(job: Callable[..., Job]) -> None:
    found = values(job("aabbb"), hosts_of_a_group)
    assert found[0] == [[1, 2, 2, 1], [0, 1]]
    assert found[4] == [[1, 2, 2, 1], [3, 4]]


def unlike_numbers_of_groups(rank: int, size: int) -> str:
    dist.new_group([0, 1])
    group = dist.new_group([0, 2, 3, 4])
    model = gpt.Gpt(2)
    return (
        ""
        if rank == 1
        else refusal(
            lambda: hetcomm.partition(
                model, adam(model.parameters()), gradients="host", group=group
            )
        )
    )


def test_ranks_with_unlike_numbers_of_groups_are_refused(job: Callable[..., Job]) -> None:
    """torch could not make the group of a host."""
    found = values(job("aaabb"), unlike_numbers_of_groups)
    found.pop(1)
    check_texts([[text] for text in found], ["process groups: expected the same on all ranks; got"])


def half(rank: int, size: int, dtype: torch.dtype) -> list[Any]:
    model = gpt.model().to(dtype)
    optimizer = adam(model.parameters())
    partition = hetcomm.partition(model, optimizer, *LEVELS, overlap=True)
    losses, _ = train_partitioned(model, optimizer, partition)
    masters = {p.dtype for group in optimizer.param_groups for p in group["params"]}
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    return [masters, (mean / size).tolist()]


def test_bfloat16_modules_have_float32_master_weights(job: Callable[..., Job]) -> None:
    masters, losses = values(job("ab"), half, torch.bfloat16)[0]
    _, exact = values(job("ab"), half, torch.float32)[0]
    assert masters == {torch.float32}
    assert losses == pytest.approx(exact, rel=0.01)
    assert losses != exact
