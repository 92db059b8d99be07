"""Builds hetcomm from the working tree into a folder of its own, without a network.

Takes the Python and torch of this machine. The package lands in <package>/hetcomm, wheels in
<site>.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from report import Report, parser

ROOT = Path(__file__).resolve().parents[2]
INSTALL = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]


def tool(name: str) -> str | None:
    """A program beside this Python, in the wheel that carries it, or on the path."""
    places = [str(Path(sys.executable).parent)]
    spec = importlib.util.find_spec(name)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        places.append(f"{folder}/data/bin")
    places.append(os.environ.get("PATH", ""))
    return shutil.which(name, path=os.pathsep.join(places))


def run(report: Report, name: str, command: list[str], environment: dict[str, str]) -> None:
    print("+", *command, flush=True)
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
    report.fact(f"seconds of {name}", round(time.perf_counter() - begin, 1))
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with {done.returncode}")


def install_wheels(report: Report, folder: Path, site: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise SystemExit(f"--wheels {folder}: expected *.whl files there, found none")
    command = [*INSTALL, "--upgrade", "--target", str(site), *map(str, wheels)]
    run(report, "wheels", command, dict(os.environ))
    report.fact("wheels", [wheel.name for wheel in wheels])


def write_entry_point(package: Path) -> None:
    """Lets torch find the backend. Without this, `import hetcomm` imports torch, which took 5 s on
    a virtual machine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = package / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    lines = [f"Name: {project['name']}", f"Version: {project['version']}"]
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
    text = ""
    for group, points in project["entry-points"].items():
        text += f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    (folder / "entry_points.txt").write_text(text)


def missing() -> list[str]:
    """Missing requirements of the build."""
    found = []
    if tool("cmake") is None:
        found.append("cmake 3.24 or newer (on the path, or the wheel cmake)")
    if shutil.which("c++") is None and shutil.which("g++") is None:
        found.append("g++ with C++20")
    if importlib.util.find_spec("pybind11") is None:
        found.append("the Python package pybind11 (wheel pybind11)")
    headers = [Path("/usr/include"), Path("/usr/local/include")]
    if given := os.environ.get("HETCOMM_UCX_INCLUDE"):
        headers.insert(0, Path(given))
    in_system = any((folder / "ucp/api/ucp.h").exists() for folder in headers)
    if not in_system and importlib.util.find_spec("libucx") is None:
        found.append("UCX with its headers (wheel libucx-cu13, a system package, or the folder of "
                     "ucp/api/ucp.h in HETCOMM_UCX_INCLUDE)")  # fmt: skip
    return found


def main() -> None:
    parsed = parser()
    parsed.add_argument("--work", type=Path, required=True)
    parsed.add_argument("--wheels", type=Path)
    parsed.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parsed.parse_args()
    report = Report(arguments.folder)
    work, package = arguments.work, arguments.work / "package" / "hetcomm"
    if arguments.wheels:
        install_wheels(report, arguments.wheels, work / "site")
        importlib.invalidate_caches()
    if lacking := missing():
        raise SystemExit(
            "the build lacks: " + "; ".join(lacking) + ". Bring wheels with --wheels FOLDER."
        )
    cmake, ninja = tool("cmake"), tool("ninja")
    assert cmake
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = [
        cmake, "-S", str(ROOT), "-B", str(work / "cmake"), "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DHETCOMM_OUTPUT={package}",
        f"-DHETCOMM_BUILD_TORCH={'ON' if importlib.util.find_spec('torch') else 'OFF'}",
    ]  # fmt: skip
    if ninja:
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    if given := os.environ.get("HETCOMM_UCX_INCLUDE"):
        configure.append(f"-DHETCOMM_UCX_INCLUDE={given}")
    run(report, "configuring", configure, environment)
    compile_ = [cmake, "--build", str(work / "cmake"), "--parallel", str(arguments.jobs)]
    run(report, "compiling", compile_, environment)
    shutil.copytree(
        ROOT / "hetcomm", package, dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )  # fmt: skip
    write_entry_point(package.parent)
    check = "import hetcomm._core; print('built', hetcomm._core.__file__)"
    run(report, "import", [sys.executable, "-P", "-c", check], environment)


if __name__ == "__main__":
    main()
