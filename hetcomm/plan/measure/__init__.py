"""`hetcomm profile`: measures layers, optimizer and memory on each kind of device."""
