"""Makes executors with 0, 1, ... free descriptors, until one succeeds."""

from __future__ import annotations

import os
import resource
import sys

from hetcomm import _core


def used() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # without the descriptor of the listing


def main(needed: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(needed + 1):
        before, error = used(), ""
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, limits[1]))
        try:
            _core.Executor.without_transport("none")
        except _core.TransportError as raised:
            error = str(raised)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert used() == before, spare
        assert ("Too many open files" in error) == (spare < needed), (spare, error)


if __name__ == "__main__":
    main(int(sys.argv[1]))
