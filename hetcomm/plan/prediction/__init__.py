"""How long a training step takes, and the memory of each rank."""
