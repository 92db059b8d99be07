"""Refusals of the kernel, each with the remedy for its reason."""

import errno
import os

import pytest

from hetcomm.emulate import RefusedError
from hetcomm.emulate.error import refusal


@pytest.mark.parametrize(
    ("code", "got", "remedy"),
    [
        (errno.EPERM, "EPERM (Operation not permitted)", "be someone else"),
        (errno.EMFILE, "EMFILE (Too many open files)", "raise the limit of open files (ulimit -n)"),
        (errno.EAGAIN, "EAGAIN (", "raise the limit of processes (ulimit -u"),
        (errno.ENOMEM, "ENOMEM (", "free memory"),
    ],
)
def test_an_exhausted_resource_has_its_own_remedy(code: int, got: str, remedy: str) -> None:
    with (
        pytest.raises(RefusedError) as caught,
        refusal("red0", "the kernel to make namespaces", "be someone else"),
    ):
        raise OSError(code, os.strerror(code))
    error = caught.value
    assert error.got.startswith(got)
    assert error.remedy.startswith(remedy)
    assert str(error).startswith("red0: expected the kernel to make namespaces, got E")
