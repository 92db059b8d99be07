"""A codec for each level, in jobs of one host and of two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, values

import hetcomm

COUNT = 300_007
LEVELS = "cluster=int4,host=int8:64:bf16"
BOUND = {"int4": 14, "int8:64:bf16": 252}  # shares of the largest element of a group


def islands(labels: str, **setting: str) -> list[dict[str, str]]:
    """The environment of each rank, from the letter of its island."""
    return [{"HETCOMM_ISLAND": label, **setting} for label in labels]


def sums(rank: int, size: int, codec: str) -> tuple[float, bool, int]:
    """The largest error of two sums as a share of their largest element, whether all ranks have the
    same bits, and the bytes that this rank sent for both."""
    parts = torch.randn(size, COUNT, generator=torch.Generator().manual_seed(7))
    feedback, total, sent = hetcomm.Feedback(), parts[rank].clone(), 0
    for _ in range(2):
        total = parts[rank].clone()
        with hetcomm.trace() as traces, hetcomm.codec(codec, feedback=feedback, key="x"):
            dist.all_reduce(total)
        spans = [span for trace in traces for span in trace.spans if span.kind == "send"]
        sent += sum(span.bytes for span in spans)
    everything = [torch.empty_like(total) for _ in range(size)]
    dist.all_gather(everything, total)
    exact = parts.double().sum(dim=0)
    error = (total.double() - exact).abs().max() / parts.abs().sum(dim=0).max()
    alike = all(torch.equal(each, total) for each in everything)
    return error.item(), alike, sent


@pytest.mark.parametrize(
    ("hosts", "labels", "codec"),
    [("aa", "xy", "int8:64:bf16"), ("aaaa", "xyxy", "int8:64:bf16"), ("abab", "xyxy", "int4")],
)
def test_the_codec_of_the_level_rounds_and_ranks_agree(
    job: Callable[..., Job], hosts: str, labels: str, codec: str
) -> None:
    here = job(hosts, environments=islands(labels))
    found = values(here, sums, LEVELS)
    for error, alike, _ in found:
        assert 0 < error < 3 * 2 / BOUND[codec]
        assert alike
    alone = codec if len(set(hosts)) > 1 else f"host={codec}"
    assert [sent for _, _, sent in found] == [
        sent for _, _, sent in values(job(hosts, environments=islands(labels)), sums, alone)
    ]


def exact_sums(rank: int, size: int) -> tuple[bool, bool]:
    """Whether sums are exact in the default group, and in groups of the ranks of one host."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    given = torch.linspace(0, 1, COUNT)
    total, inside = given.clone(), given.clone()
    dist.all_reduce(total)
    dist.all_reduce(inside, group=groups[rank // 2])
    return torch.equal(total, size * given), torch.equal(inside, 2 * given)


@pytest.mark.parametrize(
    ("setting", "exact"),
    [
        ("cluster=int8,host=bf16", (False, False)),
        ("host=bf16", (True, False)),
        ("int8", (False, True)),
    ],
)
def test_groups_of_a_job_take_the_codec_of_their_level(
    job: Callable[..., Job], setting: str, exact: tuple[bool, bool]
) -> None:
    here = job("aabb", environments=islands("wxyz", HETCOMM_BRIDGE_CODEC=setting))
    assert values(here, exact_sums) == [exact] * 4


def unlike_levels(rank: int, size: int) -> None:
    with hetcomm.codec("cluster=int8,host=bf16" if rank == 0 else "cluster=int8,host=fp16"):
        dist.all_reduce(torch.ones(100_000))


def test_unlike_levels_are_an_error_on_every_rank(job: Callable[..., Job]) -> None:
    here = job("aa", environments=islands("xy"), group_timeout=20)
    for outcome in launch(here, unlike_levels):
        assert "InvalidArgumentError" in outcome.error, outcome.describe()
        assert "codec cluster=int8,host=" in outcome.text, outcome.describe()


def nothing(rank: int, size: int) -> None:
    pass


def test_an_unknown_level_is_an_error(job: Callable[..., Job]) -> None:
    here = job("ab", environments=islands("xy", HETCOMM_BRIDGE_CODEC="rack=int8"))
    for outcome in launch(here, nothing):
        expected = 'HETCOMM_BRIDGE_CODEC: codec "rack=int8": expected the levels cluster and host'
        assert expected in outcome.text, outcome.describe()
