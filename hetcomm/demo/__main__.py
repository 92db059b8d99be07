"""`python -m hetcomm.demo` is `hetcomm demo`."""

import typer

from hetcomm.demo.command import demo

if __name__ == "__main__":
    typer.run(demo)
