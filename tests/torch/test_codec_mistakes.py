"""Mistakes with codecs: an error or a warning on every rank, never a hang or wrong weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, logs, refusal, values
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from vendors import environments

import hetcomm
import hetcomm.functional
import hetcomm.hooks


def residual_of_another_size(rank: int, size: int) -> None:
    feedback = hetcomm.Feedback()
    count = 5 if rank == 0 else 100_000
    feedback.add("w/0", torch.zeros(count).numpy())
    with hetcomm.codec("int8", feedback=feedback, key="w"):
        dist.all_reduce(torch.ones(100_000))


def test_other_ranks_hear_of_a_refused_residual(job: Callable[..., Job]) -> None:
    first, second = launch(job("ab", group_timeout=50), residual_of_another_size)
    assert 'feedback "w/0": expected a tensor of 5 elements' in first.text, first.describe()
    assert "TimeoutError" not in second.error, second.describe()
    assert "refused there: feedback" in second.text, second.describe()


def inside_the_coalescing_manager(rank: int, size: int) -> str:
    tensor = torch.ones(100_000)

    def call() -> None:
        with dist.distributed_c10d._coalescing_manager():
            dist.all_reduce(torch.ones(8))
            hetcomm.functional.all_reduce(tensor, codec="int8")

    return refusal(call)


def test_a_call_that_torch_would_start_later_is_refused(job: Callable[..., Job]) -> None:
    for text in values(job("ab"), inside_the_coalescing_manager):
        assert "inside torch's coalescing manager" in text


def sparse_sums(rank: int, size: int) -> tuple[str, bool]:
    def sparse() -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.tensor([1.0]), (4,))

    with hetcomm.codec("lossless"):
        total = sparse()
        dist.all_reduce(total)
    with hetcomm.codec("int8"):
        text = refusal(lambda: dist.all_reduce(sparse()))
    return text, total.to_dense().tolist() == [1.0] * size + [0.0] * (4 - size)


def test_sparse_tensors_have_no_lossy_codec(job: Callable[..., Job]) -> None:
    for text, right in values(job("ab"), sparse_sums):
        assert "codec int8, which is for dense tensors" in text
        assert right


def hook_without_a_group(rank: int, size: int) -> tuple[str, float]:
    groups = [dist.new_group([each]) for each in range(size)]
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=groups[rank])
    model.register_comm_hook(hetcomm.hooks.compressed("int8"), hetcomm.hooks.average)

    def backward() -> None:
        model(torch.ones(1, 1)).backward()

    text = refusal(backward)
    other = DistributedDataParallel(nn.Linear(1, 1, bias=False), process_group=groups[rank])
    hook = hetcomm.hooks.compressed("int8", group=groups[rank])
    other.register_comm_hook(hook, hetcomm.hooks.average)
    other(torch.full((1, 1), float(rank))).backward()
    gradient = other.module.weight.grad
    assert gradient is not None
    return text, gradient.item()


def test_a_hook_needs_the_group_of_its_model(job: Callable[..., Job]) -> None:
    for rank, (text, gradient) in enumerate(values(job("ab"), hook_without_a_group)):
        assert "pass the group, or call register(model)" in text
        assert gradient == rank, "averaged over ranks of another group"


def options_without_a_codec(rank: int, size: int) -> bool:
    given = torch.linspace(0, 1, 100_000)
    dist.all_reduce(given, group=dist.new_group(pg_options=hetcomm.Options()))
    return torch.equal(given, size * torch.linspace(0, 1, 100_000))


def test_options_without_a_codec_leave_that_of_the_job(job: Callable[..., Job]) -> None:
    for codec, exact in (("none", True), ("int8", False)):
        job_of_codec = job("ab", environments=[{"HETCOMM_BRIDGE_CODEC": codec}] * 2)
        assert values(job_of_codec, options_without_a_codec) == [exact] * 2


def lossy_updates(rank: int, size: int) -> tuple[str, str]:
    def attempt(**settings: object) -> str:
        model = nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return refusal(lambda: hetcomm.partition(model, optimizer, **settings))  # type: ignore[arg-type]

    codecs = {"updates": "int8"}
    return attempt(codecs=codecs), attempt(codecs=codecs, dtype=torch.bfloat16)


def test_a_lossy_codec_of_float32_updates_is_refused(job: Callable[..., Job]) -> None:
    for text, allowed in values(job("ab"), lossy_updates):
        assert "expected a lossless codec of updates of float32 weights" in text
        assert allowed == "no error"


def rounded(rank: int, size: int) -> bool:
    given = torch.linspace(0, 1, 100_000)
    dist.all_reduce(given)
    return not torch.equal(given, size * torch.linspace(0, 1, 100_000))


@pytest.mark.needs("emulated vendors")
def test_an_island_over_hosts_warns_that_the_codec_is_not_used(job: Callable[..., Job]) -> None:
    setting = {"HETCOMM_BRIDGE_CODEC": "int8"}
    whole = job("ab", environments=[each | setting for each in environments("nn")])
    assert values(whole, rounded) == [False, False]
    assert "codec int8 encodes nothing inside the island of ranks 0, 1" in "\n".join(logs(whole))
    cut = [
        each | setting | {"HETCOMM_ISLAND": label}
        for each, label in zip(environments("nn"), "ab", strict=True)
    ]
    assert values(job("ab", environments=cut), rounded) == [True, True]
