"""Packages of Debian, unpacked into a cache folder. Nothing is installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


class Unavailable(Exception):
    """Why something cannot run here, and the remedy."""


def cached(name: str, make: Callable[[Path], Path], absent: str = "") -> Path:
    """The folder of this name in hetcomm's cache. The first caller of the machine makes it.

    `make` fills the temporary folder that it gets, and returns the part to keep. With a text
    `absent`, a folder that is not there raises Unavailable(absent) instead.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hetcomm"
    folder = cache / name
    if not folder.exists():
        if absent:
            raise Unavailable(f"not yet in {cache}: {absent}")
        for tool in ("apt-get", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Unavailable(f"no {tool}: {name} comes from Debian's packages")
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{name.partition('-')[0]}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with tempfile.TemporaryDirectory(dir=cache) as work:
                    make(Path(work)).rename(folder)
    return folder


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of the command. Raises Unavailable."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        text = f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}"
        raise Unavailable(f"{text}; it needs Debian's packages and a network to fetch them")
    return done.stdout


def download(packages: Iterable[str], folder: Path, *options: str) -> list[Path]:
    """The files of these packages alone, in a new folder. `options` are apt-get's."""
    folder.mkdir(parents=True)
    sandbox = ("-o", "APT::Sandbox::User=root") if os.geteuid() == 0 else ()
    run("apt-get", *sandbox, *options, "-q", "download", *packages, cwd=folder)
    return sorted(folder.iterdir())


def unpack(packages: Iterable[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        run("dpkg-deb", "-x", package, folder)


class Architecture:
    """The distribution's packages for another processor, or newer than this machine's lists."""

    def __init__(self, work: Path, name: str, installed: Path | None = None) -> None:
        """`work` is a new folder for apt-get's files. The packages of `installed`, a status file of
        dpkg, count as there."""
        self._archives = work / "archives"
        for folder in (work / "lists/partial", self._archives / "partial", work / "cache"):
            folder.mkdir(parents=True)
        if installed is None:
            installed = work / "status"
            installed.touch()
        settings = {
            "APT::Architecture": name, "APT::Architectures": name, "APT::Sandbox::User": "root",
            "Dir::State": work, "Dir::State::lists": work / "lists", "Dir::Cache": work / "cache",
            "Dir::State::status": installed, "Dir::Cache::archives": self._archives,
            "Debug::NoLocking": "1",
        }  # fmt: skip
        self.options = [
            word for key, value in settings.items() for word in ("-o", f"{key}={value}")
        ]
        run("apt-get", *self.options, "-q", "update")

    def with_dependencies(self, *packages: str) -> list[Path]:
        """The files of these packages and of all that they need."""
        run("apt-get", *self.options, "-q", "-y", "--no-install-recommends", "--download-only",
            "install", *packages)  # fmt: skip
        return sorted(self._archives.glob("*.deb"))
