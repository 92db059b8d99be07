"""Every parser of outside bytes refuses changed inputs with its own error, and never crashes."""

from __future__ import annotations

import os
import struct

import pytest
from fuzz import run
from mutation import mutated
from targets import Target, targets

from hetcomm import _core

FUZZED = int(os.environ.get("HETCOMM_TEST_FUZZED", "2000"))  # inputs of each target


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name.replace(" ", "-"))
def test_changed_inputs_are_refused(target: Target, seed: int) -> None:
    outcome = run(target, FUZZED, seed)
    assert not outcome.failure, outcome.failure
    assert outcome.inputs == FUZZED


# A greeting carries a seal of the group, so no sample of one is good.
@pytest.mark.parametrize(
    "target",
    [each for each in targets() if each.name != "greeting"],
    ids=lambda target: target.name.replace(" ", "-"),
)
def test_samples_are_good_inputs(target: Target) -> None:
    """Otherwise the changes would not reach beyond the first check."""
    accepted = 0
    for sample in target.samples():
        try:
            target.parse(sample)
            accepted += 1
        except target.errors:
            pass
    assert accepted > 0


def test_every_record_has_a_target() -> None:
    assert set(_core.record_kinds()) <= {target.name for target in targets()}


def test_inputs_can_be_made_again() -> None:
    samples = [b"one sample", b"another"]
    assert mutated(3, "x", 7, samples) == mutated(3, "x", 7, samples)
    made = {mutated(3, "x", number, samples) for number in range(100)}
    assert len(made) > 90


def broken(data: bytes) -> None:
    """A parser that trusts the length of its text."""
    if len(data) > 12:
        struct.unpack("<8s8s", data)


def crashing(data: bytes) -> None:
    if data.startswith(b"x"):
        os.abort()


@pytest.mark.parametrize(
    ("parse", "text"), [(broken, "struct.error"), (crashing, "the process ended with status -6")]
)
def test_a_broken_parser_is_found(parse: object, text: str) -> None:
    target = Target("broken", lambda: [b"x sample", b"sample x"], parse)  # type: ignore[arg-type]
    outcome = run(target, 1000, 1)
    assert text in outcome.failure and "of seed 1: b'" in outcome.failure
