"""One job over ranks on x86-64 and ranks on Arm: they meet, derive the same plans, and get the same
bits. `make test-arm` alone runs these tests: the ranks on Arm run under qemu."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import arm_files
import pytest
import run_arm
from ports import free_port

PROGRAM = Path(__file__).with_name("mixed_ranks.py")
BOUND = 900.0  # seconds; far above the usual time

pytestmark = [pytest.mark.needs("emulated Arm"), pytest.mark.timeout(BOUND + 60)]


def test_no_instruction_multiplies_and_adds_with_one_rounding() -> None:
    """x86-64 has no such instruction without a flag, so results and plans would differ."""
    arm = arm_files.machine()
    listing = subprocess.run(
        [arm.disassembler, "-d", run_arm.PACKAGE / "libhetcomm.so"],
        env=arm.for_tools(), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    instructions = re.findall(r"\s(f\w+)\s", listing)
    assert instructions.count("fadd") > 100
    assert not [one for one in instructions if re.match(r"fn?m(add|sub|la|ls)", one)]


@pytest.mark.parametrize("processors", ["xxaa", "axxa", "xaa"])
def test_unlike_processors_have_equal_bits(processors: str, tmp_path: Path) -> None:
    arm, port, ranks = arm_files.machine(), str(free_port()), []
    for rank, processor in enumerate(processors):
        settings = {
            "RANK": str(rank), "WORLD_SIZE": str(len(processors)), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port, "HETCOMM_HOST_ID": processor,
        }  # fmt: skip
        on_arm = processor == "a"
        python = arm.python if on_arm else sys.executable
        environment = (run_arm.environment() if on_arm else dict(os.environ)) | settings
        with (tmp_path / f"{rank}.log").open("w") as log:
            ranks.append(
                subprocess.Popen([python, "-P", PROGRAM], env=environment, stdout=log, stderr=log)
            )
    try:
        codes = [rank.wait(BOUND) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    printed = [(tmp_path / f"{rank}.log").read_text() for rank in range(len(ranks))]
    assert not any(codes), "\n".join(printed)
    found = [json.loads(text.splitlines()[-1]) for text in printed]
    names = {"x": "x86_64", "a": "aarch64"}
    assert [machine for machine, _ in found] == [names[processor] for processor in processors]
    assert all(digests == found[0][1] for _, digests in found)
