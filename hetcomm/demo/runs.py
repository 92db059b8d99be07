"""The demo's trainings: each runs trainer.py on every rank."""

import dataclasses
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from hetcomm.demo.codecs import CODECS, tolerance_of
from hetcomm.demo.describe import describe
from hetcomm.demo.launcher import Launcher, RunError
from hetcomm.demo.progress import following
from hetcomm.demo.training import Comparison, Training, read_training
from hetcomm.demo.vendors import STEPS, first_steps, with_vendors
from hetcomm.emulate import Cluster

HERE = Path(__file__).parent
MICRO_BATCHES = 4
SMALLEST_BATCH = 8
# These imports take some four seconds of processor time. torch.optim needs the second.
PRELOAD = ("torch", "torch._dynamo")


@dataclass(frozen=True)
class Settings:
    """The common settings of all runs of a demo.

    model: sizes other than the trainer's, by option.
    """

    launcher: Launcher
    cluster: Cluster
    steps: int
    seed: int
    timeout: float
    model: Mapping[str, int] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Sequences per step: the smallest batch that every rank and micro-batch shares evenly."""
        pieces = self.cluster.ranks * MICRO_BATCHES // 2
        return -(-SMALLEST_BATCH // pieces) * pieces


def compare(
    console: Console,
    layout: str,
    backends: tuple[str, str],
    settings: Settings,
    tolerance: float,
    folder: Path,
) -> Comparison:
    """Trains one layout on both backends."""
    baseline, candidate = (
        train(console, layout, backend, settings, folder / f"{layout}-{place}")
        for place, backend in zip(("baseline", "candidate"), backends, strict=True)
    )
    return Comparison(baseline, candidate, tolerance)


def encode(
    console: Console, settings: Settings, tolerance: float, folder: Path
) -> list[Comparison]:
    """Trains data parallel without a codec between the hosts, and with each."""
    plain, *encoded = (
        train(console, "ddp", "hetcomm", settings, folder / codec, codec)
        for codec in ("none", *CODECS)
    )
    return [Comparison(plain, run, tolerance_of(run.codec, tolerance)) for run in encoded]


def mix_vendors(
    console: Console, baseline: Training, settings: Settings, tolerance: float, folder: str
) -> Comparison:
    """Trains data parallel once more, each island on GPUs of another vendor."""
    settings = dataclasses.replace(
        settings, cluster=with_vendors(settings.cluster), steps=min(settings.steps, STEPS)
    )
    text = describe(settings.launcher, settings.cluster, Path(folder) / "describe-vendors")
    console.print(f"\n{text}\n", markup=False, highlight=False, soft_wrap=True)
    training = train(console, "ddp", "hetcomm", settings, Path(folder) / "vendors")
    return Comparison(first_steps(baseline, settings.steps), training, tolerance)


def train(
    console: Console,
    layout: str,
    backend: str,
    settings: Settings,
    folder: Path,
    codec: str = "",
    plan: Path | None = None,
) -> Training:
    """Runs trainer.py on every rank, and shows its progress. plan: the file of a planned layout."""
    metrics = folder.resolve() / "metrics.jsonl"
    options = {
        "--backend": backend,
        "--layout": layout,
        "--codec": codec,
        "--metrics": metrics,
        "--steps": settings.steps,
        "--seed": settings.seed,
        "--batch": settings.batch,
        "--micro-batches": MICRO_BATCHES,
    }
    words = [str(word) for option in options.items() for word in option]
    words += [word for name, size in settings.model.items() for word in (f"--{name}", str(size))]
    command = [sys.executable, str(HERE / "trainer.py"), *words]
    if plan is not None:
        command += ["--plan", str(plan.resolve())]
    if not settings.launcher.is_shaped:
        command.append("--uncounted")
    title = f"{layout} on {backend}" + (f" with {codec}" if codec else "")
    start = time.monotonic()
    try:
        with following(console, metrics, title, settings.steps):
            settings.launcher.run_ranks(
                settings.cluster, command, folder, settings.timeout, PRELOAD
            )
        training = read_training(metrics, layout, backend, settings.steps, codec)
    except (RunError, ValueError) as error:
        raise RunError(f"{title}: {error}") from error
    seconds = time.monotonic() - start
    console.print(
        f"{title}: {settings.steps} steps in {seconds:.1f} s, start included; "
        f"loss {training.losses[0]:.3f} to {training.losses[-1]:.3f}",
        highlight=False,
    )
    return training
