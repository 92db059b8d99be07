"""`python -m hetcomm.emulate cluster.toml -- command`."""

import typer

from .command import emulate

typer.run(emulate)
