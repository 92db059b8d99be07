"""A temporary virtual machine with RDMA devices, which sees this machine's files read-only.

qemu emulates the processor. So it runs without virtualisation, about ten times slower, and proves
correctness, not speed.

qemu emulates the processor, so it runs where nothing can be virtualised, and about ten times
slower: good for right and wrong, not for speed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packages import GUEST, Image

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "qemu-system-x86_64"
# no_timer_check: on a busy host the kernel's test of its timer interrupt starves.
APPEND = (
    "console=ttyS0 loglevel=4 panic=-1 no_timer_check tsc=reliable mitigations=off "
    "random.trust_cpu=on"
)


@dataclass(frozen=True)
class Outcome:
    status: int | None  # None: the machine stopped before its command ended
    output: str
    console: str


def run(
    image: Image, command: list[str], job: Path, *, seconds: float, memory: int = 3072
) -> Outcome:
    """Runs `command` in a new machine with two RDMA devices. The folder `job` is its /run/job."""
    (job / "command").write_text(
        f"sh {shlex.quote(str(GUEST / 'network.sh'))} || exit 99\n"
        f"cd {shlex.quote(str(ROOT))}\n"
        f"export PATH={shlex.quote(os.environ['PATH'])} PYTHONDONTWRITEBYTECODE=1\n"
        f"export PYTHONPATH={shlex.quote(os.pathsep.join(filter(None, sys.path)))}\n"
        f"exec {shlex.join(command)}\n"
    )
    shares = {"host": "/", "packages": str(image.root), "job": str(job)}
    arguments = [PROGRAM, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    arguments += ["-M", "q35,usb=off", "-m", str(memory), "-cpu", "max", "-smp", "1"]
    arguments += ["-accel", "tcg,thread=single,tb-size=512", "-append", APPEND]
    arguments += ["-kernel", str(image.kernel), "-initrd", str(image.ramdisk)]
    arguments += ["-serial", f"file:{job / 'console'}"]
    for tag, path in shares.items():
        share = f"local,path={path.replace(',', ',,')},mount_tag={tag},security_model=none"
        arguments += ["-virtfs", share + ("" if tag == "job" else ",readonly=on,multidevs=remap")]
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as machine:
        try:
            said, _ = machine.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            machine.kill()
            said, _ = machine.communicate()

    def text(name: str) -> str:
        path = job / name
        return path.read_text(errors="replace") if path.exists() else ""

    status = text("status").strip()
    console = text("console") + said.decode(errors="replace")
    return Outcome(int(status) if status else None, text("output"), console)
