"""A profile for people."""

from __future__ import annotations

from rich.table import Table

from hetcomm import _core
from hetcomm.bench.table import number_table, output


def show(profile: _core.Profile) -> None:
    """Prints tables of islands and messages, and a line for each host."""
    console = output()
    for members, ranks, cores, curves in profile.islands:
        title = f"Island of {members}, of {ranks} ranks on {cores} processors"
        console.print(_table(title, curves))
    if profile.messages:
        console.print(_table("Messages between hosts", profile.messages))
    for host in profile.hosts:
        speed = f"{host.bandwidth * 8e-9:.3g} Gbit/s to others" if host.bandwidth else "no others"
        console.print(
            f"{host.name}: {host.ranks} ranks, {host.cores} processors, nics {host.nics}; {speed}",
            highlight=False,
        )
    memory = profile.memory_bandwidth * 1e-9
    console.print(f"A processor reads and writes {memory:.3g} GB/s.", highlight=False)


def _table(title: str, curves: dict[str, list[tuple[int, int]]]) -> Table:
    table = number_table(title, ["size", *curves])
    times = [dict(curve) for curve in curves.values()]
    sizes = sorted(set().union(*times))
    for size in sizes:
        cells = (_core.format_seconds(each[size] * 1e-9) if size in each else "" for each in times)
        table.add_row(_core.format_bytes(size), *cells)
    return table
