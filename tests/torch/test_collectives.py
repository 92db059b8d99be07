"""Every collective, dtype and operation, against a float64 oracle and gloo.

Up to four ranks run every dtype, more ranks the common ones. Three layouts run all cases, the
others a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import oracle
import pytest
import torch
import torch.distributed as dist
from collectives import COLLECTIVES, Case, Group, cases
from ranks import Job, values

# One letter per rank. Ranks with the same letter share memory, others talk over TCP.
LAYOUTS = [
    "a", "aa", "ab", "aaa", "abb", "aba", "abc", "aaaa", "abbb", "aabb", "abab", "abcd",
    "aabba", "abbca", "aaaaaaaa", "aaabbbbb", "abababab", "babbabca", "aabbbcccc", "cbacbacbc",
]  # fmt: skip
# gloo's results do not depend on the layout, so one layout of every size compares with gloo.
WITH_GLOO = {"a", "ab", "abb", "abab", "aabba", "babbabca"}
# One island, two, and three of unequal sizes.
WHOLE = {"aaa", "abab", "babbabca"}
# gloo rejects unequal sizes in a list on the ranks that see them, while other ranks wait.
NOT_IN_GLOO = {"all_to_all"}
# Larger groups use the same code, which knows sizes of elements, not dtypes.
RANKS_OF_EVERY_DTYPE = 4


def _attempt(
    case: Case, x: torch.Tensor, rank: int, size: int, group: Group
) -> torch.Tensor | None:
    """gloo's result; None if gloo lacks the dtype or operation (on every rank alike)."""
    try:
        return COLLECTIVES[case.collective].call(case, x, rank, size, group)
    except (RuntimeError, ValueError, TypeError):
        return None


def run_cases(rank: int, size: int, seed: int, layout: str, gloo: bool) -> dict[str, Any]:
    group = dist.new_group(backend="gloo") if gloo else None
    failures: list[str] = []
    digests: dict[str, str] = {}
    asked: list[str] = []
    dtypes = oracle.EVERY_DTYPE if size <= RANKS_OF_EVERY_DTYPE else oracle.DTYPES
    played = cases(seed, size, layout, dtypes, layout in WHOLE)
    for index, case in enumerate(played):
        collective = COLLECTIVES[case.collective]
        inputs = case.inputs(size)
        got = collective.call(case, inputs[rank].clone(), rank, size, None)
        expected = collective.expect(case, inputs, rank, size)
        if difference := expected.difference(got):
            failures.append(f"rank {rank}, {case}: {difference}")
        if collective.same:
            digests[str(case)] = blake2b(got.view(torch.uint8).numpy().tobytes()).hexdigest()
        # gloo adds booleans as bytes, and rejects empty tensors on some ranks only.
        if group is None or case.count == 0 or case.dtype == torch.bool:
            continue
        if case.collective in NOT_IN_GLOO:
            continue
        if size > 5 and index % 4:  # gloo takes 40 ms a call if ranks outnumber cores
            continue
        theirs = _attempt(case, inputs[rank].clone(), rank, size, group)
        if theirs is None:
            continue
        asked.append(str(case))
        expected.values = theirs.to(expected.values.dtype)
        if difference := expected.difference(got, slack=2):
            failures.append(f"rank {rank}, {case}, against gloo: {difference}")
    return {"failures": failures, "digests": digests, "cases": len(played), "gloo": asked}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_collective_dtype_and_op_is_correct(
    job: Callable[..., Job], seed: int, layout: str
) -> None:
    results = values(job(layout, bound=200), run_cases, seed, layout, layout in WITH_GLOO)
    failures = [failure for result in results for failure in result["failures"]]
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:40])
    for result in results[1:]:
        different = [
            name
            for name, digest in results[0]["digests"].items()
            if result["digests"][name] != digest
        ]
        assert not different, f"bits differ between ranks: {different}"
        assert result["gloo"] == results[0]["gloo"], "gloo answered some ranks only"
    if layout in WITH_GLOO:
        few = 40 if layout in WHOLE else 10
        assert len(results[0]["gloo"]) > few, "gloo answered hardly any case"
    print(f"{layout}: {results[0]['cases']} calls, {len(results[0]['gloo'])} compared with gloo")
