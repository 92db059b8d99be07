"""`hetcomm tune`: measures what the cost model needs to know, and keeps it in a profile."""
