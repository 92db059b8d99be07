"""Numbers in texts do not follow the locale, such as one with a decimal comma."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from decimal_comma import locale_variables
from sysfs_trees import Sysfs

import hetcomm

ROOT = Path(__file__).resolve().parents[2]
COMMENTS = re.compile(r"//[^\n]*")
# Calls that follow the locale: of C, then conversions of printf() for real numbers, then streams.
FORBIDDEN = re.compile(
    r"\b(?:std::)?(?:ato[fl]?d?|strto(?:d|f|ld)|sto(?:d|f|ld)"
    r"|is(?:alnum|alpha|digit|graph|lower|print|punct|space|upper|xdigit)|to(?:lower|upper))\("
    r"|\"[^\"]*%[-+ #0']*[0-9*]*(?:\.[0-9*]*)?L?[aAeEfFgG]\b"
    r"|std::(?:hex|dec|fixed|setprecision|put_time|get_time|format)\b"
)
# What the linker needs for these, and for to_string() of a real number and numbers in streams.
SYMBOLS = re.compile(
    r"^(?:strto(?:d|f|ld)(?:_l)?|atof|is(?:alnum|alpha|digit|print|punct|space|upper|lower)"
    r"|to(?:lower|upper)|vsnprintf"
    r"|_ZNSo9_M_insertI\w+|_ZNSolsE[bdefijlmstxy]|_ZNSi10_M_extractI\w+|_ZNSirsER[bdefijlmstxy])$"
)
PERMITTED = {
    "libhetcomm": {"_ZNSi10_M_extractIlEERSiRT_"},  # of std::regex
    # torch's texts of sizes, in a stream of the classic locale.
    "_torch": {"_ZNSo9_M_insertIlEERSoT_", "_ZNSo9_M_insertImEERSoT_"},
}


def test_no_source_formats_or_parses_numbers_by_the_locale() -> None:
    sources = [
        path
        for folder in ("csrc", "bindings", "emulated")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".h", ".cc", ".inc", ".cuh"}
    ]
    assert len(sources) > 400
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORBIDDEN.search(COMMENTS.sub("", line))
    ]
    assert not found, "expected base/text.h in place of these:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("line", "follows"),
    [
        ('snprintf(text, sizeof text, "%.3f", x);', True),
        ('snprintf(text, n, "%-8.2lf", x);', False),  # no such conversion here
        ('"%g Gbit/s"', True),
        ('"%016llx"', False),
        ('"%.1f %% of the bytes"', True),
        ("std::strtod(text, &end)", True),
        ("std::tolower(c)", True),
        ("to_lower(c)", False),
        ("fields >> std::hex >> flags", True),
        ('"50 % of all"', False),
    ],
)
def test_the_search_finds_calls_that_follow_the_locale(line: str, follows: bool) -> None:
    assert bool(FORBIDDEN.search(line)) == follows


@pytest.mark.needs("compiler")
def test_no_library_needs_a_function_that_follows_the_locale() -> None:
    """Finds what is not in the text, such as to_string() of a real number."""
    found = {}
    for library in Path(hetcomm.__file__).parent.glob("*.so"):
        told = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        )
        names = {line.split()[-1].partition("@")[0] for line in told.stdout.splitlines()}
        permitted = PERMITTED.get(library.name.partition(".")[0], set())
        if follow := {name for name in names if SYMBOLS.match(name)} - permitted:
            found[library.name] = sorted(follow)
    assert not found


# Prints what must be equal under every locale.
PROGRAM = """
import ctypes, json, locale, sys, threading
import numpy as np
from communicators import BOUND, Call, results_of, run_ranks
import hetcomm
from hetcomm import _core
from hetcomm._core import Collective, Spec

if sys.argv[1] == "comma":
    locale.setlocale(locale.LC_ALL, "")
    assert locale.localeconv()["decimal_point"] == ","
    # std::locale::global(std::locale("")) of C++, in whose streams 1234 is "1.234".
    cpp = ctypes.CDLL("libstdc++.so.6")
    made, before = ctypes.c_void_p(), ctypes.c_void_p()
    cpp._ZNSt6localeC1EPKc(ctypes.byref(made), b"")
    cpp._ZNSt6locale6globalERKS_(ctypes.byref(before), ctypes.byref(made))

def refusal(call):
    try:
        call()
    except hetcomm.Error as error:
        return str(error)
    raise AssertionError("expected a refusal")

told = [_core.format_seconds(each) for each in (1.25e-5, 0.0123, 1.5, -2.5, 1234.5, 7200.0)]
told += [_core.format_bytes(each) for each in (1536, 1234567, 1 << 40)]
told += [_core.parse_bytes("1234k"), refusal(lambda: _core.parse_bytes("1.5M"))]
machine = _core.Machine(sys.argv[2], {"ib0": "198.18.0.1/24"}, {"ib0"})
told += [[nic.name, nic.bandwidth, nic.numa] for nic in _core.probe_nics(machine)]
told += _core.explain_nics(machine)
profile = _core.Profile(sys.argv[3])
told += [str(profile), profile.digest()]
x = np.ones(100_000, np.float32)
for call in (
    lambda comm: comm.all_reduce(x, x, op="sum", factor=2.5),
    lambda comm: comm.all_reduce(x, x, timeout=-2.5),
    lambda comm: comm.all_reduce(x, x, codec="topk:0,5"),
    lambda comm: comm.all_to_all(np.ones((1234, 2345), "f4"), np.ones((1234, 1), "f4")),
):
    with hetcomm.Communicator.from_env({}) as comm:
        told.append(refusal(lambda: call(comm)))
ready = threading.Barrier(2)

def call_and_dump(communicator):
    Call(communicator, Spec(Collective.all_reduce, count=1 << 16), 1, True).check()
    ready.wait(BOUND)
    found = _core.dump("a test", True)[1], _core.metrics()
    ready.wait(BOUND)
    return found

trace, metrics = results_of(run_ranks("ab", call_and_dump))[0]
events = json.loads(trace)["traceEvents"]
assert any(event["ph"] == "X" and event["dur"] > 0 for event in events), trace
values = [line.split()[-1] for line in metrics.splitlines() if line[0] != "#"]
assert any("." in value and float(value) > 0 for value in values), values
print(json.dumps(told))
"""
PROFILE = """hetcomm profile 1
host name=h0 ranks=2 cores=2 nics=ethernet:125000000 bandwidth=0
memory bandwidth=20000000000 step=300
"""


@pytest.mark.needs("decimal comma")
def test_texts_are_equal_where_the_decimal_point_is_a_comma(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.interface("ib0")
    sysfs.port("mlx5_0", "ib0", rate="2.5 Gb/sec (1X SDR)")
    told = []
    paths = {"PYTHONPATH": str(Path(__file__).parent)}
    for name, more in {"point": {"LC_ALL": "C"}, "comma": locale_variables(tmp_path)}.items():
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM, name, sysfs.root, PROFILE],
            env=os.environ | paths | more, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout.splitlines()[-1]))
    assert told[0] == told[1]
    assert ["mlx5_0", 312_500_000, 0] in told[1]
