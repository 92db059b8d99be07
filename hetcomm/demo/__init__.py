"""The demo: the same training side by side on two backends, in an emulated two-island cluster."""
