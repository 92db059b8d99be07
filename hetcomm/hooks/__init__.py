"""Compressed communication for DDP and FSDP2. docs/compressed-training.md is the guide."""

from hetcomm.hooks.ddp import Compressed as Compressed
from hetcomm.hooks.ddp import average as average
from hetcomm.hooks.ddp import compressed as compressed
