"""A file system that stands still under the files that hetcomm writes; see system_calls.cc."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from job import NOTICE
from shims import preloaded
from trial import Trial

if TYPE_CHECKING:
    from kinds import Settings


def settings(trial: Trial) -> Settings:
    """Each rank writes files. For some ranks the file system stands still."""
    library = preloaded("system_calls", trial.folder)
    folder, flag = trial.folder / "files", trial.folder / "still"
    folder.mkdir()
    if trial.chance.random() < 0.5:
        trial.tell("from the beginning")
        flag.touch()
    more = {"HETCOMM_METRICS": str(folder), "HETCOMM_DUMP": str(folder)}
    still = {"LD_PRELOAD": library, "STAND_STILL": str(flag), "STILL_FOLDER": str(folder)}
    return {
        rank: more | (still if trial.chance.random() < 0.7 else {}) for rank in range(trial.size)
    }


def standing_still(trial: Trial) -> None:
    """Failure detection and the ends of processes do not depend on files."""
    trial.begin()
    (trial.folder / "still").touch()
    trial.job[trial.victim].signal(signal.SIGKILL)
    trial.all_fail(
        trial.others, ("PeerFailedError",), [f"rank {trial.victim}"], NOTICE, failed=[trial.victim]
    )
    trial.end(trial.others)
