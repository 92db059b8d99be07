"""The demo's part about the planner: it plans its GPT for its cluster, and trains the layout."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hetcomm import _core
from hetcomm.demo.launcher import RunError
from hetcomm.demo.runs import MICRO_BATCHES, PRELOAD, Settings, train
from hetcomm.demo.training import Comparison, Training
from hetcomm.emulate import Cluster
from hetcomm.explain import topology_of
from hetcomm.plan import (
    Layout,
    Limits,
    Model,
    PlannedNetwork,
    Profile,
    Replica,
    Runtime,
    Stage,
    predict,
    propose,
)

PROFILE_SECONDS = 0.3  # of each measurement
TUNE_SIZES, TUNE_SECONDS = "64k:16M:4", 0.03  # of each collective and size
SEARCH_SECONDS = 10.0
# A profile has whole backward passes, and zero_bubble divides these. interleaved sends several
# times as many messages, and predictions leave out a message's processor time at its ends.
LIMITS = Limits(
    tensors=(1,),
    micro_batches=(1, 2, 4),
    schedules=("1f1b", "gpipe"),
    every_rank=True,
    seconds=SEARCH_SECONDS,
)


@dataclass(frozen=True)
class Case:
    """A layout with its predicted seconds of a step. training: on hetcomm."""

    layout: Layout
    predicted: float
    training: Training

    @property
    def measured(self) -> float:
        return self.training.step_seconds

    @property
    def error(self) -> float:
        """Of the prediction, relative to the measured time."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Plan:
    """The planner's part of the demo.

    planned: its layout; by_hand: those of the first comparison. gap: the share by which another
    layout may be faster by prediction. processors: that all ranks share. comparison: of the losses.
    is_shaped: whether links have the rates that the predictions take.
    """

    planned: Case
    by_hand: Sequence[Case]
    gap: float
    processors: float | None
    comparison: Comparison
    cluster: Cluster
    is_shaped: bool

    @property
    def every(self) -> list[Case]:
        return [*self.by_hand, self.planned]

    def speed_up(self, other: Case) -> float:
        """Of the planned layout over another."""
        return other.measured / self.planned.measured

    @property
    def speed_ups(self) -> str:
        """Over each layout by hand."""
        return ", ".join(
            f"{self.speed_up(case):.2f}x as fast as {case.training.layout}" for case in self.by_hand
        )


def make_plan(
    console: Console,
    settings: Settings,
    by_hand: Sequence[Training],
    tolerance: float,
    folder: Path,
    file: Path,
) -> Plan:
    """Measures the model's layers on all ranks, plans, writes the layout to `file`, and trains it.

    by_hand: the trainings of the layouts ddp and pipeline on hetcomm; the losses of the first one
    are the baseline.
    Raises RunError, or hetcomm.InvalidArgumentError for a cluster that cannot be planned for.
    """
    model, cluster = model_of(settings), settings.cluster
    profile = measure(console, settings, model, folder)
    # Links that are not shaped are not those to plan for.
    links = measure_links(console, settings, folder) if settings.launcher.is_shaped else None
    proposal = propose(cluster, model, profile, settings.batch, LIMITS, links)
    proposal.best.layout.save(file)
    planned = train(console, "planned", "hetcomm", settings, folder / "planned", plan=file)
    network = PlannedNetwork(topology_of(cluster), links)
    kinds = [cluster.hosts[place].kind for place in cluster.placement]
    cases = []
    for training in by_hand:
        layout, runtime = BY_HAND[training.layout](model, cluster, settings.batch)
        predicted = predict(model, layout, profile, network, kinds, runtime).seconds
        cases.append(Case(layout, predicted, training))
    return Plan(
        Case(proposal.best.layout, proposal.best.prediction.seconds, planned),
        cases,
        proposal.found.gap,
        profile.processors,
        Comparison(by_hand[0], planned, tolerance),
        cluster,
        settings.launcher.is_shaped,
    )


def model_of(settings: Settings) -> Model:
    """The sizes of the demo's GPT."""
    from hetcomm.demo import trainer  # imports torch, which takes seconds

    sizes = settings.model
    width = sizes.get("width", trainer.WIDTH)
    context = sizes.get("context", trainer.CONTEXT)
    return Model(
        blocks=sizes.get("depth", trainer.DEPTH),
        hidden=width,
        heads=sizes.get("heads", trainer.HEADS),
        sequence=context,
        vocabulary=trainer.VOCABULARY,
        feed_forward=4 * width,
        positions=context,
        bias=False,
        flash=True,
    )


def measure(console: Console, settings: Settings, model: Model, folder: Path) -> Profile:
    """The layers' times, by `hetcomm profile` on all ranks. Raises RunError."""
    sizes, out = folder.resolve() / "model.json", folder.resolve() / "profile.json"
    sizes.write_text(model.text())
    words = ["profile", str(sizes), "--layers", "hetcomm.demo.planned:layers", "--out", str(out)]
    words += ["--micro-batches", ",".join(map(str, LIMITS.micro_batches))]
    words += ["--seconds", str(PROFILE_SECONDS)]
    run_command(console, settings, words, folder, PRELOAD)
    return Profile.load(out)


def measure_links(console: Console, settings: Settings, folder: Path) -> _core.Profile:
    """The times of islands and links, by `hetcomm tune` on all ranks. Raises RunError."""
    out = folder.resolve() / "links.profile"
    words = ["tune", str(out), "--sizes", TUNE_SIZES, "--seconds", str(TUNE_SECONDS)]
    run_command(console, settings, words, folder)
    return _core.Profile(out.read_text(), str(out))


def run_command(
    console: Console,
    settings: Settings,
    words: Sequence[str],
    folder: Path,
    preload: Sequence[str] = (),
) -> None:
    """Runs a command of hetcomm's on all ranks. Raises RunError."""
    name = f"hetcomm {words[0]}"
    command = [sys.executable, "-m", "hetcomm", *words, "--no-progress"]
    start = time.monotonic()
    try:
        with console.status(f"{name} measures"):
            settings.launcher.run_ranks(
                settings.cluster, command, folder / words[0], settings.timeout, preload
            )
    except RunError as error:
        raise RunError(f"{name}: {error}") from error
    seconds = time.monotonic() - start
    console.print(f"{name}: measured in {seconds:.1f} s, start included", highlight=False)


def data_parallel(model: Model, cluster: Cluster, batch: int) -> tuple[Layout, Runtime]:
    """trainer.DataParallel. One of DDP's buckets holds nearly all of this model's gradients, so
    they leave after the backward pass."""
    replicas = tuple(Replica((rank,)) for rank in range(cluster.ranks))
    layout = Layout((Stage(((0, model.layers),), replicas),), batch, batch // cluster.ranks)
    return layout, Runtime(overlap_gradients=False)


def two_stages(model: Model, cluster: Cluster, batch: int) -> tuple[Layout, Runtime]:
    """trainer.Pipeline: half of the ranks for each stage, host by host."""
    placement = cluster.placement
    ranks = sorted(range(len(placement)), key=lambda r: (placement.index(placement[r]), r))
    half, middle = len(ranks) // 2, model.layers // 2
    stages = tuple(
        Stage((span,), tuple(Replica((rank,)) for rank in own))
        for span, own in (((0, middle), ranks[:half]), ((middle, model.layers), ranks[half:]))
    )
    layout = Layout(stages, batch, batch // (half * MICRO_BATCHES))
    return layout, Runtime(overlap_gradients=False, flat_gradients=True)


BY_HAND = {"ddp": data_parallel, "pipeline": two_stages}
