"""Builds hetcomm with several torches, Pythons and compilers, and runs what it can.

    python tests/versions/versions.py [--run] [--report FILE] [NAME ...]

NAME is part of a row's name, for instance 2.11 or clang. Each row has a folder of its own, removed
afterwards, and one torch at a time is there. PyPI's torch for CUDA cannot be imported without
NVIDIA's libraries (some 3 GB); --run installs them, without it such rows are built and linked only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILD_BOUND, RUN_BOUND = 3600.0, 120.0  # seconds
# Packages that hetcomm and `import torch` need, except NVIDIA's.
SMALL_PACKAGES = (
    "setuptools", "pybind11>=2.13", "libucx-cu13>=1.18", "numpy>=1.26", "typing_extensions",
    "filelock", "sympy", "networkx", "jinja2", "fsspec",
)  # fmt: skip


class Row(NamedTuple):
    python: str
    torch: str
    compiler: str

    def __str__(self) -> str:
        return f"Python {self.python}, torch {self.torch}, {self.compiler}"


# Every torch, Python and compiler at least once; the oldest and the newest of each together.
ROWS = (
    Row("3.11", "2.6.0", "g++-12"),
    Row("3.12", "2.8.0", "g++-12"),
    Row("3.12", "2.11.0", "g++-12"),
    Row("3.11", "2.13.0", "g++-11"),
    Row("3.11", "2.13.0", "g++-14"),
    Row("3.13", "2.13.0", "clang++"),
    Row("3.13", "2.15.0", "g++-12"),
)


class Outcome(NamedTuple):
    row: Row
    built: str
    ran: str


class Failed(Exception):
    """A command failed. The text is the last lines of its output."""


def python_of(version: str) -> str | None:
    """An interpreter of this version, from the path or from pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for found in (
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"versions/{version}.*/bin/python{version}"))),
    ):
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def compiler_of(name: str) -> str | None:
    """The path of the compiler; for clang++ the newest one."""
    if name != "clang++":
        return shutil.which(name)
    folders = map(Path, os.environ["PATH"].split(os.pathsep))
    numbered = {path for folder in folders for path in folder.glob("clang++-[0-9]*")}
    newest = max(numbered, key=lambda path: int(path.name.partition("-")[2]), default=None)
    return shutil.which(name) or (str(newest) if newest else None)


def done(command: Sequence[object], bound: float = BUILD_BOUND, **variables: str) -> str:
    """The output of the command. Raises Failed."""
    try:
        result = subprocess.run(
            [str(word) for word in command], timeout=bound, env={**os.environ, **variables},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} did not end within {bound:g} s") from error
    if result.returncode:
        raise Failed("\n".join(result.stdout.splitlines()[-40:]))
    return result.stdout


def build(row: Row, python: Path, compiler: str, folder: Path) -> Path:
    """Returns the folder with the package. Raises Failed."""
    package = folder / "package" / "hetcomm"
    package.mkdir(parents=True)
    for part in (ROOT / "hetcomm").iterdir():
        if part.suffix in (".py", ".pyi") or (part.is_dir() and part.name != "__pycache__"):
            (package / part.name).symlink_to(part)
    torch = done([python, "-c", "import importlib.util as u; "
                  "print(u.find_spec('torch').submodule_search_locations[0])"]).strip()  # fmt: skip
    path = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
    done(["cmake", "-S", ROOT, "-B", folder / "build", f"-DPython_EXECUTABLE={python}",
          f"-DCMAKE_CXX_COMPILER={compiler}", f"-DHETCOMM_OUTPUT={package}",
          f"-DHETCOMM_TORCH_ROOT={torch}"], PATH=path)  # fmt: skip
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    done(["cmake", "--build", folder / "build", "--parallel", jobs], PATH=path)
    return package.parent


def run(python: Path, package: Path) -> str:
    """Runs two ranks. Raises Failed."""
    try:
        version = done([python, "-c", "import torch; print(torch.__version__)"]).strip()
    except Failed as error:
        return f"no: {str(error).splitlines()[-1]}"
    program, place = ROOT / "tests/versions/smoke.py", package / "meeting"
    variables = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [python, program, str(rank), place],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [rank.communicate(timeout=RUN_BOUND)[0] for rank in ranks]
    except subprocess.TimeoutExpired as error:
        raise Failed(f"the ranks did not end within {RUN_BOUND:g} s") from error
    finally:
        for rank in ranks:
            rank.kill()
    for text in texts:
        if text.splitlines()[-1:] != ["fine"]:
            raise Failed("\n".join(text.splitlines()[-40:]))
    return f"yes, torch {version}"


def outcome(row: Row, dependencies: bool) -> Outcome:
    """Builds and runs one row. A failure becomes a text that begins with "failed"."""
    python, compiler = python_of(row.python), compiler_of(row.compiler)
    absent = [f"Python {row.python}"] if python is None else []
    absent += [row.compiler] if compiler is None else []
    if python is None or compiler is None:
        return Outcome(row, f"no: {' and '.join(absent)} not on this machine", "no")
    row = row._replace(compiler=named(compiler))
    with tempfile.TemporaryDirectory(prefix="hetcomm-versions-") as name:
        folder = Path(name)
        try:
            done([python, "-m", "venv", folder / "venv"])
            own = folder / "venv/bin/python"
            pip = [own, "-m", "pip", "install", "-q", "--no-cache-dir"]
            done([*pip, *SMALL_PACKAGES])
            done([*pip, *([] if dependencies else ["--no-deps"]), f"torch=={row.torch}"])
            package = build(row, own, compiler, folder)
        except Failed as error:
            return Outcome(row, f"failed: {error}", "no")
        try:
            return Outcome(row, "yes", run(own, package))
        except Failed as error:
            return Outcome(row, "yes", f"failed: {error}")


def named(compiler: str) -> str:
    """The compiler's name and full version, for instance g++ 12.2.0."""
    version = re.search(r"\d+\.\d+\.\d+", done([compiler, "--version"]))
    kind = "clang" if "clang" in Path(compiler).name else "g++"
    return f"{kind} {version[0] if version else '?'}"


def table(outcomes: Sequence[Outcome]) -> str:
    lines = ["| Python | torch | compiler | built | ran |", "|---|---|---|---|---|"]
    for one in outcomes:
        built, ran = (text.splitlines()[0] if text else "" for text in one[1:])
        lines.append(f"| {' | '.join(one.row)} | {built} | {ran} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--run", action="store_true", help="install what torch needs to be imported"
    )
    parser.add_argument(
        "--report", type=Path, help="write the table into this page, after its mark"
    )
    parser.add_argument("names", nargs="*", help="parts of names of rows")
    asked = parser.parse_args()
    chosen = [row for row in ROWS if not asked.names or any(n in str(row) for n in asked.names)]
    if not chosen:
        parser.error(f"expected part of one of: {'; '.join(map(str, ROWS))}")
    outcomes = []
    for row in chosen:
        outcomes.append(outcome(row, asked.run))
        print(f"{outcomes[-1].row}: built {outcomes[-1].built}; ran {outcomes[-1].ran}", flush=True)
    print(table(outcomes))
    if asked.report:
        mark = "<!-- written by `make test-versions` -->\n"
        head, found, _ = asked.report.read_text().partition(mark)
        if not found:
            parser.error(f"{asked.report}: expected a line {mark.strip()}")
        asked.report.write_text(f"{head}{mark}{table(outcomes)}\n")
    sys.exit(any("failed" in text for one in outcomes for text in one[1:]))


if __name__ == "__main__":
    main()
