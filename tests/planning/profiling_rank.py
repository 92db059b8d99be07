"""`hetcomm profile` as a rank of a job, in a process that has imported torch.

argv: the command's arguments. With STUBBED_HOST_WORK, its number of seconds is each figure of the
host's work, which takes two more processes that import torch.
"""

from __future__ import annotations

import os

import hetcomm.plan.measure.job
from hetcomm.cli import main
from hetcomm.plan.profile import HostWork

if stubbed := os.environ.get("STUBBED_HOST_WORK"):
    hetcomm.plan.measure.job.host_work_apart = lambda: HostWork(*3 * [float(stubbed)])
main()
