"""The job key: a secret of all ranks of a job that does not pass through the job's store."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

KEY, FILE = "HETCOMM_JOB_KEY", "HETCOMM_JOB_KEY_FILE"


def new_key() -> str:
    return secrets.token_hex(32)


def with_job_key(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of all ranks of a new job; with a new key, unless the user gave one."""
    given = any(environment.get(name) for name in (KEY, FILE))
    return dict(environment) if given else {**environment, KEY: new_key()}


def job_key_of(environment: Mapping[str, str]) -> bytes:
    """The key that with_job_key() made, or that the user gave to this process."""
    from hetcomm import _core

    return environment.get(KEY, "").encode() or bytes(_core.job_key())


def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file; mode 600.")],
) -> None:
    """Write a new job key. Ranks with HETCOMM_JOB_KEY_FILE=FILE prove it to each other.

    Copy the file to every host of the job, or place it on a file system that all hosts share.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        typer.echo(f"hetcomm key: {file}: {error.strerror}; name a new file", err=True)
        raise typer.Exit(2) from None
    with open(descriptor, "w", encoding="utf-8") as written:
        written.write(new_key() + "\n")
    typer.echo(f"export {FILE}={file.resolve()}")
