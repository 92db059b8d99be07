"""An automatic codec that does not pay ends on all ranks, in processes and with device memory."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from communicators import results_of, run_ranks
from ranks import Job, logs, values
from slow_networks import profile
from vendors import environments

import hetcomm

SLOW = 1_000_000  # bytes per second, so that any processor is faster than the network
COUNT = 200_000
CALLS = 12


def random_bits(seed: int, rank: int, call: int) -> torch.Tensor:
    """Finite numbers with random exponents, which the codec does not make shorter."""
    generator = torch.Generator().manual_seed(1_000_000 * call + 1000 * seed + rank)
    bits = torch.randint(-(1 << 31), 1 << 31, (COUNT,), generator=generator, dtype=torch.int64)
    return (bits & 0xBFFFFFFF).to(torch.uint32).view(torch.float32)


def encoded_calls(
    rank: int, size: int, seed: int, group: dist.ProcessGroup | None = None
) -> tuple[list[int], list[str]]:
    """The calls that this rank encoded, from 1, and digests of the results."""
    encoded, digests = [], []
    for call in range(1, CALLS + 1):
        x = random_bits(seed, rank, call)
        with hetcomm.trace(group) as traces:
            dist.all_reduce(x, group=group)
        kinds = {span.kind for trace in traces for span in trace.spans}
        if "encode" in kinds:
            assert "decode" in kinds
            encoded.append(call)
        digests.append(blake2b(x.numpy().tobytes(), digest_size=8).hexdigest())
    return encoded, digests


def in_groups(rank: int, size: int, seed: int) -> list[list[int]]:
    """The calls that this rank encoded in the first group, and in a later one of all ranks."""
    first, _ = encoded_calls(rank, size, seed)
    later, _ = encoded_calls(rank, size, seed, dist.new_group())
    return [first, later]


@pytest.fixture
def slow(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Settings with which the cost model takes the network between these hosts for slow."""

    def make(hosts: str) -> dict[str, str]:
        topology = results_of(run_ranks(hosts, lambda communicator: communicator.topology))[0]
        file = tmp_path / "profile"
        file.write_text(profile(topology, SLOW))
        return {"HETCOMM_PROFILE": str(file), "HETCOMM_LOG_LEVEL": "info"}

    return make


@pytest.mark.parametrize(
    ("hosts", "vendors"),
    [
        ("ab", "cc"),
        ("aabb", "cccc"),
        pytest.param("ab", "na", marks=pytest.mark.needs("emulated vendors")),
        pytest.param("aabb", "nnaa", marks=pytest.mark.needs("emulated vendors")),
    ],
)
def test_a_codec_that_does_not_pay_ends_on_all_ranks(
    job: Callable[..., Job],
    slow: Callable[[str], dict[str, str]],
    seed: int,
    hosts: str,
    vendors: str,
) -> None:
    settings = slow(hosts)
    found = {}
    for codec in ("auto", "none"):
        each = [settings | own | {"HETCOMM_BRIDGE_CODEC": codec} for own in environments(vendors)]
        made = job(hosts, environments=each)
        found[codec] = values(made, encoded_calls, seed)
        lines = [line for text in logs(made) for line in text.splitlines() if "codec" in line]
        if codec == "none":
            assert not lines
            continue
        assert len(lines) == 1, lines
        assert "rank 0: codec lossless, all_reduce of float32 from 512 KiB: measured" in lines[0]
        assert lines[0].endswith("nothing is encoded from call 8 of that size on"), lines
    assert [calls for calls, _ in found["auto"]] == [list(range(1, 8))] * len(hosts)
    assert [calls for calls, _ in found["none"]] == [[]] * len(hosts)
    digests = {tuple(digest) for ranks in found.values() for _, digest in ranks}
    assert len(digests) == 1, f"seed {seed}: bits differ"


def test_a_new_group_begins_anew(
    job: Callable[..., Job], slow: Callable[[str], dict[str, str]], seed: int
) -> None:
    found = values(job("ab", environments=[slow("ab")] * 2), in_groups, seed)
    assert found == [[list(range(1, 8))] * 2] * 2


def test_plans_without_speeds_encode_nothing(
    job: Callable[..., Job], slow: Callable[[str], dict[str, str]], seed: int
) -> None:
    settings = slow("ab") | {"HETCOMM_DETERMINISTIC": "1"}
    found = values(job("ab", environments=[settings] * 2), encoded_calls, seed)
    assert [calls for calls, _ in found] == [[], []]
