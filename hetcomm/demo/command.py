"""The command line: `hetcomm demo`."""

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hetcomm.demo.codecs import codec_facts, render_codecs
from hetcomm.demo.describe import describe
from hetcomm.demo.launcher import RunError, choose
from hetcomm.demo.machine import describe_machine
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
    output: Annotated[Path, typer.Option(help="Folder for demo.png and demo.json.")] = Path(
        "demo-result"
    ),
    cluster_file: Annotated[
        Path, typer.Option("--cluster", help="The cluster to emulate (default: two islands).")
    ] = HERE / "cluster.toml",
    order: Annotated[
        str | None,
        typer.Option(help="block, interleaved, random:SEED, or host,host,... one per rank."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps per run.")] = 60,
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
    with codecs between the islands: lossless, and int8. If the machine refuses to emulate clusters,
    the demo runs plain processes without shaped links, and names the missing permission. Exits with
    0 for success, 1 if a run failed or the losses differ, 2 if the cluster's description
    is wrong.
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
            if backend == "hetcomm" and all(host.vendor == "cpu" for host in cluster.hosts):
                mixed = mix_vendors(console, comparisons[0].baseline, settings, tolerance, folder)
    except ClusterError as error:
        console.print(f"hetcomm demo: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_BAD_CLUSTER) from None
    except (RunError, OSError) as error:
        console.print(f"hetcomm demo: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(EXIT_FAILED) from None
    finish(console, comparisons, codecs, mixed, settings, output)


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


def finish(
    console: Console,
    comparisons: Sequence[Comparison],
    codecs: Sequence[Comparison],
    mixed: Comparison | None,
    settings: Settings,
    output: Path,
) -> None:
    """Shows and writes the results. Raises typer.Exit if losses differ."""
    # Importing matplotlib takes half a second: not for every command.
    from hetcomm.demo.plot import write_plot

    console.print()
    console.print(render(comparisons, console.encoding))
    if codecs:
        console.print(render_codecs(codecs, console.encoding))
    launcher = settings.launcher
    cluster = launcher.describe(settings.cluster)
    millions = comparisons[0].baseline.parameters / 1e6
    subtitle = f"{cluster}. Byte-level GPT with {millions:.1f} million parameters"
    write_plot(output / "demo.png", comparisons, codecs, subtitle)
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
    if mixed is not None:
        console.print(summary(mixed), highlight=False, soft_wrap=True)
        facts["vendors"] = {
            "largest_loss_difference": mixed.largest_difference,
            "agrees": mixed.agrees,
            "losses": mixed.candidate.losses,
        }
    if codecs:
        facts["codecs"] = codec_facts(codecs)
    write_json(output / "demo.json", comparisons, facts)
    console.print(f"Written: {output / 'demo.png'} and {output / 'demo.json'}", soft_wrap=True)
    everything = [*comparisons, *codecs, *([mixed] if mixed else [])]
    differing = [comparison for comparison in everything if not comparison.agrees]
    for comparison in differing:
        console.print(
            f"LOSSES DIFFER: {comparison.disagreement()}",
            style="bold red",
            markup=False,
            soft_wrap=True,
        )
    if differing:
        raise typer.Exit(EXIT_FAILED)
    exact = comparisons[0].tolerance
    largest = max(each.largest_difference for each in everything if each.tolerance == exact)
    console.print(
        f"The losses agree at every step: largest difference {largest:.1e}, tolerance {exact:g}"
        + "".join(
            f"; with {each.candidate.codec} {each.largest_difference:.1e}, tolerance "
            f"{each.tolerance:g}"
            for each in codecs
            if each.tolerance != exact
        )
        + ".",
        style="green",
        highlight=False,
    )
