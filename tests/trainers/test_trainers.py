"""The programs of examples/trainers over gloo and over hetcomm, and scripts of Accelerate.

`make test-trainers` installs the large packages that they need. Elsewhere the tests run as far as
the packages are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/trainers"
BOUND = 280.0


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed: make test-trainers"
    )


def printed(*command: str, **variables: str) -> str:
    """The output of a program, which must succeed."""
    scripts = os.pathsep.join((str(ROOT / ".venv/bin"), os.environ["PATH"]))  # for DeepSpeed
    result = subprocess.run(
        [sys.executable, *command],
        env=os.environ
        | {
            "PATH": scripts,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "ACCELERATE_USE_CPU": "1",
        }
        | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


def torchrun(*command: str, **variables: str) -> str:
    port = f"--master-port={free_port()}"
    return printed(
        "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", port, *command,
        **variables,
    )  # fmt: skip


def losses(said: str, backend: str) -> list[float]:
    assert set(re.findall(r"backend (\S+)", said)) == {backend}, said[-6000:]
    found = re.search(r"losses ([-\d.e ]+)", said)
    assert found, said[-6000:]
    return [float(loss) for loss in found[1].split()]


@pytest.mark.parametrize(
    ("program", "options"),
    [
        pytest.param("lightning_fit.py", [], marks=needs("lightning")),
        pytest.param("lightning_fit.py", ["--sharded"], marks=needs("lightning")),
        pytest.param("deepspeed_zero.py", ["--stage", "1"], marks=needs("deepspeed")),
        pytest.param("deepspeed_zero.py", ["--stage", "3"], marks=needs("deepspeed")),
        pytest.param("accelerate_loop.py", [], marks=needs("accelerate")),
        pytest.param("transformers_trainer.py", [], marks=needs("transformers")),
    ],
)
def test_a_trainer_has_the_losses_of_gloo(program: str, options: list[str]) -> None:
    path = str(EXAMPLES / program)
    expected = losses(torchrun(path, *options, "--backend", "gloo"), "gloo")
    found = losses(torchrun(path, *options), "hetcomm")
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-5)


@needs("ray")
@pytest.mark.timeout(2 * BOUND)
def test_ray_train_has_the_losses_of_gloo(tmp_path: Path) -> None:
    path, storage = str(EXAMPLES / "ray_train.py"), f"--storage={tmp_path}"
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    expected = losses(printed(path, storage, "--backend", "gloo", **quiet), "gloo")
    assert losses(printed(path, storage, **quiet), "hetcomm") == pytest.approx(expected, rel=1e-5)


@needs("accelerate")
@pytest.mark.parametrize("script", ["test_script", "test_ops", "test_sync"])
def test_accelerates_own_scripts_pass(script: str) -> None:
    said = torchrun(
        str(ROOT / "tests/trainers/packaged.py"), f"accelerate.test_utils.scripts.{script}"
    )
    used = re.search(r"backend (\S+) operations (\d+)", said)
    assert used, said[-6000:]
    assert used[1] == "hetcomm"
    assert int(used[2]) > 3


@needs("accelerate")
@pytest.mark.parametrize("program", ["accelerate_loop.py", "transformers_trainer.py"])
def test_the_patch_lets_accelerate_use_hetcomm(program: str, tmp_path: Path) -> None:
    if program.startswith("transformers") and find_spec("transformers") is None:
        pytest.skip("transformers is not installed: make test-trainers")
    spec = find_spec("accelerate")
    assert spec is not None and spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, tmp_path / "accelerate")
    patch = (EXAMPLES / "accelerate.patch").read_text()
    subprocess.run(["patch", "-p1", "-d", str(tmp_path)], input=patch, text=True, check=True)
    path = str(EXAMPLES / program)
    expected = losses(torchrun(path, "--backend", "gloo"), "gloo")
    found = losses(torchrun(path, "--patched", PYTHONPATH=str(tmp_path)), "hetcomm")
    assert found == pytest.approx(expected, rel=1e-5)
