"""Compressed communication for DDP and FSDP2. docs/compressed-training.md is the guide."""

from hetcomm.hooks.ddp import Compressed as Compressed
from hetcomm.hooks.ddp import average as average
from hetcomm.hooks.ddp import compressed as compressed
from hetcomm.hooks.fsdp import AllGather as AllGather
from hetcomm.hooks.fsdp import CompressedFsdp as CompressedFsdp
from hetcomm.hooks.fsdp import ReduceScatter as ReduceScatter
from hetcomm.hooks.fsdp import compress_fsdp as compress_fsdp
from hetcomm.hooks.hosts import ranks_of_host as ranks_of_host
