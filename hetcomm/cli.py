"""The `hetcomm` command."""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

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
from hetcomm.printable import printable
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


NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def main() -> None:
    """Runs the command line. An error of hetcomm's, or of a full disk, becomes one line and exit
    status 2."""
    from hetcomm import _core

    try:
        try:
            app()
        except _core.Error as error:
            fail(str(error))
        finally:
            flush_output()
    except BrokenPipeError:  # the reader has seen enough
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        fail(f"cannot write: {error}; free disk space and run the command again")


def flush_output() -> None:
    """Drops output that a full disk does not take. Python would try again at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def fail(text: str) -> NoReturn:
    print(f"hetcomm: {printable(text)}", file=sys.stderr)
    raise SystemExit(2)
