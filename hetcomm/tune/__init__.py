"""`hetcomm tune`: measures the inputs of the cost model, and writes them into a profile."""
