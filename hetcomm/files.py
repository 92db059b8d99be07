"""Files that a command reads and writes, with clear errors."""

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


def link_profile(option: str, file: Path) -> _core.Profile:
    """The profile of `hetcomm tune` in the file. Raises InvalidArgumentError if there is none."""
    try:
        return _core.Profile(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise _core.InvalidArgumentError(
            f"{option}: expected a profile of hetcomm tune in {file}: {error}; make one by "
            f"`hetcomm tune {file}`"
        ) from None
