"""Every row of hetcomm/vendors.toml has all answers, for the core and for Python alike."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from communicators import results_of, run_ranks
from emulated_vendor import run

import hetcomm
from hetcomm import _core, _wheels
from hetcomm._core import Collective, Communicator, Dtype, Spec
from hetcomm._vendors import library_variables, of_torch, torch_devices, vendors
from hetcomm.emulate import Host
from hetcomm.emulate.vendors import environment, library

# Optional answers; vendor.h explains their absence.
OPTIONAL = {
    "runtime.spellings", "driver.library", "driver.remote_writes",
    "driver.functions.DeviceGet", "driver.functions.DeviceGetAttribute", "ccl.float8_architecture",
}  # fmt: skip
every_vendor = pytest.mark.parametrize("vendor", vendors())


def keys(row: dict[str, Any], above: str = "") -> set[str]:
    """The paths of all values of a row. Names of spelled functions and wheels are values."""
    found = set()
    for key, value in row.items():
        nested = isinstance(value, dict) and key not in ("spellings", "wheels")
        found |= keys(value, f"{above}{key}.") if nested else {above + key}
    return found


@every_vendor
def test_every_row_has_all_answers(vendor: str) -> None:
    asked = set().union(*map(keys, vendors().values()))
    assert asked - keys(vendors()[vendor]) <= OPTIONAL
    assert re.fullmatch("[a-z]{1,15}", vendor) and vendor != "cpu"


def test_no_two_rows_share_a_name_or_a_variable() -> None:
    for part in ("runtime", "compiler", "ccl"):
        rows = [row[part] for row in vendors().values()]
        for key in ("name", "variable"):
            assert len({row[key] for row in rows}) == len(rows), (part, key)


def test_the_core_has_the_rows_of_the_file() -> None:
    names = re.escape(f"({', '.join(vendors())})")
    with pytest.raises(_core.VendorError, match=names):
        _core.Device.open("cpu", 0)


@every_vendor
def test_the_core_finds_a_vendors_libraries_by_its_row(vendor: str) -> None:
    row, path = vendors()[vendor], str(library(vendor))
    program = (
        "import sys\nfrom hetcomm import _core\n"
        "device = _core.Device.open(sys.argv[1], 1)\n"
        "print(device.vendor, device.name)\nprint(device.description)\n"
        "print(_core.ccl_version(sys.argv[1]))\n"
    )
    printed = run(program, vendor, **dict.fromkeys(library_variables(vendor), path)).splitlines()
    number, major = row["emulated"]["version"], row["runtime"]["version_major"]
    version = f"{number // major}.{number % major // row['runtime']['version_minor']}"
    assert printed[0] == f"{vendor} Emulated {vendor.upper()} GPU"
    assert f"{row['runtime']['name']} {version}" in printed[1] and path in printed[1]
    assert printed[2].startswith(row["ccl"]["name"]) and path in printed[2]


@every_vendor
@pytest.mark.parametrize(("part", "call"), [(0, "Device.open(v, 0)"), (1, "ccl_version(v)")])
def test_a_missing_library_names_the_rows_variable(vendor: str, part: int, call: str) -> None:
    variable = library_variables(vendor)[part]
    program = (
        f"import sys\nfrom hetcomm import _core\nv = sys.argv[1]\ntry:\n    _core.{call}\n"
        "except _core.VendorError as error:\n    print(error)\n"
    )
    printed = run(program, vendor, **{variable: "/nowhere/library.so"})
    row = vendors()[vendor][("runtime", "ccl")[part]]
    assert row["name"] in printed and f"or set {variable} to" in printed, printed


@every_vendor
def test_a_missing_compiler_names_the_rows_variable(vendor: str) -> None:
    row = vendors()[vendor]["compiler"]
    program = (
        "import sys\nfrom hetcomm import _core\ntry:\n    _core.describe_compiler(sys.argv[1])\n"
        "except _core.VendorError as error:\n    print(error)\n"
    )
    printed = run(program, vendor, **{row["variable"]: "/nowhere/library.so"})
    assert row["remedy"] in printed and f"or set {row['variable']} to" in printed, printed


@pytest.mark.usefixtures("emulated_vendors")
@pytest.mark.parametrize("ranks", [*([name] * 2 for name in vendors()), [*vendors(), "cpu"]])
def test_ranks_of_every_vendor_sum(ranks: list[str]) -> None:
    def program(communicator: Communicator) -> None:
        data = np.full(1000, communicator.rank + 1, np.float32)
        spec = Spec(Collective.all_reduce, Dtype.float32, count=1000, in_place=True)
        communicator.submit(spec, data, data, True).wait()
        assert (data == sum(range(1, len(ranks) + 1))).all()

    results_of(run_ranks("x" * len(ranks), program, vendors=ranks))


@every_vendor
def test_torch_built_for_a_vendor_is_recognised(vendor: str) -> None:
    attributes = {row["python"]["torch_version"]: None for row in vendors().values()}
    attributes[vendors()[vendor]["python"]["torch_version"]] = "1.0"
    assert of_torch(SimpleNamespace(version=SimpleNamespace(**attributes))) == vendor
    assert vendors()[vendor]["torch"]["device"] in torch_devices()


@every_vendor
def test_an_emulated_host_points_its_ranks_to_the_vendors_library(vendor: str) -> None:
    told = environment(Host("green0", 1, (), vendor), 0)
    assert {told[variable] for variable in library_variables(vendor)} == {str(library(vendor))}


@every_vendor
def test_the_array_api_names_every_vendor(vendor: str) -> None:
    with pytest.raises(hetcomm.InvalidArgumentError, match=f'"{vendor}"'):
        hetcomm.Communicator(_core.LocalStore(), 0, 1, device="unknown")


@every_vendor
def test_a_vendors_wheels_are_searched(
    vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package, pattern in vendors()[vendor]["python"]["wheels"].items():
        folder = tmp_path / package / pattern.replace("*", "part")
        folder.mkdir(parents=True)
        found = {package: SimpleNamespace(submodule_search_locations=[str(tmp_path / package)])}
        monkeypatch.setattr(_wheels, "find_spec", found.get)
        assert _wheels.folders() == [str(folder)]
