"""The command line: `hetcomm demo`."""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hetcomm import _core
from hetcomm.demo.codecs import codec_facts, render_codecs
from hetcomm.demo.describe import describe
from hetcomm.demo.launcher import RunError, choose
from hetcomm.demo.machine import describe_machine
from hetcomm.demo.plan_report import plan_facts, render_plan
from hetcomm.demo.planning import Plan, make_plan
from hetcomm.demo.report import render, write_json
from hetcomm.demo.runs import HERE, Settings, compare, encode, mix_vendors
from hetcomm.demo.training import Comparison
from hetcomm.demo.vendors import summary
from hetcomm.emulate import Cluster, ClusterError, load

LAYOUTS = ("ddp", "pipeline")
QUICK_STEPS = 6
QUICK_MODEL = {"width": 64, "heads": 2, "context": 32}
EXIT_FAILED, EXIT_BAD_CLUSTER = 1, 2


def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for demo.png, demo.json and layout.json.")
    ] = Path("demo-result"),
    cluster_file: Annotated[
        Path, typer.Option("--cluster", help="The cluster to emulate (default: two islands).")
    ] = HERE / "cluster.toml",
    order: Annotated[
        str | None,
        typer.Option(help="block, interleaved, random:SEED, or host,host,... one per rank."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps per run.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and batches.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few steps of a tiny model; ignores --steps.")
    ] = False,
    backend: Annotated[str, typer.Option(help="The backend to show.")] = "hetcomm",
    baseline: Annotated[str, typer.Option(help="The backend to compare it with.")] = "gloo",
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference of losses by rounding.")
    ] = 1e-4,
    timeout: Annotated[float, typer.Option(min=1, help="End a run after so many seconds.")] = 300,
) -> None:
    """Train the same small GPT on gloo and on hetcomm in an emulated two-island cluster.

    Shows the topology found, runs two layouts on both backends, checks that the losses agree at
    every step, and compares step time and bytes over the bridge. hetcomm also trains data parallel
    with codecs between the islands: lossless, and int8. Then hetcomm measures layers and links,
    plans a layout for the cluster, and trains it: predicted beside measured step time. If the
    machine refuses to emulate clusters, the demo runs plain processes without shaped links, and
    names the missing permission. Exits with 0 for success, 1 if a run failed or the losses differ,
    2 if the cluster's description is wrong.
    """
    console = Console()
    try:
        cluster = load(cluster_file, order)
        check_even(cluster, cluster_file)
        make_folder(output)
        with tempfile.TemporaryDirectory(prefix=".runs-", dir=output) as folder:
            launcher = choose(cluster, Path(folder) / "probe")
            settings = Settings(launcher, cluster, steps, seed, timeout)
            if quick:
                settings = dataclasses.replace(settings, steps=QUICK_STEPS, model=QUICK_MODEL)
            introduce(console, settings)
            if backend == "hetcomm":
                text = describe(launcher, cluster, Path(folder) / "describe")
                console.print(f"\n{text}\n", markup=False, highlight=False, soft_wrap=True)
            comparisons, codecs = [], []
            for layout in LAYOUTS:
                both = compare(
                    console, layout, (baseline, backend), settings, tolerance, Path(folder)
                )
                comparisons.append(both)
                if (layout, backend) == ("ddp", "hetcomm"):
                    codecs = encode(console, settings, tolerance, Path(folder))
            mixed = None
            plan: Plan | str = ""
            if backend == "hetcomm":
                plan = planned(console, settings, comparisons, tolerance, Path(folder), output)
                if all(host.vendor == "cpu" for host in cluster.hosts):
                    mixed = mix_vendors(
                        console, comparisons[0].baseline, settings, tolerance, folder
                    )
    except ClusterError as error:
        console.print(f"hetcomm demo: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_CLUSTER) from None
    except (RunError, OSError) as error:
        console.print(f"hetcomm demo: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    finish(console, Results(comparisons, codecs, mixed, plan), settings, output)


def check_even(cluster: Cluster, cluster_file: Path) -> None:
    """Raises ClusterError for an odd number of ranks: a pipeline has two equal stages."""
    if cluster.ranks % 2:
        raise ClusterError(
            "ranks",
            "an even number of ranks, half for each pipeline stage",
            str(cluster.ranks),
            "give one host a rank more or less",
            str(cluster_file),
        )


def make_folder(output: Path) -> None:
    """Makes the folder. Raises RunError if files cannot be written there."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise RunError(
            f"expected a folder that files can be written to, got {error}; name one by --output"
        ) from error


def introduce(console: Console, settings: Settings) -> None:
    """Prints machine and cluster, and the missing permissions of this machine."""
    missing = settings.launcher.missing
    if missing is not None:
        console.print(
            f"This machine cannot emulate a cluster: {missing}.\nThe same training runs without "
            "shaped links: losses compare, step times tell nothing about slow links.",
            style="yellow",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    what = "Emulated cluster" if missing is None else "Islands"
    text = settings.launcher.describe(settings.cluster)
    console.print(f"{what}: {text}", highlight=False, soft_wrap=True)
    warn_if_busy(console)


def warn_if_busy(console: Console) -> None:
    """Warns of other work on the machine, which may slow one run more than another."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        console.print(
            f"Other work runs on this machine (load {load:.1f} on {cores} cores): "
            "step times and speed-ups will be noisy.",
            style="yellow",
            highlight=False,
        )


def planned(
    console: Console,
    settings: Settings,
    comparisons: Sequence[Comparison],
    tolerance: float,
    folder: Path,
    output: Path,
) -> Plan | str:
    """The planner's part, or why this cluster has none."""
    by_hand = [comparison.candidate for comparison in comparisons]
    try:
        return make_plan(console, settings, by_hand, tolerance, folder, output / "layout.json")
    except _core.InvalidArgumentError as error:
        return f"No layout was planned: {error}."


@dataclass(frozen=True)
class Results:
    """All that the demo measured.

    codecs: none for other backends than hetcomm. mixed: the training with emulated GPUs. plan: the
    planner's part, or why it is left out.
    """

    comparisons: Sequence[Comparison]
    codecs: Sequence[Comparison] = ()
    mixed: Comparison | None = None
    plan: Plan | str = ""

    @property
    def every(self) -> list[Comparison]:
        """All comparisons of losses."""
        found = [*self.comparisons, *self.codecs]
        if self.mixed is not None:
            found.append(self.mixed)
        if isinstance(self.plan, Plan):
            found.append(self.plan.comparison)
        return found


def finish(console: Console, results: Results, settings: Settings, output: Path) -> None:
    """Shows and writes the results. Raises typer.Exit if losses differ."""
    # Importing matplotlib takes half a second: not for every command.
    from hetcomm.demo.plan_plot import draw_plan
    from hetcomm.demo.plot import write_plot

    comparisons, codecs, plan = results.comparisons, results.codecs, results.plan
    console.print()
    console.print(render(comparisons, console.encoding))
    if codecs:
        console.print(render_codecs(codecs, console.encoding))
    launcher = settings.launcher
    cluster = launcher.describe(settings.cluster)
    millions = comparisons[0].baseline.parameters / 1e6
    subtitle = f"{cluster}. Byte-level GPT with {millions:.1f} million parameters"
    made = plan if isinstance(plan, Plan) else None
    more = [] if made is None else [partial(draw_plan, plan=made)]
    write_plot(output / "demo.png", comparisons, codecs, subtitle, more)
    facts = {
        "machine": describe_machine(),
        "cluster": cluster,
        "links_are_shaped": launcher.is_shaped,
        "missing": launcher.missing and str(launcher.missing),
        "congestion_control": launcher.congestion,
        "steps": settings.steps,
        "seed": settings.seed,
        "batch": settings.batch,
    }
    if results.mixed is not None:
        console.print(summary(results.mixed), highlight=False, soft_wrap=True)
        facts["vendors"] = {
            "largest_loss_difference": results.mixed.largest_difference,
            "agrees": results.mixed.agrees,
            "losses": results.mixed.candidate.losses,
        }
    if codecs:
        facts["codecs"] = codec_facts(codecs)
    if made is not None:
        console.print(render_plan(made), highlight=False, soft_wrap=True)
        facts["plan"] = plan_facts(made)
    elif plan:
        console.print(plan, style="yellow", markup=False, highlight=False, soft_wrap=True)
        facts["plan"] = {"left_out": plan}
    write_json(output / "demo.json", comparisons, facts)
    names = ["demo.png", "demo.json", *(["layout.json"] if made else [])]
    written = [str(output / name) for name in names]
    console.print(f"Written: {', '.join(written[:-1])} and {written[-1]}", soft_wrap=True)
    check_losses(console, results)


def check_losses(console: Console, results: Results) -> None:
    """Says how far losses differ. Raises typer.Exit for a difference above its tolerance."""
    differing = [comparison for comparison in results.every if not comparison.agrees]
    for comparison in differing:
        console.print(
            f"LOSSES DIFFER: {comparison.disagreement()}",
            style="bold red",
            markup=False,
            soft_wrap=True,
        )
    if differing:
        raise typer.Exit(EXIT_FAILED)
    exact = results.comparisons[0].tolerance
    largest = max(each.largest_difference for each in results.every if each.tolerance == exact)
    console.print(
        f"The losses agree at every step: largest difference {largest:.1e}, tolerance {exact:g}"
        + "".join(
            f"; with {each.candidate.codec} {each.largest_difference:.1e}, tolerance "
            f"{each.tolerance:g}"
            for each in results.codecs
            if each.tolerance != exact
        )
        + ".",
        style="green",
        highlight=False,
    )
