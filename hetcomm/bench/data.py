"""Elements from a file: --data FILE.npz, or the gradients of the demo's model."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hetcomm import _core
from hetcomm.bench.error import BenchError
from hetcomm.bench.settings import Settings
from hetcomm.bench.values import ELEMENTS, Array

GRADIENTS = "gradients"  # in place of a file
STEP = 100  # of the demo's training, after the first steps with their large gradients
BOUND = 1800.0  # seconds; far above the time of so many steps


def check_data(settings: Settings) -> None:
    """Raises InvalidArgumentError for dtypes and operations that --data does not have."""
    for dtype in settings.dtypes:
        if dtype in ELEMENTS and not ELEMENTS[dtype].floating:
            raise _core.InvalidArgumentError(
                f"--data: expected floating dtypes, got {dtype}; leave one of both options out"
            )
    if "product" in settings.ops:
        raise _core.InvalidArgumentError(
            "--data: expected another operation than product, whose results would be too small or "
            "too large for the dtype; leave out --data or --op product"
        )


def numbers_of(file: Path) -> Array:
    """The last floating array of the file, flat.

    Raises InvalidArgumentError without such an array.
    """
    try:
        with np.load(file) as arrays:
            floats = (arrays[name] for name in reversed(arrays.files))
            last = next((each for each in floats if np.issubdtype(each.dtype, np.floating)), None)
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise _core.InvalidArgumentError(
            f"--data: expected a file of numpy.savez(), or {GRADIENTS}; got {file}: {error}"
        ) from error
    if last is None or not last.size or not np.isfinite(last).all():
        raise _core.InvalidArgumentError(
            f"--data: expected an array of finite floats in {file}, got "
            f"{'none' if last is None or not last.size else 'NaN or infinity'}"
        )
    wide = last.astype(np.float64 if last.dtype == np.float64 else np.float32)
    return wide.ravel()


def cache_folder() -> Path:
    """hetcomm's folder in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hetcomm"


def gradients_file(say: Callable[[str], None]) -> Path:
    """The file of the demo's gradients. The first call makes it, and says so.

    Raises InvalidArgumentError if torch or a folder is missing, BenchError if the training fails.
    """
    folder = cache_folder()
    file = folder / f"gradients-step{STEP}.npz"
    if file.exists():
        return file
    if find_spec("torch") is None:
        raise _core.InvalidArgumentError(
            f"--data {GRADIENTS}: torch is not installed; pip install torch"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(folder / "gradients.lock", flags, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other ranks of a job wait for the first
            if not file.exists():
                say(f"--data {GRADIENTS}: training the demo's model for {STEP} steps, into {file}")
                _make_gradients(file)
    except OSError as error:
        raise _core.InvalidArgumentError(
            f"--data {GRADIENTS}: expected a folder that can be written to, got {error}; set "
            "XDG_CACHE_HOME to one"
        ) from error
    return file


def _make_gradients(file: Path) -> None:
    """Never leaves a part of the file under its name."""
    unfinished = file.with_name(f"unfinished-{os.getpid()}.npz")
    command = [sys.executable, "-P", "-m", "hetcomm.demo.gradients", "--steps", str(STEP)]
    try:
        made = subprocess.run(
            [*command, "--output", str(unfinished)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND,
        )
        if made.returncode:
            said = (made.stderr.strip().splitlines() or ["nothing"])[-1]
            raise BenchError(f"--data {GRADIENTS}: the training failed: {said}")
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)
