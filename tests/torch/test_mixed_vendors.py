"""Process groups of ranks of different emulated vendors, where CPU tensors are device memory."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import pytest
import torch
import torch.distributed as dist
from collectives import COLLECTIVES, cases, ccl_has
from hostile import for_threads_at_a_time
from ranks import Job, launch, values
from test_asynchronous import PROGRAMS, run_programs, two_threads
from test_invalid import odd_but_legal, refuse
from test_training import train
from vendors import environments

import hetcomm
from hetcomm import _core

pytestmark = pytest.mark.needs("emulated vendors")

# Letters of hosts, and of vendors (n nvidia, a amd, c cpu): islands inside a host and over several,
# hosts of one vendor and of several, ranks in blocks and interleaved.
# Three layouts run all cases, the others a sample.
WHOLE = ("aann", "abnc", "aabbnnaa", "direct")
LAYOUTS = [
    ("a", "n"), ("aa", "nn"), ("ab", "nn"), ("aa", "na"), ("ab", "nc"), ("aabb", "nnaa"),
    ("abab", "nana"), ("aabbc", "nnaac"), ("abcab", "nacna"), ("aabbcc", "nnnaca"),
]  # fmt: skip


OF_ONE_THREAD = [program for program in PROGRAMS if program is not two_threads]


def run_cases(rank: int, size: int, seed: int, layout: str) -> tuple[list[str], dict[str, str]]:
    failures, digests = [], {}
    for case in filter(ccl_has, cases(seed, size, layout, whole=layout in WHOLE)):
        collective = COLLECTIVES[case.collective]
        inputs = case.inputs(size)
        got = collective.call(case, inputs[rank].clone(), rank, size, None)
        if difference := collective.expect(case, inputs, rank, size).difference(got):
            failures.append(f"rank {rank}, {case}: {difference}")
        if collective.same:
            digests[str(case)] = blake2b(got.view(torch.uint8).numpy().tobytes()).hexdigest()
    return failures, digests


def _job(job: Callable[..., Job], hosts: str, vendors: str, **settings: float) -> Job:
    return job(hosts, environments=environments(vendors), **settings)


@pytest.mark.parametrize(("hosts", "vendors"), LAYOUTS)
def test_every_collective_dtype_and_op_is_correct(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    results = values(_job(job, hosts, vendors, bound=250), run_cases, seed, hosts + vendors)
    failures = [failure for result in results for failure in result[0]]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])
    for _, digests in results[1:]:
        different = [name for name in digests if digests[name] != results[0][1][name]]
        assert not different, f"bits differ between ranks: {different}"


def test_every_collective_works_between_direct_and_staged_ends(
    job: Callable[..., Job], seed: int
) -> None:
    """Three ranks, each an island: two whose transport reaches their devices' memory, and one of
    the CPU. The two are direct with one another and stage with the third."""
    direct = {"HETCOMM_EMULATED_DIRECT": "1", "HETCOMM_DIRECT_BYTES": "0"}
    settings = [
        {**environment, **direct, "HETCOMM_ISLAND": f"island{rank}"}
        for rank, environment in enumerate(environments("nnc"))
    ]
    made = job("aaa", environments=settings, bound=250)
    results = values(made, run_cases, seed, "direct")
    failures = [failure for result in results for failure in result[0]]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])
    assert all(digests == results[0][1] for _, digests in results[1:])


def registered(rank: int, size: int) -> list[str]:
    """The errors of registering a tensor twice, and of deregistering it twice."""
    tensor = torch.full((1000,), rank + 1.0)
    errors = []
    for action in ("register", "register", "deregister", "deregister", "register"):
        try:
            getattr(hetcomm, f"{action}_buffer")(tensor)
        except hetcomm.Error as error:
            errors.append(str(error))
    dist.all_reduce(tensor)
    assert (tensor == size * (size + 1) / 2).all()
    return errors


def test_registered_buffers_are_used(job: Callable[..., Job]) -> None:
    both = values(_job(job, "aab", "nnc"), registered)
    for twice, unknown in both[:2]:
        assert "not registered yet" in twice and "the address of a registered buffer" in unknown
    assert len(both[2]) == 5 and "expected an island with a native library" in both[2][0]


def lacking(rank: int, size: int) -> str:
    try:
        dist.all_reduce(torch.ones(5, dtype=torch.int16))
    except _core.InvalidArgumentError as error:
        text = str(error)
    else:
        text = "accepted"
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)  # the group continues
    assert tensor[0] == size * (size - 1) / 2
    return text


def test_a_reduction_unsupported_by_one_vendor_is_rejected_everywhere(
    job: Callable[..., Job],
) -> None:
    for text in values(_job(job, "aab", "nnc"), lacking):
        assert "int16" in text, text


@pytest.mark.parametrize(("hosts", "vendors"), [("ab", "nc"), ("aabba", "nnaac")])
def test_programs_run_on_mixed_vendors(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    values(_job(job, hosts, vendors, bound=150), run_programs, seed, OF_ONE_THREAD)


@pytest.mark.parametrize(("hosts", "vendors"), [("ab", "nc"), ("aabba", "nnaac")])
def test_threads_use_a_group_each(
    job: Callable[..., Job], seed: int, hosts: str, vendors: str
) -> None:
    settings = [each | for_threads_at_a_time() for each in environments(vendors)]
    values(job(hosts, environments=settings, bound=150), two_threads, seed)


@pytest.mark.parametrize(("hosts", "vendors"), [("ab", "na"), ("abb", "nnc")])
def test_unusual_arguments_are_accepted_and_bad_ones_rejected(
    job: Callable[..., Job], hosts: str, vendors: str
) -> None:
    values(_job(job, hosts, vendors), odd_but_legal)
    assert not any(values(_job(job, hosts, vendors), refuse))


@pytest.mark.parametrize(("hosts", "vendors"), [("aabbc", "nnaac")])
def test_losses_equal_gloo(job: Callable[..., Job], hosts: str, vendors: str) -> None:
    for ours, theirs, _, difference in values(_job(job, hosts, vendors), train):
        assert ours == pytest.approx(theirs, rel=1e-5) and difference < 1e-5


def test_a_vendor_without_its_library_is_an_error_on_every_rank(job: Callable[..., Job]) -> None:
    settings = environments("nc")
    settings[0]["HETCOMM_CUDA_LIBRARY"] = "/nowhere/libcudart.so"
    outcomes = launch(job("ab", environments=settings, group_timeout=20), run_cases, 0, "ab")
    for outcome in outcomes:
        assert "Error" in outcome.error, outcome.describe()
        assert "/nowhere/libcudart.so" in outcome.text, outcome.text
    assert "VendorError" in outcomes[0].error and "rank 0" in outcomes[1].text, outcomes[1].text
