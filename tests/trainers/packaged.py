"""packaged.py MODULE: a script of Accelerate's package over hetcomm. Prints the backend in use."""

import runpy
import sys
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState

destroy = dist.destroy_process_group


def tell_and_destroy(*group: Any) -> None:
    if dist.is_initialized() and dist.get_rank() == 0:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        used = dist.group.WORLD._get_backend(device)
        print("backend", used.name(), "operations", used._get_sequence_number_for_group())
    destroy(*group)


dist.init_process_group("hetcomm")
PartialState(cpu=not torch.cuda.is_available())  # without --cpu these scripts would run alone
dist.destroy_process_group = tell_and_destroy
module = sys.argv.pop(1)
runpy.run_module(module, run_name="__main__", alter_sys=True)
if dist.is_initialized():
    dist.destroy_process_group()
