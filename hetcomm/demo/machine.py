"""The machine behind measured figures."""

import os
import platform
from importlib import metadata
from pathlib import Path


def describe_machine() -> dict[str, str | int | float | None]:
    """Processor, cores for this process, memory in GiB, load over a minute, kernel, versions."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "hetcomm": version("hetcomm"),
    }


def processor() -> str:
    """Linux's model name, or the architecture without one."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def version(package: str) -> str | None:
    """The installed version; None for a package that is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
