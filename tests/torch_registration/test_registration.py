"""Registration of the backend's name with torch, its cost, and the effect of a broken hetcomm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

ALL_REDUCE = """
import torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("hetcomm", store=store, rank=0, world_size=1)
tensor = torch.arange(4.0)
dist.all_reduce(tensor)
assert tensor.tolist() == [0, 1, 2, 3], tensor
dist.destroy_process_group()
print("reduced")
"""

# Prints the devices whose tensors hetcomm serves, after an all_reduce if it serves CPU tensors.
SERVED = """
import torch, torch.distributed as dist
dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
group = dist.group.WORLD
types = [device.type for device in group._device_types]
if "cpu" in types:
    tensor = torch.arange(4.0)
    dist.all_reduce(tensor)
    dist.barrier()
    assert tensor.tolist() == [0, 1, 2, 3], tensor
print([kind for kind in types if group._get_backend(torch.device(kind)).name() == "hetcomm"])
dist.destroy_process_group()
"""

# Prints the modules that importing torch loaded, in order.
MODULES = "import json, sys, torch; print(json.dumps(list(sys.modules)))"


def succeeded(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_an_installed_backend_needs_no_import(installed: Path, run: Run) -> None:
    result = run(installed, "import torch\n" + ALL_REDUCE)
    assert succeeded(result) == "reduced\n"
    assert "hetcomm" not in result.stderr, result.stderr


@pytest.mark.parametrize("imports", ["torch, hetcomm", "hetcomm, torch"])
@pytest.mark.parametrize("metadata", [True, False], ids=["installed", "on-the-path"])
def test_either_order_of_imports_registers(
    imports: str, metadata: bool, site: Path, run: Run, request: pytest.FixtureRequest
) -> None:
    if metadata:
        request.getfixturevalue("installed")
    result = run(site, f"import {imports}\n" + ALL_REDUCE)
    assert succeeded(result) == "reduced\n"
    assert "hetcomm" not in result.stderr, result.stderr


def test_without_metadata_and_import_the_name_is_unknown(site: Path, run: Run) -> None:
    """Guards the tests above: only the entry point or the import registers."""
    result = run(site, "import torch\n" + ALL_REDUCE)
    assert result.returncode != 0
    assert "hetcomm" in result.stderr


@pytest.mark.parametrize(
    ("backend", "served"),
    [
        ("cpu:hetcomm", ["cpu"]),
        ("cuda:hetcomm", ["cuda"]),
        ("cpu:hetcomm,cuda:hetcomm", ["cpu", "cuda"]),
        ("cpu:gloo,cuda:hetcomm", ["cuda"]),
    ],
)
def test_backends_are_chosen_by_device(
    backend: str, served: list[str], installed: Path, run: Run
) -> None:
    """Also if torch knows no GPU."""
    result = run(installed, f"BACKEND = {backend!r}\n" + SERVED)
    assert sorted(succeeded(result).strip("[]\n").replace("'", "").split(", ")) == served


# Prints the device types of groups while a GPU and an extension appear and disappear.
APPEARING = """
import types, torch

def show(gpu, extension=False):
    torch.cuda.is_available = lambda: gpu
    module.is_available = lambda: extension
    print(list(torch.distributed.BackendConfig("hetcomm").get_device_backend_map()))

module = types.SimpleNamespace()
show(False)
show(True)
torch.utils.rename_privateuse1_backend("mine")
show(False)
torch._register_device_module("mine", module)
show(False, True)
show(True, True)
show(True, False)
"""


def test_a_group_maps_the_devices_that_exist_when_it_is_made(installed: Path, run: Run) -> None:
    """Also those that appear after the import of torch, which registers hetcomm."""
    served = [["cpu"], ["cpu", "cuda"], ["cpu", "mine"], ["cpu", "mine"], ["cpu", "cuda", "mine"],
              ["cpu", "cuda"]]  # fmt: skip
    assert succeeded(run(installed, APPEARING)).splitlines() == [str(types) for types in served]


# torch makes a tensor on a device that the group maps.
SHARDED = """
import torch, torch.distributed as dist
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
dist.init_process_group("hetcomm", store=dist.HashStore(), rank=0, world_size=1)
shards = sharded_tensor.ones(ChunkShardingSpec(dim=0, placements=["rank:0/cpu"]), 4, 3)
whole = torch.zeros(4, 3)
shards.gather(0, whole)
print(whole.sum().item(), dist.get_backend_config(), dist.group.WORLD._device_types)
dist.destroy_process_group()
"""


def test_a_sharded_tensor_is_gathered_without_a_gpu(installed: Path, run: Run) -> None:
    text = succeeded(run(installed, SHARDED))
    assert text == "12.0 cpu:hetcomm [device(type='cpu')]\n"


# Prints the vendor of a rank, or the error, where torch reports a GPU.
WITH_GPU = """
import torch, torch.distributed as dist
import hetcomm.backend
torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
try:
    dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    print("cpu")
except hetcomm.VendorError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("backend", "on_device"),
    [
        ("hetcomm", True),
        ("cpu:hetcomm", False),
        ("cpu:hetcomm,cuda:hetcomm", True),
        ("cuda:hetcomm", True),
        ("cpu:hetcomm,cuda:gloo", False),
        ("cpu:gloo,cuda:hetcomm", True),
    ],
)
def test_a_group_of_cpu_tensors_takes_no_gpu(
    backend: str, on_device: bool, installed: Path, run: Run
) -> None:
    """The GPU is fake, so a group that uses it fails."""
    nowhere = {"HETCOMM_CUDA_LIBRARY": "/nowhere/libcudart.so"}
    text = succeeded(run(installed, f"BACKEND = {backend!r}\n" + WITH_GPU, **nowhere))
    assert ("CUDA runtime not found" in text) == on_device, text
    assert on_device or text == "cpu\n"


# Makes groups without naming a backend, and prints their backends.
UNNAMED = """
import torch, torch.distributed as dist
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
found = [dist.group.WORLD, dist.new_group()]
print(*(group._get_backend(torch.device("cpu")).name() for group in found))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("default", "name"),
    [("", "gloo"), ("cpu,cuda", "hetcomm"), (" cpu ", "hetcomm"), ("cuda", "gloo")],
)
def test_hetcomm_default_applies_without_a_named_backend(
    default: str, name: str, installed: Path, run: Run
) -> None:
    result = run(installed, UNNAMED, HETCOMM_DEFAULT=default)
    assert succeeded(result) == f"{name} {name}\n"
    assert "hetcomm" not in result.stderr, result.stderr


def test_hetcomm_default_ignores_programs_with_a_named_backend(installed: Path, run: Run) -> None:
    program = UNNAMED.replace("group(store", "group('gloo', store")
    assert succeeded(run(installed, program, HETCOMM_DEFAULT="cpu")) == "gloo gloo\n"


@pytest.mark.parametrize("default", ["gpu", "cpu;cuda", "cpu,"])
def test_a_broken_default_is_an_error_of_unnamed_groups(
    default: str, installed: Path, run: Run
) -> None:
    works = "import torch\nprint((torch.ones(2) + 1).tolist())\n"
    result = run(installed, works, HETCOMM_DEFAULT=default)
    assert succeeded(result) == "[2.0, 2.0]\n"
    assert "HETCOMM_DEFAULT: expected" in result.stderr and "Traceback" not in result.stderr
    failing = run(installed, UNNAMED, HETCOMM_DEFAULT=default)
    message = failing.stderr.strip().splitlines()[-1]
    assert failing.returncode == 1, failing.stdout
    assert "InvalidArgumentError" in message and f'got "{default}"' in message, failing.stderr


def test_registering_again_changes_nothing(installed: Path, run: Run) -> None:
    program = """
import torch, hetcomm, hetcomm._autoload
hetcomm._autoload.register()
hetcomm._autoload.register()
assert torch.distributed.Backend.backend_list.count("hetcomm") == 1
"""
    succeeded(run(installed, program + ALL_REDUCE))


def test_an_extension_device_loaded_first_has_hetcomm_by_default(site: Path, run: Run) -> None:
    program = "import torch\ntorch.utils.rename_privateuse1_backend('mine')\nimport hetcomm\n"
    program += "print(torch.distributed.Backend.default_device_backend_map['mine'])"
    assert succeeded(run(site, program)) == "hetcomm\n"


NAME_ONLY = {"hetcomm", "hetcomm._autoload", "hetcomm._vendors"}


def test_importing_torch_registers_only_the_name(installed: Path, run: Run) -> None:
    """Only the name: the same modules as with autoload off, and the standard library's
    importlib.metadata."""
    without = json.loads(succeeded(run(installed, MODULES, TORCH_DEVICE_BACKEND_AUTOLOAD="0")))
    loaded = json.loads(succeeded(run(installed, MODULES)))
    assert "hetcomm" not in without
    assert foreign(loaded) - foreign(without) == NAME_ONLY


@pytest.mark.parametrize("before", ["", "import torch\n"], ids=["without-torch", "with-torch"])
def test_importing_hetcomm_loads_no_other_package(before: str, installed: Path, run: Run) -> None:
    program = f"{before}import json, sys; print(json.dumps(list(sys.modules)))\n"
    program += "import hetcomm; print(json.dumps(list(sys.modules)))"
    without, loaded = map(json.loads, succeeded(run(installed, program)).splitlines())
    assert foreign(loaded) - foreign(without) <= NAME_ONLY


def foreign(modules: list[str]) -> set[str]:
    """Modules that are not of the standard library."""
    return {name for name in modules if name.split(".")[0] not in sys.stdlib_module_names}


def no_libraries(package: Path) -> None:
    for library in package.glob("*.so"):
        library.unlink()


def raising_core(package: Path) -> None:
    no_libraries(package)
    (package / "_core.py").write_text('raise RuntimeError("planted: a broken core")\n')


def unloadable_core(package: Path) -> None:
    for library in package.glob("*.so"):
        library.unlink()
        library.write_bytes(b"not a library")


def syntax_error_in_backend(package: Path) -> None:
    (package / "backend.py").write_text("this is no Python\n")


BREAKAGES = {
    "no-libraries": (no_libraries, "_core"),
    "raising-core": (raising_core, "planted: a broken core"),
    "unloadable-core": (unloadable_core, "_core"),
    "syntax-error": (syntax_error_in_backend, "backend.py"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_hetcomm_never_breaks_torch(breakage: str, installed: Path, run: Run) -> None:
    harm, words = BREAKAGES[breakage]
    harm(installed / "hetcomm")
    works = "import torch\nprint((torch.ones(2) + 1).tolist())\n"
    result = run(installed, works)
    assert succeeded(result) == "[2.0, 2.0]\n"
    assert "Traceback" not in result.stderr, result.stderr
    failing = run(installed, "import torch\nprint('imported')\n" + ALL_REDUCE)
    assert failing.returncode == 1 and failing.stdout == "imported\n", failing.stderr
    last = failing.stderr.strip().splitlines()
    assert any(words in line for line in last[-6:]), failing.stderr


def test_a_missing_core_says_how_to_install_it(installed: Path, run: Run) -> None:
    no_libraries(installed / "hetcomm")
    result = run(installed, "import torch\n" + ALL_REDUCE)
    message = result.stderr.strip().splitlines()[-1]
    assert "hetcomm" in message and "install" in message, result.stderr


def test_a_build_for_another_torch_is_a_clear_error(installed: Path, run: Run) -> None:
    for library in (installed / "hetcomm").glob("_torch*.so"):
        library.unlink()
        library.write_bytes(b"not a library")
    result = run(installed, "import torch\n" + ALL_REDUCE)
    message = result.stderr.strip().splitlines()[-1]
    assert "VendorError" in message and "reinstall" in message, result.stderr


def test_torch_reports_a_broken_entry_point(installed: Path, run: Run) -> None:
    """Only a package without its _autoload breaks `import torch`, so _autoload must import no
    package."""
    shutil.rmtree(installed / "hetcomm" / "emulate")
    shutil.rmtree(installed / "hetcomm" / "demo")
    for name in ("cli", "topo", "explain", "backend"):
        (installed / "hetcomm" / f"{name}.py").unlink()
    no_libraries(installed / "hetcomm")
    succeeded(run(installed, "import torch"))


@pytest.mark.parametrize("metadata", [True, False], ids=["installed", "on-the-path"])
def test_hetcomm_works_where_torch_is_absent(
    metadata: bool, site: Path, run: Run, request: pytest.FixtureRequest
) -> None:
    if metadata:
        request.getfixturevalue("installed")
    program = """
import importlib.util, sys
import hetcomm
from hetcomm import _core
assert importlib.util.find_spec("torch") is None
assert issubclass(hetcomm.PeerFailedError, hetcomm.Error)
_core.Communicator(_core.LocalStore(), 0, 1)
"""
    result = run(site, program, hidden="torch")
    assert succeeded(result) == "" and result.stderr == ""


def test_errors_are_importable_from_hetcomm(site: Path, run: Run) -> None:
    program = """
import hetcomm
for name in hetcomm.__all__:
    getattr(hetcomm, name)
from hetcomm import *
try:
    hetcomm.nothing
except AttributeError as error:
    assert "nothing" in str(error)
"""
    succeeded(run(site, program))
