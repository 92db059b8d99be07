"""The `hetcomm` command."""

from __future__ import annotations

import sys

import typer

from hetcomm.bench.command import bench
from hetcomm.demo.command import demo
from hetcomm.doctor.command import doctor
from hetcomm.dump_command import dump
from hetcomm.emulate.command import emulate
from hetcomm.explain import explain
from hetcomm.job_key import key
from hetcomm.launch import launch
from hetcomm.plan.command import plan
from hetcomm.plan.measure.command import profile
from hetcomm.topo import topo
from hetcomm.tune.command import tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="One communicator for unlike hardware.",
)
app.command()(topo)
app.command()(doctor)
app.command()(dump)
app.command()(explain)
app.command()(launch)
app.command()(key)
app.command()(emulate)
app.command()(demo)
app.command()(bench)
app.command()(tune)
app.command()(profile)
app.command()(plan)


def main() -> None:
    """Runs the command line. An error of hetcomm's becomes one line and exit status 2."""
    from hetcomm import _core

    try:
        app()
    except _core.Error as error:
        print(f"hetcomm: {error}", file=sys.stderr)
        raise SystemExit(2) from None
