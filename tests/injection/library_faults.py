"""Errors and hangs of the native libraries of emulated vendors; see emulated/settings.h."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

from case import Case, Layout
from job import VENDORS
from trial import STEP, WRONG, Complaint, Trial

if TYPE_CHECKING:
    from kinds import Settings

FAULTS = (
    "init_hang", "init_error", "split_hang", "split_error", "async_error:{}", "hang:{}",
    "device_error:{}",
)  # fmt: skip
ERRORS = ("VendorError", "TimeoutError", "PeerFailedError")
LIBRARIES = {"nvidia": ("NCCL", "CUDA"), "amd": ("RCCL", "HIP")}


def layout(case: Case) -> Layout:
    """The first two ranks share an island of a native library."""
    drawn = case.layout(shared=False, cluster=False)
    chance = random.Random(f"{case.seed}/{case.number}/library")
    vendor = chance.choice("na")
    return dataclasses.replace(
        drawn, hosts="aa" + drawn.hosts[2:], vendors=2 * vendor + drawn.vendors[2:]
    )


def settings(trial: Trial) -> Settings:
    """The victim is one of the first two ranks."""
    trial.victim = trial.chance.randrange(2)
    fault = trial.chance.choice(FAULTS).format(trial.chance.randrange(20))
    trial.tell(fault)
    return {trial.victim: {"HETCOMM_EMULATED_FAULT": fault}}


def broken(trial: Trial) -> None:
    """A fault after more calls than those of the case does not show. A hang is an operation that
    exceeds its timeout, and the first such operation may be one that waits for another rank."""
    fault, own = trial.told[0], layout(trial.case)
    vendor = own.vendors[trial.victim]
    names = [f"rank {trial.victim}", *LIBRARIES[VENDORS[vendor]], STEP]
    if fault in ("init_hang", "split_hang"):  # no member of the island goes on
        places = list(zip(own.hosts, own.vendors, strict=True))
        island = [rank for rank, place in enumerate(places) if place == places[trial.victim]]
        names += [f"rank {rank} did not finish setting up" for rank in island]
    # A broken device has an error of its own for each call, and one that hangs for allocations.
    again = not fault.startswith(("device_error", "hang"))
    trial.right_or_refused(ERRORS, names, again=again)
    if fault.startswith("init_") and "refused" not in trial.told:
        raise Complaint(WRONG, f"the group is set up in spite of {fault}")
