"""The studies: layouts, cases, peers and targets."""

from __future__ import annotations

import math

from studies import calls, codecs, memory, nics, overlap, scale, startup
from studies.model import MPIS, K, Layout, M, Mode, Run, Study, Target

OTHERS = ("all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all")
LARGE = (64 * K, M, 16 * M, 64 * M)
EVERYONE = (*MPIS, "gloo")
GBIT = ("1gbit",)
SMALL = tuple(8 << power for power in range(10))
# As in a training step. The default is in place and back to back.
MODES = (Mode(in_place=False), Mode(in_place=True, work=1e-3), Mode(in_place=False, work=1e-3))


def faster(*pairs: tuple[int, float]) -> tuple[Target, ...]:
    """Targets beside the better MPI: (size, times as fast)."""
    return tuple(Target("mpi", times, (size,)) for size, times in pairs)


def within(share: float, *sizes: int) -> Target:
    """A target beside the wire bound."""
    return Target("bound", share, sizes)


def of_others(ranks: str) -> Run:
    targets = (Target("mpi", 1.0), Target("mpi, mean", 1.3))
    return Run(Layout(ranks), LARGE, targets, OTHERS, seconds=0.3)


def others_over_a_link(order: str, opponents: tuple[str, ...] = MPIS) -> Run:
    layout = Layout("2+2", GBIT, order)
    return Run(layout, (M, 16 * M), (within(1.05, M, 16 * M),), OTHERS, opponents, calls=7)


def of_layout(ranks: str, order: str, opponents: tuple[str, ...] = MPIS) -> Run:
    layout = Layout(ranks, GBIT, order)
    return Run(
        layout, (4 * M, 16 * M), (within(1.05, 4 * M, 16 * M),), opponents=opponents, calls=7
    )


STUDIES = {
    "island-latency": Study(
        "small all_reduces of 2 ranks on one host",
        (
            Run(
                Layout("2"),
                SMALL,
                (Target("mpi", 1.0), Target("gloo", 30, (8,), ours="torch:hetcomm")),
                opponents=EVERYONE,
                seconds=0.2,
            ),
            *(Run(Layout("2"), SMALL, (Target("mpi", 1.0),), mode=mode) for mode in MODES),
        ),
        calls.study,
    ),
    "island-bandwidth": Study(
        "large collectives on one host",
        (
            Run(
                Layout("2"),
                LARGE,
                faster((64 * K, 1.5), (M, 2), (16 * M, 2.8), (64 * M, 5)),
                opponents=EVERYONE,
            ),
            Run(
                Layout("4"),
                (8, *LARGE),
                faster((8, 1.7), (64 * K, 1.5), (M, 1.8), (16 * M, 2.5), (64 * M, 3.5)),
                opponents=EVERYONE,
            ),
            *(
                Run(
                    Layout("2"),
                    LARGE,
                    faster((64 * K, 1.5), (M, 1.5), (16 * M, 1.5), (64 * M, 2)),
                    seconds=0.8,
                    mode=mode,
                )
                for mode in MODES
            ),
            of_others("2"),
            of_others("4"),
        ),
        memory.study,
    ),
    "many-ranks": Study(
        "8 and 16 ranks that share the cores of one host",
        tuple(
            Run(
                Layout(ranks),
                (8,),
                (Target("mpi", 1.0), Target("gloo", 10, ours="torch:hetcomm")),
                opponents=EVERYONE,
                seconds=0.5,
            )
            for ranks in ("8", "16")
        ),
    ),
    "bridge-limit": Study(
        "all_reduce over a link, beside what plain TCP reaches on it",
        (
            Run(
                Layout("2+2", GBIT), LARGE, (within(1.02, *LARGE[1:]),), opponents=EVERYONE, calls=7
            ),
            Run(
                Layout("2+2", GBIT, "interleaved"), LARGE[1:], (within(1.02, *LARGE[1:]),), calls=7
            ),
            Run(
                Layout("2+2", ("5gbit",)),
                (M, 16 * M, 64 * M),
                (within(1.08, 16 * M), within(1.05, 64 * M)),
                calls=14,
            ),
            Run(Layout("2+2"), (M, 16 * M, 64 * M), (within(1.5, 16 * M),), calls=14),
        ),
    ),
    "bridge-collectives": Study(
        "all other collectives over a link",
        (others_over_a_link("block"), others_over_a_link("interleaved", ())),
    ),
    "layouts": Study(
        "ranks in any order, and hosts with two NICs",
        (
            of_layout("4+4", "block"),
            of_layout("4+4", "interleaved"),
            of_layout("4+4", "random:1", ()),
            Run(nics.ONE, (nics.SIZE,), opponents=(), calls=14),
            Run(nics.BOTH, (nics.SIZE,), (Target("bound", math.nan),), calls=14),
        ),
        nics.study,
    ),
    "uneven-islands": Study(
        "islands of unlike sizes, and one with a slower uplink",
        (
            of_layout("1+3", "block"),
            of_layout("1+3", "interleaved", ()),
            of_layout("3+5", "block"),
            of_layout("3+5", "interleaved", ()),
            Run(
                Layout("2+2+2", ("1gbit", "1gbit", "250mbit")),
                (4 * M, 16 * M),
                (within(1.1, 4 * M, 16 * M),),
                calls=7,
            ),
        ),
    ),
    "small-messages": Study(
        "small all_reduces over a link, beside a ping-pong over plain TCP",
        (
            Run(
                Layout("2+2", GBIT),
                (8, K, 8 * K),
                (Target("mpi", round(1 / 0.6, 2), (8,)),),
                opponents=EVERYONE,
            ),
            Run(Layout("1+1", GBIT), (8, K, 8 * K), (Target("round trips", 1.5, (8,)),)),
        ),
    ),
    "staging": Study(
        "emulated accelerators whose copies are as slow as the wire",
        tuple(
            Run(
                Layout("1+1", GBIT, vendors=("nvidia", "amd"), copy_rate=copy_rate),
                (16 * M,),
                (Target("bound", math.nan, ours="torch:hetcomm"),),
                opponents=(),
                calls=14,
                ours="torch:hetcomm",
            )
            for copy_rate in ("unlimited", "1gbit")
        ),
    ),
    "overlap": Study("DDP whose communication hides behind its backward", special=overlap.study),
    "start-up": Study("from exec to the end of the first collective", special=startup.study),
    "scale": Study("choice and plan of one rank, for 8 to 100,000 ranks", special=scale.study),
    "codec-rates": Study("codecs on one core, beside copies", special=codecs.rates),
    "codec-links": Study("all_reduce with codecs over a link", special=codecs.links),
}
