"""What a search varies beside the shape: schedule, recompute and partition levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product

from hetcomm.plan.layout import LEVELS


@dataclass(frozen=True)
class Settings:
    """How a pipeline of a given shape runs.

    chunks: of each stage. weights, states: the levels of weights and optimizer states. codec: of
    the bridge, for gradients.
    """

    schedule: str
    chunks: int
    recompute: bool
    weights: str
    states: str
    codec: str


@dataclass(frozen=True)
class SettingsSpace:
    """The settings that a search may take.

    A single stage has the first schedule. chunks: of the interleaved schedule, beyond one. levels:
    narrowest first.
    """

    schedules: Sequence[str] = ("1f1b", "gpipe", "interleaved", "zero_bubble")
    chunks: Sequence[int] = (2, 3, 4)
    recompute: Sequence[bool] = (False, True)
    levels: Sequence[str] = LEVELS
    codecs: Sequence[str] = ("auto",)

    def settings(
        self, stages: int, micro_batches: Sequence[int], layers: int
    ) -> Iterator[Settings]:
        """Those that pipelines of so many stages can have. A single stage has one schedule.

        micro_batches: of all replicas, or the unlike ones. What hetcomm.plan refuses to run is left
        out: torch's 1f1b with fewer micro-batches than stages, and divided weights with zero_bubble
        or with unlike numbers of micro-batches.
        """
        levels = [
            (weights, states)
            for weights, states in combinations_with_replacement(self.levels, 2)
            if LEVELS.index(weights) <= LEVELS.index(states)
        ]
        schedules = self.schedules if stages > 1 else self.schedules[:1]
        for schedule, recompute in product(schedules, self.recompute):
            if schedule == "1f1b" and min(micro_batches) < stages:
                continue
            for chunks in self.chunks if schedule == "interleaved" else (1,):
                whole = not any(count % stages for count in micro_batches)
                whole = whole and chunks * stages <= layers
                if schedule != "interleaved" or (stages > 1 and whole):
                    for (weights, states), codec in product(levels, self.codecs):
                        divided = schedule != "zero_bubble" and len(set(micro_batches)) == 1
                        if divided or weights == "rank":
                            yield Settings(schedule, chunks, recompute, weights, states, codec)


def in_flight(settings: Settings, stages: int, micro_batches: int, stage: int) -> int:
    """Forward passes of chunks whose activations a stage keeps at its fullest."""
    if settings.schedule == "gpipe":
        return micro_batches
    if settings.schedule == "1f1b":
        return min(stages - stage, micro_batches)
    if settings.schedule == "zero_bubble":
        return min(stages, micro_batches)
    warm = 2 * (stages - stage - 1) + (settings.chunks - 1) * stages
    return min(micro_batches * settings.chunks, warm + 1)
