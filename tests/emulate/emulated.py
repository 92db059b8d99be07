"""Common parts of the tests of emulated clusters: small clusters, and the folder of programs."""

from collections.abc import Callable
from pathlib import Path

from hetcomm.emulate import Cluster, Host, Nic, Result

PROGRAMS = Path(__file__).parent / "programs"
# play(cluster, program, *arguments, **options of run) -> result, prefixed output lines
RunProgram = Callable[..., tuple[Result, list[str]]]


def two_hosts(
    ranks: tuple[int, int] = (1, 1), nic: Nic | None = None, order: str = "block"
) -> Cluster:
    nics = (nic or Nic(),)
    return Cluster((Host("red0", ranks[0], nics), Host("blue0", ranks[1], nics)), order=order)
