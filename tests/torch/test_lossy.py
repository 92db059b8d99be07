"""Lossy codecs between hosts: errors within bounds, the same bits on all ranks, error feedback."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import emulated_device
import pytest
import torch
import torch.distributed as dist
from ranks import Job, check_texts, launch, refusal, values
from vendors import environments

import hetcomm

COUNT = 300_007
# The error is at most the largest element of a group over this.
STEPS = {"int8": 254, "int4": 14, "int8:64:bf16": 252}


def inputs(seed: int, ranks: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """What each rank gives: normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=generator).to(dtype) for _ in range(ranks)]


def islands(hosts: str) -> list[list[int]]:
    names = sorted(set(hosts))
    return [[rank for rank, host in enumerate(hosts) if host == name] for name in names]


def bound(parts: list[torch.Tensor], hosts: str, codec: str, scale: float = 1) -> float:
    """The most that an element of a sum may be off: each island's sum and the total are rounded."""
    sums = [sum(parts[rank].double() for rank in members) for members in islands(hosts)]
    largest = sum(each.abs().max().item() for each in sums)
    rounded = 2**-8 if parts[0].dtype == torch.bfloat16 else 2**-10
    return scale * largest * (2.02 / STEPS[codec] + 4 * rounded)


def digest(tensor: torch.Tensor) -> int:
    return hash(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def lossy_results(
    rank: int, size: int, seed: int, hosts: str, codec: str, dtype: torch.dtype
) -> dict[str, Any]:
    """The largest errors over their bounds, and digests of results that all ranks have."""
    parts = inputs(seed, size, COUNT, dtype)
    exact = sum(part.double() for part in parts)
    limit = bound(parts, hosts, codec)
    found: dict[str, Any] = {}

    def note(name: str, result: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
        found[name] = ((result.double() - wanted).abs().max().item() / limit, digest(result))

    with hetcomm.codec(codec):
        total = parts[rank].clone()
        dist.all_reduce(total)
        note("all_reduce", total, exact, limit)
        average = parts[rank].clone()
        dist.all_reduce(average, dist.ReduceOp.AVG)
        note("average", average, exact / size, limit / size)
        again = parts[rank].clone()
        dist.all_reduce(again)
        assert torch.equal(again, total), "the same call gave other bits"
        at_root = parts[rank].clone()
        dist.reduce(at_root, 1)
        block = COUNT // size
        mine = torch.empty(block, dtype=dtype)
        dist.reduce_scatter_tensor(mine, parts[rank][: block * size])
        everything = torch.empty(size * COUNT, dtype=dtype)
        dist.all_gather_into_tensor(everything, parts[rank])
    # These differ between ranks.
    reduced = (at_root.double() - exact).abs().max().item() / limit if rank == 1 else 0
    here = slice(rank * block, (rank + 1) * block)
    scattered = (mine.double() - exact[here]).abs().max().item() / limit
    gathered = torch.cat(parts).double()
    largest = gathered.abs().max().item() * (1.02 / STEPS[codec] + 2**-8)
    note("all_gather", everything, gathered, largest)
    found["lossy"] = bool((total.double() - exact).abs().max() > 1e-4)
    found["alone"] = max(reduced, scattered)
    return found


def check_results(found: list[dict[str, Any]], seed: int) -> None:
    for name in ("all_reduce", "average", "all_gather"):
        errors, digests = zip(*(each[name] for each in found), strict=True)
        assert max(errors) <= 1, f"seed {seed}, {name}: {errors}"
        assert len(set(digests)) == 1, f"seed {seed}, {name}: ranks have different bits"
    assert max(each["alone"] for each in found) <= 1, f"seed {seed}"
    assert all(each["lossy"] for each in found), "the codec did nothing"


@pytest.mark.parametrize("codec", STEPS)
@pytest.mark.parametrize("hosts", ["ab", "abab", "aabb", "abbca", "abcd"])
def test_results_are_within_the_bound_and_equal_on_all_ranks(
    job: Callable[..., Job], seed: int, hosts: str, codec: str
) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        found = values(job(hosts), lossy_results, seed, hosts, codec, dtype)
        check_results(found, seed)


def not_finite(rank: int, size: int) -> list[bool]:
    given = torch.ones(100_000)
    if rank == 0:
        given[10_000], given[60_000] = float("nan"), float("inf")
    with hetcomm.codec("int8"):
        dist.all_reduce(given)
    wanted = torch.full_like(given, size)
    changed = (given - wanted).abs().nan_to_num(1, 1) > 0.1
    return [
        not given[10_000].isfinite().item(),
        not given[60_000].isfinite().item(),
        int(changed.sum()) <= 512,
    ]


def test_nan_and_infinity_stay_visible(job: Callable[..., Job]) -> None:
    assert values(job("aabb"), not_finite) == [[True] * 3] * 4


@pytest.mark.needs("emulated vendors")
@pytest.mark.parametrize(("hosts", "vendors"), [("aabb", "nnaa"), ("abab", "nana"), ("abc", "nac")])
def test_values_in_device_memory_are_rounded_alike(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    mixed = job(hosts, environments=environments(vendors))
    found = values(mixed, lossy_results, seed, hosts, "int8", torch.float32)
    check_results(found, seed)
    for without, with_feedback, _, _ in values(mixed, mean_errors, seed):
        assert with_feedback < without / 15, f"seed {seed}"


CODECS = (
    *("int8", "int4", "int8:32", "int4:2048", "fp8_e4m3", "fp8_e5m2", "bf16", "fp16"),
    *("int8:bf16", "int4:32:bf16", "fp8_e4m3:64:bf16", "topk:0.3"),
)


def digests(rank: int, size: int, seed: int) -> list[str]:
    """Of all results and residuals."""
    found = []
    feedback = hetcomm.Feedback()
    for codec in CODECS:
        dtypes = (torch.float32, torch.bfloat16, torch.float16)
        for dtype in dtypes[: 1 if codec in ("bf16", "fp16") else 3]:
            parts = inputs(seed, size, COUNT, dtype)
            parts[-1][5::70_000] = float("inf")
            parts[0][::50_000] = float("nan")
            block = torch.empty(COUNT // size, dtype=dtype)
            everything = torch.empty(size * COUNT, dtype=dtype)
            for kept in (None, feedback):
                with hetcomm.codec(codec, feedback=kept, key="of all codecs"):
                    total = parts[rank].clone()
                    dist.all_reduce(total)
                    dist.reduce_scatter_tensor(block, parts[rank][: block.numel() * size])
                    average = parts[rank].clone()
                    dist.all_reduce(average, dist.ReduceOp.AVG)
                found += [fingerprint(each.view(torch.uint8)) for each in (total, block, average)]
            with hetcomm.codec(codec):
                dist.all_gather_into_tensor(everything, parts[rank])
            found.append(fingerprint(everything.view(torch.uint8)))
        found += [fingerprint(torch.from_numpy(each)) for each in feedback.views().values()]
    return found


def fingerprint(tensor: torch.Tensor) -> str:
    return blake2b(tensor.numpy().tobytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.needs("emulated vendors")
@pytest.mark.parametrize(("hosts", "vendors"), [("aabb", "nnaa"), ("abab", "nana"), ("abc", "nac")])
def test_devices_and_hosts_encode_with_the_same_bits(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    """Kernels on all devices, on none, and on some."""
    results = []
    for kernels in ("1" * len(hosts), "0" * len(hosts), "0110"[: len(hosts)]):
        found = environments(vendors)
        for environment, enabled in zip(found, kernels, strict=True):
            environment["HETCOMM_KERNELS"] = enabled
        results.append(values(job(hosts, environments=found), digests, seed))
    assert results[0] == results[1], f"seed {seed}: hosts have other bits"
    assert results[0] == results[2], f"seed {seed}: some devices have other bits"


@pytest.mark.needs("emulated vendors")
def test_residuals_in_device_memory_are_saved_and_restored(
    job: Callable[..., Job], seed: int
) -> None:
    mixed = job("abab", environments=environments("nana"))
    assert values(mixed, resumed, seed) == [True] * 4
    for _, _, held, keys in values(mixed, mean_errors, seed):
        assert (held, keys) == (400_000, ["weights/0"])


def copied(rank: int, size: int) -> list[int]:
    """Bytes copied between device memory and staging by a sum of 4 MiB, for each codec."""
    found = []
    for codec in ("none", *CODECS):
        with hetcomm.trace() as traces, hetcomm.codec(codec):
            dist.all_reduce(torch.ones(1 << 20))
        found.append(sum(span.bytes for trace in traces for span in trace.spans if span.staging))
    return found


@pytest.mark.needs("emulated vendors")
@pytest.mark.parametrize("kernels", ["1", "0"])
def test_only_encoded_bytes_of_devices_are_copied(job: Callable[..., Job], kernels: str) -> None:
    found = [{**each, "HETCOMM_KERNELS": kernels} for each in environments("na")]
    for plain, *encoded in values(job("ab", environments=found), copied):
        assert plain == 8 << 20  # out and in
        if kernels == "1":
            assert all(each < plain * 0.51 for each in encoded)
        else:
            assert encoded == [plain] * len(encoded)


def prepare() -> None:
    emulated_device.load()


def on_late_streams(rank: int, size: int, seed: int) -> list[str]:
    """Sums of tensors that the device fills late, and what its stream computes from the sums."""
    home = "cpu" if os.environ["HETCOMM_VENDOR"] == "cpu" else emulated_device.NAME
    parts = inputs(seed, size, COUNT, torch.float32)
    feedback = hetcomm.Feedback()
    found = []
    for step in range(3):
        if home != "cpu":
            emulated_device.load().delay(40 * (rank + 1))
        total = parts[rank].to(home) * (step + 1)
        with hetcomm.codec("int4", feedback=feedback, key="w"):
            work = dist.all_reduce(total, async_op=True)
        work.wait()
        found.append(fingerprint((total * 2).cpu()))
        if step == 1:
            feedback.load_state_dict(feedback.state_dict())
    return found


@emulated_device.needed[0]
@emulated_device.needed[1]
@pytest.mark.parametrize(("hosts", "vendors"), [("aabb", "nnaa"), ("ab", "nc")])
def test_codecs_wait_for_streams(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    emulated_device.build()
    backend = f"cpu:hetcomm,{emulated_device.NAME}:hetcomm"
    results = []
    for kernels in ("1", "0"):
        found = [{**each, "HETCOMM_KERNELS": kernels} for each in environments(vendors)]
        made = job(hosts, environments=found, prepare=prepare, backend=backend)
        results += values(made, on_late_streams, seed)
    assert all(result == results[0] for result in results), f"seed {seed}"


def mean_errors(rank: int, size: int, seed: int) -> tuple[float, float, int, list[str]]:
    """The error of the mean of 40 sums of the same gradients, without and with feedback."""
    parts = inputs(seed, size, 100_000, torch.float32)
    exact = sum(parts)
    found = []
    feedback = hetcomm.Feedback()
    for kept in (None, feedback):
        mean = torch.zeros_like(exact)
        for _ in range(40):
            total = parts[rank].clone()
            with hetcomm.codec("int4", feedback=kept, key="weights"):
                dist.all_reduce(total)
            mean += total / 40
        found.append(((mean - exact).norm() / exact.norm()).item())
    return found[0], found[1], feedback.bytes(), list(feedback.state_dict())


@pytest.mark.parametrize("hosts", ["ab", "abab", "abc"])
def test_feedback_makes_up_for_losses(job: Callable[..., Job], seed: int, hosts: str) -> None:
    for without, with_feedback, held, keys in values(job(hosts), mean_errors, seed):
        assert without > 0.05
        assert with_feedback < without / 15, f"seed {seed}"
        assert (held, keys) == (400_000, ["weights/0"])


def resumed(rank: int, size: int, seed: int) -> bool:
    """Whether training goes on with the same bits from a saved state."""
    parts = inputs(seed, size, 50_000, torch.float32)

    def steps(feedback: hetcomm.Feedback, number: int) -> torch.Tensor:
        for _ in range(number):
            total = parts[rank].clone()
            with hetcomm.codec("int8", feedback=feedback, key="w"):
                dist.all_reduce(total)
        return total

    first = hetcomm.Feedback()
    steps(first, 3)
    state = first.state_dict()
    wanted = steps(first, 2)
    second = hetcomm.Feedback()
    second.load_state_dict(state)
    fresh = steps(hetcomm.Feedback(), 2)
    return torch.equal(steps(second, 2), wanted) and not torch.equal(fresh, wanted)


def test_feedback_resumes_from_a_saved_state(job: Callable[..., Job], seed: int) -> None:
    assert values(job("abab"), resumed, seed) == [True] * 4


def group_with_options(rank: int, size: int) -> list[bool]:
    """Whether sums are rounded in a group with a codec, and in the default group."""
    options = hetcomm.Options(bridge_codec="int8")
    group = dist.new_group(pg_options=options)
    found = []
    for each in (group, None):
        given = torch.linspace(0, 1, 100_000)
        dist.all_reduce(given, group=each)
        found.append(not torch.equal(given, size * torch.linspace(0, 1, 100_000)))
    return found


def test_a_group_has_its_own_codec(job: Callable[..., Job]) -> None:
    assert values(job("abab"), group_with_options) == [[True, False]] * 4


def unlike_codecs(rank: int, size: int, first: str, other: str) -> None:
    with hetcomm.codec(first if rank == 0 else other):
        dist.all_reduce(torch.ones(100_000))


@pytest.mark.parametrize("hosts", ["ab", "aab"])
@pytest.mark.parametrize(("first", "other"), [("int8", "int4"), ("int8:64", "int8:64:bf16")])
def test_unlike_codecs_are_an_error_on_every_rank(
    job: Callable[..., Job], hosts: str, first: str, other: str
) -> None:
    for outcome in launch(job(hosts, group_timeout=20), unlike_codecs, first, other):
        assert "InvalidArgumentError" in outcome.error, outcome.describe()
        assert re.search("ranks disagree|both ranks must agree", outcome.text), outcome.text
        assert re.search("codec int[48]", outcome.text), outcome.describe()


def refused(rank: int, size: int) -> list[str]:
    found = []

    def note(call: Callable[[], object]) -> None:
        found.append(refusal(call))

    feedback = hetcomm.Feedback()
    with hetcomm.codec("int8", feedback=feedback, key="a"):
        dist.all_reduce(torch.ones(10))
    note(lambda: hetcomm.codec("int8:100"))
    note(lambda: hetcomm.codec("int8:64:fp16"))
    note(lambda: hetcomm.codec("zip"))
    note(lambda: hetcomm.Options(bridge_codec="zip"))
    note(lambda: feedback.load_state_dict({"a/0": torch.ones(10, dtype=torch.float64).numpy()}))
    dist.all_reduce(torch.ones(10))
    return found


def test_bad_input_is_refused_and_the_group_goes_on(job: Callable[..., Job]) -> None:
    texts = [
        'codec "int8:100": expected elements with one scale, a power of two from 32 to 2048',
        'codec "int8:64:fp16": expected .* the type of the scale, fp32 or bf16, or both',
        'unknown codec: expected one of none, auto, lossless, .*; got "zip"',
        'unknown codec: expected one of none, auto, lossless, .*; got "zip"',
        'feedback "a/0": expected float32, got float64',
    ]
    check_texts(values(job("ab"), refused), texts)
