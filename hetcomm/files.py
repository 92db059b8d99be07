"""Files that a command writes: clear errors before and after the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hetcomm import _core


def check_folder(what: str, file: Path) -> None:
    """Raises InvalidArgumentError if the file's folder does not exist."""
    if not file.absolute().parent.is_dir():
        raise _core.InvalidArgumentError(
            f"{what}expected an existing folder, got {file.absolute().parent}; create it"
        )


@contextmanager
def writing(option: str, file: Path) -> Iterator[None]:
    """Raises InvalidArgumentError for an OSError inside."""
    try:
        yield
    except OSError as error:
        raise _core.InvalidArgumentError(
            f"{option}: expected a file that can be written, got {file}: {error.strerror}; "
            "choose another path"
        ) from error
