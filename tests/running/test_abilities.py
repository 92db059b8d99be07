"""Some refusals of a kernel are a lack of an ability; all others are errors of the probe."""

from __future__ import annotations

import subprocess

import kernel_abilities
import pytest

MASKED = "red0: expected the kernel to mount a new /proc, got EPERM (Operation not permitted)"


def refused(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    done = subprocess.CompletedProcess([], 77, "\n".join(lines) + "\n", "")
    monkeypatch.setattr(kernel_abilities, "_two_hosts", lambda: done)


@pytest.mark.parametrize(
    ("refusal", "got"),
    [
        ("namespaces", "EPERM (Operation not permitted)"),
        ("masked", "EROFS (Read-only file system)"),
    ],
)
def test_a_machine_that_forbids_emulated_clusters_lacks_them(
    monkeypatch: pytest.MonkeyPatch, refusal: str, got: str
) -> None:
    refused(monkeypatch, refusal, got, MASKED)
    assert kernel_abilities.namespaces() == MASKED


@pytest.mark.parametrize(
    ("refusal", "got"),
    [("namespaces", "EMFILE (Too many open files)"), ("red0", "EPERM (Operation not permitted)")],
)
def test_any_other_refusal_is_an_error(
    monkeypatch: pytest.MonkeyPatch, refusal: str, got: str
) -> None:
    refused(monkeypatch, refusal, got, "words")
    with pytest.raises(RuntimeError, match="expected a refusal to make namespaces; got words"):
        kernel_abilities.namespaces()
