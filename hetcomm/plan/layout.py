"""A layout: the ranks and layers of each pipeline stage, and the schedule of micro-batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from hetcomm import _core
from hetcomm.plan.refuse import one_of as _one_of
from hetcomm.plan.refuse import refuse as _refuse
from hetcomm.plan.refuse import whole as _whole

VERSION = 1
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
LEVELS = ("rank", "island", "host", "cluster")


@dataclass(frozen=True, slots=True)
class Replica:
    """The ranks that share each layer of a stage, for one share of the batch.

    The tensor rank varies fastest: with tensor degree t, ranks[c * t + i] has tensor rank i and
    context rank c.
    """

    ranks: tuple[int, ...]
    context: int = 1

    @property
    def tensor(self) -> int:
        """The tensor-parallel degree."""
        return len(self.ranks) // self.context


@lru_cache(maxsize=256)
def groups_of(replicas: tuple[Replica, ...]) -> tuple[tuple[int, ...], ...]:
    """Stage.data_groups() of a stage's replicas."""
    parts = max(replica.tensor for replica in replicas)
    groups: list[list[int]] = [[] for _ in range(parts)]
    for replica in replicas:
        tensor = replica.tensor
        for part, group in enumerate(groups):
            group += replica.ranks[part * tensor // parts :: tensor]
    return tuple(map(tuple, groups))


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of each of a stage's chunks, as (first, end), and the replicas of the stage.

    Layer 0 is the embedding, the last layer is the head with the loss; the others are blocks. A
    stage has one chunk, unless the schedule is interleaved or zero_bubble. Replica r of a stage
    sends its activations to replica r of the next stage.
    """

    chunks: tuple[tuple[int, int], ...]
    replicas: tuple[Replica, ...]

    @property
    def layers(self) -> int:
        """The number of layers of all chunks."""
        return sum(end - first for first, end in self.chunks)

    def data_groups(self) -> list[list[int]]:
        """The groups of ranks that hold the same weights and sum their gradients.

        Replicas of unlike tensor degrees share weights by parts: a rank of a replica of degree t
        then belongs to a group for each part that it holds of the largest degree.
        """
        return [list(group) for group in groups_of(self.replicas)]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where and when each layer of a model runs.

    batch and micro_batch are samples: of one optimizer step of the whole job, and of one forward
    pass of one replica. weights, gradients and optimizer_states name the levels that partition
    them among the replicas of a stage ("rank": not at all). plan.partition() needs weights,
    gradients and optimizer_states from narrow to wide. codec is the bridge's, for gradients.
    shares: the micro-batches of each replica in a step; none: equally many.

    Raises hetcomm.InvalidArgumentError where the parts do not fit together.
    """

    stages: tuple[Stage, ...]
    batch: int
    micro_batch: int
    schedule: str = "1f1b"
    recompute: bool = False
    weights: str = "rank"
    gradients: str = "rank"
    optimizer_states: str = "rank"
    codec: str = "auto"
    overlap_optimizer: bool = False
    shares: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def replicas(self) -> int:
        """The data-parallel degree."""
        return len(self.stages[0].replicas)

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Forward passes of each replica in a step: the shares, if there are any."""
        together = self.batch // self.micro_batch
        return self.shares or (together // self.replicas,) * self.replicas

    @property
    def layers(self) -> int:
        """The number of layers of the model, with embedding and head."""
        return sum(stage.layers for stage in self.stages)

    @property
    def ranks(self) -> list[int]:
        """All ranks, sorted."""
        return sorted(
            rank for stage in self.stages for replica in stage.replicas for rank in replica.ranks
        )

    def place(self, rank: int) -> tuple[int, int, int]:
        """The stage of a rank, the replica, and the rank's position in it."""
        for s, stage in enumerate(self.stages):
            for r, replica in enumerate(stage.replicas):
                if rank in replica.ranks:
                    return s, r, replica.ranks.index(rank)
        _refuse("rank", f"one of the {len(self.ranks)} ranks of the layout", rank, "correct it")

    def data_groups(self, stage: int) -> list[list[int]]:
        """The groups of ranks that hold the same weights of a stage and sum their gradients."""
        return self.stages[stage].data_groups()

    def save(self, path: str | Path) -> None:
        """Writes the layout as JSON."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The layout as JSON, with its version."""
        return json.dumps({"hetcomm layout": VERSION} | asdict(self), indent=1) + "\n"

    @staticmethod
    def load(path: str | Path) -> Layout:
        """Reads a layout that save() wrote.

        Raises hetcomm.InvalidArgumentError with the file for a file that holds no layout.
        """
        try:
            return Layout.parse(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, _core.InvalidArgumentError) as error:
            raise _core.InvalidArgumentError(f"layout {path}: {error}") from error

    @staticmethod
    def parse(text: str) -> Layout:
        """The inverse of text(). Raises hetcomm.InvalidArgumentError."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            _refuse("layout", "JSON", str(error), "write the file with hetcomm plan")
        version = document.pop("hetcomm layout", None) if isinstance(document, dict) else None
        if version != VERSION:
            _refuse("layout", f"version {VERSION}", version, "write the file with hetcomm plan")
        stages = [_stage(each) for each in _list(document, "stages")]
        shares = tuple(_list(document, "shares")) if "shares" in document else ()
        return _made(Layout, document | {"stages": tuple(stages), "shares": shares})


def _stage(table: Any) -> Stage:
    replicas = [
        _made(Replica, each | {"ranks": tuple(_list(each, "ranks"))})
        for each in _list(table, "replicas")
    ]
    made: Stage = _made(
        Stage, table | {"chunks": _pairs(table.get("chunks")), "replicas": tuple(replicas)}
    )
    return made


def _list(table: Any, key: str) -> list[Any]:
    value = table.get(key) if isinstance(table, dict) else None
    if not isinstance(value, list):
        _refuse(f"layout.{key}", "a list", value, "write the file with hetcomm plan")
    return value


def _pairs(value: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, list) or not all(isinstance(v, list) and len(v) == 2 for v in value):
        _refuse(
            "layout.chunks", "pairs of first and end", value, "write the file with hetcomm plan"
        )
    return tuple(tuple(pair) for pair in value)


def _made(kind: type, table: dict[str, Any]) -> Any:
    known = {each.name for each in fields(kind)}
    if unknown := sorted(set(table) - known):
        _refuse(f"layout: {kind.__name__}", f"the keys {sorted(known)}", unknown, "delete them")
    try:
        return kind(**table)
    except TypeError as error:
        raise _core.InvalidArgumentError(f"layout: {error}") from None


def _check(layout: Layout) -> None:
    _whole("layout.batch", layout.batch, 1)
    _whole("layout.micro_batch", layout.micro_batch, 1)
    _one_of("layout.schedule", layout.schedule, SCHEDULES)
    for name in ("weights", "gradients", "optimizer_states"):
        _one_of(f"layout.{name}", getattr(layout, name), LEVELS)
    if not layout.stages or not layout.stages[0].replicas:
        _refuse("layout.stages", "a stage with a replica", layout.stages, "add one")
    for s, stage in enumerate(layout.stages):
        _check_stage(f"layout.stages[{s}]", stage, layout)
    _check_ranks(layout)
    _check_layers(layout.stages)
    _check_shares(layout)


def _check_shares(layout: Layout) -> None:
    together = layout.micro_batch * layout.replicas
    if not layout.shares:
        if layout.batch % together:
            _refuse(
                "layout.batch",
                f"a multiple of micro_batch * replicas = {together}",
                layout.batch,
                "change the batch, the micro-batch or the replicas, or give shares",
            )
        return
    for share in layout.shares:
        _whole("layout.shares: micro-batches of a replica", share, 1)
    if len(layout.shares) != layout.replicas:
        expected = f"one for each of {layout.replicas} replicas"
        _refuse("layout.shares", expected, layout.shares, "correct it")
    if sum(layout.shares) * layout.micro_batch != layout.batch:
        _refuse(
            "layout.shares",
            f"a sum of batch / micro_batch = {layout.batch / layout.micro_batch:g}",
            layout.shares,
            "change the shares, the batch or the micro-batch",
        )


def _check_stage(at: str, stage: Stage, layout: Layout) -> None:
    if len(stage.replicas) != layout.replicas:
        _refuse(
            f"{at}.replicas",
            f"{layout.replicas}, as in stage 0",
            len(stage.replicas),
            "give all stages equally many",
        )
    for replica in stage.replicas:
        _whole(f"{at}: context degree", replica.context, 1)
        if not replica.ranks or len(replica.ranks) % replica.context:
            _refuse(
                f"{at}: ranks of a replica",
                f"a multiple of the context degree {replica.context}",
                len(replica.ranks),
                "change the ranks or the degree",
            )
    most = max(replica.tensor for replica in stage.replicas)
    for replica in stage.replicas:
        if most % replica.tensor:
            _refuse(
                f"{at}: tensor degree",
                f"a divisor of the stage's largest, {most}",
                replica.tensor,
                "replicas share weights by parts",
            )
    several = layout.schedule in ("interleaved", "zero_bubble")
    if not stage.chunks or (len(stage.chunks) > 1 and not several):
        expected = "at least one" if several else f"one with the schedule {layout.schedule}"
        _refuse(f"{at}.chunks", expected, len(stage.chunks), "change the chunks or the schedule")
    if len(stage.chunks) != len(layout.stages[0].chunks):
        expected = f"{len(layout.stages[0].chunks)}, as in stage 0"
        _refuse(f"{at}.chunks", expected, len(stage.chunks), "give all stages equally many")


def _check_ranks(layout: Layout) -> None:
    for stage in layout.stages:
        for replica in stage.replicas:
            for rank in replica.ranks:
                _whole("layout: a rank", rank, 0)
    twice = sorted(rank for rank, count in Counter(layout.ranks).items() if count > 1)
    if twice:
        _refuse("layout: ranks", "each rank once", f"{twice} again", "give each rank one place")


def _check_layers(stages: Sequence[Stage]) -> None:
    position = 0
    for chunk in range(len(stages[0].chunks)):
        for s, stage in enumerate(stages):
            first, end = stage.chunks[chunk]
            if first != position or end <= first:
                _refuse(
                    f"layout.stages[{s}].chunks[{chunk}]",
                    f"layers from {position} on, at least one",
                    f"{first} to {end}",
                    "let each chunk go on where the one before ends",
                )
            position = end
