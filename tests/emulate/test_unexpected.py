"""Messages that come before their receive take a bounded amount of the receiver's memory."""

import pytest
from emulated import RunProgram, two_hosts

MOST = 400 << 20  # bytes; the window is 256 MiB, and allocators keep some more


@pytest.mark.parametrize(
    ("messages", "size"),
    [(2, 1 << 30), (64, 32 << 20), (4000, 500_000)],
    ids=["huge", "large", "many"],
)
def test_memory_of_the_receiver_is_bounded(
    run_program: RunProgram, messages: int, size: int
) -> None:
    result, lines = run_program(two_hosts(), "unexpected.py", messages, size, timeout=500)
    assert result.ok, lines
    (line,) = lines
    assert line.endswith("right") and int(line.split()[-2]) < MOST, line
