"""Partitions a PyTorch module's weights, gradients and optimizer states over three levels.

The levels are those of "Frontier low-bandwidth partitioning" (arXiv 2501.04266), a generalisation
of ZeRO and ZeRO++ (arXiv 2306.10209). docs/partition.md is the page for users.

The package is not named after its function `hetcomm.partition`: an import of the package would
replace the function.
"""

from hetcomm.partitioning.feedback import LoadPlanner
from hetcomm.partitioning.memory import Memory, predict_memory
from hetcomm.partitioning.partition import Partition, partition

__all__ = ["LoadPlanner", "Memory", "Partition", "partition", "predict_memory"]
