"""The search of the ucx transport for its library, and the errors of a failed search.

Each case runs in a process of its own, because a process keeps the first UCX it loads.
"""

import os
import pathlib
import subprocess
import sys

import libucx
import pytest

WHEEL = pathlib.Path(libucx.__file__).parent
MACHINES = pathlib.Path(__file__).parents[1] / "machines"
PROGRAM = """
import sys
from hetcomm import _core
try:
    transport = _core.make_transport("ucx", sys.argv[1].split(",") if sys.argv[1] else [])
    print("made", transport.version)
except _core.Error as error:
    print(type(error).__name__, error)
"""


def make(interfaces: str = "", **environment: str) -> tuple[str, str]:
    """The output and the log of the program."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, interfaces],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


def library(folder: pathlib.Path, source: str) -> str:
    path = folder / "libucp_of_test.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)],
        input=source,
        text=True,
        check=True,
    )
    return str(path)


def test_wheel_is_found_without_a_library_path() -> None:
    printed, logged = make(LD_LIBRARY_PATH="")
    assert printed.startswith("made 1.") and str(WHEEL) in printed
    assert logged == ""


def test_log_says_which_library() -> None:
    _, logged = make(HETCOMM_LOG_LEVEL="info")
    assert f"from {WHEEL}" in logged


def test_setting_comes_before_the_wheel() -> None:
    chosen = str(WHEEL / "lib" / "libucp.so.0.0.0")
    printed, _ = make(HETCOMM_UCX_LIBRARY=chosen)
    assert printed.startswith("made 1.") and chosen in printed


def test_unusable_setting_is_an_error_and_no_fall_back(tmp_path: pathlib.Path) -> None:
    missing = str(tmp_path / "libucp.so.0")
    printed, _ = make(HETCOMM_UCX_LIBRARY=missing)
    assert printed.startswith("VendorError")
    assert missing in printed and "pip install libucx" in printed


def test_a_library_other_than_ucx_is_rejected(tmp_path: pathlib.Path) -> None:
    printed, _ = make(HETCOMM_UCX_LIBRARY=library(tmp_path, "int nothing;"))
    assert printed.startswith("VendorError") and "lacks the symbols ucp_get_version" in printed


@pytest.mark.parametrize("version", [(1, 0), (1, 11), (2, 0)])
def test_a_wrong_version_is_rejected(tmp_path: pathlib.Path, version: tuple[int, int]) -> None:
    source = f"""
    void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) {{
        *major = {version[0]}; *minor = {version[1]}; *release = 3;
    }}"""
    path = library(tmp_path, source)
    printed, _ = make(HETCOMM_UCX_LIBRARY=path)
    assert printed.startswith("VendorError UCX: expected version 1.12 or newer")
    assert f"got {version[0]}.{version[1]}.3 from {path}" in printed
    assert "HETCOMM_UCX_LIBRARY" in printed


def test_an_unknown_interface_is_rejected() -> None:
    printed, _ = make(interfaces="eth99")
    assert printed.startswith("InvalidArgumentError network interface: expected one of")
    assert 'got "eth99"' in printed


def test_user_settings_of_ucx_win() -> None:
    printed, _ = make(UCX_TLS="no_such_transport")
    assert printed.startswith("VendorError ucp_init")


def test_the_environment_is_not_changed() -> None:
    program = (
        "import os; from hetcomm import _core; before = dict(os.environ);"
        "_core.make_transport('ucx');"
        "import ctypes; getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p;"
        "assert getenv(b'UCX_LOG_LEVEL') is None and getenv(b'UCX_MEM_EVENTS') is None"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("UCX_")}
    subprocess.run([sys.executable, "-P", "-c", program], env=environment, timeout=60, check=True)


@pytest.mark.needs("mount namespaces")
def test_shared_memory_that_ends_meanwhile_is_left_out() -> None:
    """UCX finds 64 MiB, and then its first segment leaves too little."""
    program = """
from pathlib import Path
from unlike_machines import MIB, small_shared_memory
small_shared_memory(64 * MIB)(Path())
from hetcomm import _core
_core.make_transport("ucx")
"""
    environment = {
        **os.environ,
        "UCX_POSIX_SHM_MIN_SIZE": "64m",
        "HETCOMM_LOG_LEVEL": "info",
        "PYTHONPATH": str(MACHINES),
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "without the shared memory posix; too little is left" in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("another user")
def test_a_limit_of_threads_is_an_error() -> None:
    """UCX ends a process that cannot start UCX's thread."""
    program = """
import os, resource
from hetcomm import _core
_core.ucx_version()  # loads the library, which other users may not read
os.setgroups([])
os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    _core.make_transport("ucx")
except _core.VendorError as error:
    print(error)
"""
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert 'cannot start the thread "ucx"' in done.stdout, done.stderr
    assert "raise the limit of processes (ulimit -u, or pids.max" in done.stdout
