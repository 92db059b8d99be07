"""Paths of messages between ranks, found by sending some: `hetcomm topo --paths`."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from hetcomm import _core

MESSAGE_SECONDS = 60.0  # a slower path is broken
PAIRS_SHOWN = 8  # of ranks, in a row


def connect(
    store: _core.Store, rank: int, size: int, timeout: float
) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Connects all ranks. Returns probe_paths() and `Topology.unreachable`. Raises Error."""
    communicator = _core.Communicator(store, rank, size, timeout, "topo", vendor="cpu")
    try:
        return probe_paths(communicator), communicator.topology.unreachable
    finally:
        communicator.leave()


def probe_paths(communicator: _core.Communicator) -> list[str]:
    """The path to each rank, after a message both ways; empty for this rank. Called by all ranks,
    on host memory."""
    ranks = range(communicator.size)
    others = [rank for rank in ranks if rank != communicator.rank]
    byte = _core.Dtype.uint8
    works = [communicator.recv(bytearray(1), byte, peer) for peer in others]
    works += [communicator.send(bytearray(1), byte, peer) for peer in others]
    for work in works:
        work.wait(MESSAGE_SECONDS)
    return [communicator.path_to(rank) if rank in others else "" for rank in ranks]


def path_table(paths: list[list[str]]) -> Table:
    """One row per path, for all its pairs of ranks."""
    table = Table(title="Paths taken", title_justify="left")
    for column in ("path", "from rank - to rank"):
        table.add_column(column)
    alike: dict[str, list[str]] = {}
    for rank, row in enumerate(paths):
        for peer, path in enumerate(row):
            if peer != rank:
                alike.setdefault(path, []).append(f"{rank} - {peer}")
    for path, pairs in sorted(alike.items()):
        more = f" and {len(pairs) - PAIRS_SHOWN} more" if len(pairs) > PAIRS_SHOWN else ""
        table.add_row(escape(path), ", ".join(pairs[:PAIRS_SHOWN]) + more)
    return table
