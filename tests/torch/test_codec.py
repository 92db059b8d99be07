"""A lossless codec between hosts changes no bit of any result."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import pytest
import torch
import torch.distributed as dist
from ranks import Job, launch, values
from vendors import environments as environments_of

import hetcomm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Below, at and above the least size of an encoded message and the size of its parts.
COUNTS = (1_000, 9_001, 300_007)
# The planner may prefer another algorithm with a codec, and so another order of additions.
SAME_ORDER = "all_reduce:0-inf=hierarchical_ring;reduce:0-inf=hierarchical_chain"


def inputs(seed: int, rank: int, count: int, dtype: torch.dtype, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    if kind == "numbers":
        return torch.randn(count, generator=generator).mul(1e-3).to(dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), generator=generator, dtype=torch.uint8).view(
        dtype
    )


def results(rank: int, size: int, seed: int) -> list[str]:
    """Digests of the outputs of this rank, by every collective."""
    found = []

    def note(name: str, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            digest = blake2b(tensor.view(torch.uint8).numpy().tobytes(), digest_size=8)
            found.append(f"{name} {digest.hexdigest()}")

    for dtype in DTYPES:
        for count in COUNTS:
            for kind in ("numbers", "bits"):
                name = f"{dtype} {count} {kind}"
                mine = inputs(seed, rank, count, dtype, kind)
                if kind == "numbers":
                    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX):
                        total = mine.clone()
                        dist.all_reduce(total, op)
                        note(f"all_reduce {op} {name}", total)
                    at_root = mine.clone()
                    dist.reduce(at_root, size - 1)
                    note(f"reduce {name}", *[at_root] * (rank == size - 1))
                    block = torch.empty(count // size, dtype=dtype)
                    dist.reduce_scatter_tensor(block, mine[: count // size * size])
                    note(f"reduce_scatter {name}", block)
                everything = torch.empty(size * count, dtype=dtype)
                dist.all_gather_into_tensor(everything, mine)
                note(f"all_gather {name}", everything)
                sent = mine.clone()
                dist.broadcast(sent, 1)
                note(f"broadcast {name}", sent)
                parts = [torch.empty_like(mine) for _ in range(size)]
                dist.gather(mine, parts if rank == 0 else None)
                note(f"gather {name}", *parts if rank == 0 else [])
                part = torch.empty_like(mine)
                dist.scatter(part, [mine + 0] * size if rank == 0 else None)
                note(f"scatter {name}", part)
                exchanged = torch.empty(count // size * size, dtype=dtype)
                dist.all_to_all_single(exchanged, mine[: count // size * size])
                note(f"all_to_all {name}", exchanged)
    return found


@pytest.mark.parametrize(
    ("layout", "vendors"),
    [
        ("ab", "cc"),
        ("abab", "cccc"),
        ("abbca", "ccccc"),
        pytest.param("abab", "nana", marks=pytest.mark.needs("emulated vendors")),
        pytest.param("abb", "ncc", marks=pytest.mark.needs("emulated vendors")),
    ],
)
def test_results_have_the_same_bits(
    job: Callable[..., Job], seed: int, layout: str, vendors: str
) -> None:
    """Devices of emulated vendors encode and decode in their own memory."""
    found = []
    for codec in ("none", "lossless"):
        settings = {"HETCOMM_BRIDGE_CODEC": codec}
        if len(set(layout)) > 2:
            settings["HETCOMM_SELECT"] = SAME_ORDER
        each = [settings | own for own in environments_of(vendors)]
        found.append(values(job(layout, environments=each), results, seed))
    for rank, (plain, encoded) in enumerate(zip(*found, strict=True)):
        assert plain == encoded, f"seed {seed}, rank {rank}"


def bytes_sent(rank: int, size: int) -> list[int]:
    """Bytes of messages that a trace shows, by codec."""
    found = []
    for codec in ("none", "int8", "int4", "int4:32:bf16"):
        with hetcomm.trace() as traces, hetcomm.codec(codec):
            dist.all_reduce(torch.randn(1 << 20))
        spans = [span for trace in traces for span in trace.spans if span.kind == "send"]
        found.append(sum(span.bytes for span in spans))
    return found


def test_a_trace_shows_the_bytes_of_encoded_messages(job: Callable[..., Job]) -> None:
    for plain, *encoded in values(job("ab"), bytes_sent):
        assert plain == 4 << 20
        assert [plain / each for each in encoded] == pytest.approx([3.94, 7.76, 7.11], abs=0.01)


def steps_between_hosts(rank: int, size: int) -> set[str]:
    with hetcomm.trace() as traces:
        dist.all_reduce(torch.randn(100_000))
    return {span.kind for trace in traces for span in trace.spans} & {"encode", "decode", "send"}


@pytest.mark.parametrize(
    ("codec", "steps"), [("none", {"send"}), ("lossless", {"encode", "decode", "send"})]
)
def test_the_setting_decides_on_encoding(
    job: Callable[..., Job], codec: str, steps: set[str]
) -> None:
    environments = [{"HETCOMM_BRIDGE_CODEC": codec}] * 2
    assert values(job("ab", environments=environments), steps_between_hosts) == [steps, steps]


def nothing(rank: int, size: int) -> None:
    pass


def test_different_codecs_are_an_error(job: Callable[..., Job]) -> None:
    environments = [{}, {"HETCOMM_BRIDGE_CODEC": "lossless"}, {}]
    for outcome in launch(job("aab", environments=environments), nothing):
        assert "HETCOMM_BRIDGE_CODEC differs: rank 0 has auto" in outcome.text, outcome.describe()
        assert "set the same on every rank" in outcome.text


def test_an_unknown_codec_is_an_error(job: Callable[..., Job]) -> None:
    environments = [{"HETCOMM_BRIDGE_CODEC": "zip"}] * 2
    for outcome in launch(job("ab", environments=environments), nothing):
        expected = "HETCOMM_BRIDGE_CODEC: unknown codec: expected one of none, auto, lossless, "
        assert expected in outcome.text, outcome.describe()
